"""Agreement with an independent prototype on real networks: `python -m benchmarks.prototype`.

Runs DMBP as in the paper (all terms, 200 iterations at 0.01) on four photographs with the real
ResNet50 and VGG16 (with a VOC head), here and in the prototype, and prints the terms of both. Needs
the folder of real weights and photographs (`--shared`).
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

import dmbp
from benchmarks.real import photographs, resnet50, vgg16_voc
from dmbp.models.classifier import Classifier

PHOTOS = 4


def prototype(shared: Path) -> ModuleType:
    """The prototype's module, imported from its file."""
    spec = importlib.util.spec_from_file_location("prototype", shared / "lab" / "dmbp_lab.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(
    classifier: Classifier, inputs: Tensor, target: Tensor, lab: ModuleType, iterations: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The terms found here and by the prototype."""
    d = dmbp.DMBP(classifier.module, preset="paper", iterations=iterations).explain(
        inputs, target=target, internal_batch_size=1
    )
    ours = {"y": d.output, "y+": d.positive_output, "y-": d.negative_output}
    parts = [
        lab.dmbp(classifier.module, inputs[k : k + 1], target[k : k + 1], iters=iterations)
        for k in range(len(inputs))
    ]
    names = {"y": "y", "y+": "yp", "y-": "yn"}
    theirs = {name: torch.cat([part[key] for part in parts]) for name, key in names.items()}
    for terms in (ours, theirs):
        terms["y~"] = terms["y"] - terms["y+"] - terms["y-"]
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--photos", type=int, default=PHOTOS)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    lab = prototype(options.shared)
    for load in (resnet50, vgg16_voc):
        classifier = load(options.shared)
        classifier.module.to(options.device)
        inputs, target = photographs(options.shared, classifier.preprocessing, options.photos)
        inputs, target = inputs.to(options.device), target.to(options.device)
        with torch.no_grad():
            outputs = classifier.module(inputs)
        target = target if outputs.shape[1] == 1000 else outputs.argmax(1)
        started = time.perf_counter()
        ours, theirs = compare(classifier, inputs, target, lab, options.iterations)
        print(f"{classifier.name}, {options.iterations} iterations:", end=" ")
        print(f"{time.perf_counter() - started:.0f} s for both, on {options.device}")
        for name in ours:
            worst = ((ours[name] - theirs[name]).abs() / theirs["y+"].abs()).max()
            print(f"  {name:3s} ours {_row(ours[name])}  prototype {_row(theirs[name])}", end="")
            print(f"  largest difference / y+ {worst:.1e}")
        worst = max(
            float(((ours[name] - theirs[name]).abs() / theirs[name].abs()).max())
            for name in ("y", "y+", "y-")
        )
        print(f"  largest relative difference of y, y+ and y-: {worst:.1e}", flush=True)


def _row(values: Tensor) -> str:
    return " ".join(f"{value:10.3f}" for value in values.tolist())


if __name__ == "__main__":
    sys.exit(main())
