"""Agreement with an independent prototype on real networks: `python -m benchmarks.prototype`.

Runs DMBP as in the paper (all terms, 200 iterations at 0.01) on four photographs with the real
ResNet50 and VGG16 (with a VOC head), here and in the prototype, and prints the terms of both. Needs
the folder of real weights and photographs (`--shared`).
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from tests.prototype import compare, prototype
from tests.real import photographs, resnet50, vgg16_voc
from torch import Tensor

PHOTOS = 4


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
