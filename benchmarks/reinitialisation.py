"""How much maps depend on what the model learned: `python -m benchmarks.reinitialisation`.

Prints Spearman's rank correlation between maps of the real ResNet50 and maps of the same network
with a re-initialised last layer, over photographs. DMBP is near 0; guided backprop is near 1 and
explains nothing. Needs the folder of real weights and photographs (`--shared`).
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import torch
from tests.real import photographs, resnet50

from dmbp.attribution import METHODS, parse_method_names
from dmbp.metrics import reinitialisation

PROTOTYPE = {"dmbp_paper": 0.047, "gradient": 0.043, "gradcam": 0.190, "guided_backprop": 0.997}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default="gradient,guided_backprop,guided_gradcam,gradcam,dmbp")
    parser.add_argument("--count", type=int, default=40, help="use the first photographs")
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    classifier = resnet50(options.shared)
    module = classifier.module.to(options.device)
    inputs, target = photographs(options.shared, classifier.preprocessing, options.count)
    inputs = inputs.to(options.device)
    for name in parse_method_names(options.methods):
        row = METHODS[name]
        found = torch.cat(
            [
                reinitialisation(
                    partial(row), module, inputs[k : k + 20], target[k : k + 20].tolist()
                )
                for k in range(0, len(inputs), 20)
            ]
        )
        error = float(found.std() / len(found) ** 0.5)
        text = f"{name:22s} ρ {float(found.mean()):+.3f} ± {error:.3f}"
        text += f"   mean |ρ| {float(found.abs().mean()):.3f}"
        print(text + (f"   prototype {PROTOTYPE[name]}" if name in PROTOTYPE else ""), flush=True)


if __name__ == "__main__":
    sys.exit(main())
