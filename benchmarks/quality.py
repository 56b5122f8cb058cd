"""Insertion scores of every method on real networks: `python -m benchmarks.quality photos`.

    photos         ResNet50, 200 photographs, target = true class
    voc-resnet50   ResNet50 with a VOC head, every (image, class) pair of the VOC images; also cIM
    voc-vgg16      the same for VGG16 with a VOC head

Prints the mean and standard error of each score and the seconds per image, next to the figures of
an independent prototype on the same networks (and other VOC images). `--rise-bfloat16` runs RISE's
thousands of masked images in half precision. Needs the folder of real weights and photographs
(`--shared`), and a GPU to run all methods at full size.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.real import photographs, resnet50, resnet50_voc, vgg16_voc, voc_pairs
from torch import Tensor

from dmbp.attribution import DMBP, METHODS, LinearMapMethod, parse_method_names
from dmbp.attribution.blur_ig import gaussian_blur
from dmbp.decompose import concatenate
from dmbp.metrics import complementary_insertion, insertion, pointing_game
from dmbp.models.classifier import Classifier


@dataclass(frozen=True)
class Task:
    """A network, inputs and targets; `others` and `boxes` if images show several classes."""

    classifier: Classifier
    inputs: Tensor
    target: Tensor
    others: list[list[int]] | None = None
    boxes: list[Any] | None = None

    def first(self, count: int | None, device: str) -> "Task":
        """Return the first `count` questions, on a device."""
        return Task(
            self.classifier,
            self.inputs[:count].to(device),
            self.target[:count].to(device),
            self.others and self.others[:count],
            self.boxes and self.boxes[:count],
        )


def photos(shared: Path, count: int) -> Task:
    classifier = resnet50(shared)
    return Task(classifier, *photographs(shared, classifier.preprocessing, count))


def _voc(make: Callable[[Path], Classifier], shared: Path, count: int) -> Task:
    classifier = make(shared)
    pairs = voc_pairs(shared, classifier.preprocessing, count)
    return Task(classifier, pairs.inputs, pairs.target, pairs.others, pairs.boxes)


TASKS: dict[str, Callable[[Path, int], Task]] = {
    "photos": photos,
    "voc-resnet50": lambda shared, count: _voc(resnet50_voc, shared, count),
    "voc-vgg16": lambda shared, count: _voc(vgg16_voc, shared, count),
}

# The prototype's IM, and its cIM if it was measured.
PROTOTYPE: dict[str, dict[str, str]] = {
    "photos": {
        "random": "0.372",
        "gradient": "0.462",
        "gradient ·(x−blur)": "0.500",
        "integrated_gradients": "0.500",
        "integrated_gradients ·(x−blur)": "0.588",
        "smoothgrad": "0.607",
        "smoothgrad ·(x−blur)": "0.709",
        "guided_backprop": "0.655",
        "guided_backprop ·(x−blur)": "0.716",
        "guided_gradcam": "0.672",
        "guided_gradcam ·(x−blur)": "0.728",
        "fullgrad": "0.669",
        "gradcam": "0.690",
        "dmbp_paper": "0.636",
        "dmbp_paper ·x own signs": "0.682",
        "dmbp_paper ·(x−blur)": "0.769",
        "dmbp_paper ·(x−blur) own signs": "0.772",
        "dmbp ·x": "0.638",
        "dmbp ·x own signs": "0.679",
        "dmbp ·(x−blur)": "0.753",
        "dmbp_posneg ·x": "0.641",
        "dmbp_posneg ·(x−blur)": "0.811",
        "dmbp_pos ·x": "0.638",
        "dmbp_pos ·(x−blur)": "0.809",
    },
    "voc-resnet50": {
        "random": "0.264, 0.286",
        "gradient": "0.380, 0.253",
        "integrated_gradients": "0.442, 0.255",
        "smoothgrad": "0.545, 0.253",
        "guided_backprop": "0.482, 0.251",
        "guided_gradcam": "0.504, 0.290",
        "fullgrad": "0.509, 0.368",
        "gradcam signed": "0.595, 0.422",
        "dmbp_paper": "0.521, 0.318",
        "dmbp_paper ·(x−blur) own signs, smoothed": "0.623, 0.419",
        "dmbp ·x": "0.516, 0.322",
        "dmbp, smoothed": "0.614, 0.414",
        "dmbp_posneg ·x": "0.545, 0.307",
        "dmbp_posneg ·(x−blur)": "0.673, 0.267",
        "dmbp_pos ·x": "0.526, 0.267",
    },
    "voc-vgg16": {
        "random": "0.177, 0.188",
        "gradient": "0.267, 0.203",
        "integrated_gradients": "0.300, 0.200",
        "smoothgrad": "0.384, 0.194",
        "guided_backprop": "0.398, 0.184",
        "guided_gradcam": "0.420, 0.250",
        "fullgrad": "0.466, 0.327",
        "gradcam signed": "0.527, 0.378",
        "dmbp_paper": "0.398, 0.210",
        "dmbp_paper ·(x−blur) own signs, smoothed": "0.571, 0.335",
        "dmbp ·x": "0.396, 0.228",
        "dmbp, smoothed": "0.571, 0.370",
        "dmbp_posneg ·x": "0.386, 0.224",
        "dmbp_posneg ·(x−blur)": "0.507, 0.215",
        "dmbp_pos ·x": "0.359, 0.154",
    },
}

READOUTS: dict[str, tuple[Any, Any]] = {
    " ·x": ("zero", "sum"),
    " ·x own signs": ("zero", "own_signs"),
    " ·(x−blur)": ("blur", "sum"),
    " ·(x−blur) own signs": ("blur", "own_signs"),
}


def maps(name: str, task: Task, options: argparse.Namespace) -> Iterator[tuple[str, Tensor, float]]:
    """Yield a method's maps and its other read-outs: label, maps and seconds per image."""
    row = METHODS[name]
    module, inputs = task.classifier.module, task.inputs
    settings: dict[str, Any] = {}
    if row.probabilistic:
        settings["activation"] = task.classifier.activation
        if options.rise_masks:
            settings["masks"] = options.rise_masks
        if options.rise_bfloat16:
            settings["precision"] = "bfloat16"
    method = row(module, **settings)
    batch = options.sampling_batch if row.probabilistic else options.batch
    started = _clock(inputs)
    if isinstance(method, DMBP):
        parts = [
            method.explain(inputs[k : k + batch], target=task.target[k : k + batch])
            for k in range(0, len(inputs), batch)
        ]
        d = concatenate(parts)
        seconds = (_clock(inputs) - started) / len(inputs)
        yield name, d.attribution, seconds
        for called, (reference, combine) in READOUTS.items():
            yield name + called, d.read(reference=reference, combine=combine).attribution, seconds
        return
    found = method.attribute(inputs, target=task.target.tolist(), internal_batch_size=batch)
    yield name, found.float(), (_clock(inputs) - started) / len(inputs)
    if isinstance(method, LinearMapMethod) and f"{name} ·(x−blur)" in PROTOTYPE[options.task]:
        started = _clock(inputs)
        method.reference = "blur"
        found = method.attribute(inputs, target=task.target.tolist(), internal_batch_size=batch)
        yield f"{name} ·(x−blur)", found, (_clock(inputs) - started) / len(inputs)
    if name == "gradcam":
        method = row(module, signed=True)
        found = method.attribute(inputs, target=task.target.tolist(), internal_batch_size=batch)
        yield "gradcam signed", found, 0.0


def _clock(like: Tensor) -> float:
    if like.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def smoothed(attribution: Tensor, sigma: float = 3.0) -> Tensor:
    """Sum a map over channels and blur it with a Gaussian of `sigma` pixels."""
    return gaussian_blur(attribution.sum(1, keepdim=True), sigma)


def scores(attribution: Tensor, task: Task, batch: int) -> dict[str, Tensor]:
    """Return every image's IM, and cIM and pointing game if the task has several classes."""
    common: dict[str, Any] = {
        "activation": task.classifier.activation,
        "internal_batch_size": batch,
    }
    module, inputs = task.classifier.module, task.inputs
    found = {"IM": insertion(module, inputs, task.target.tolist(), attribution, **common).cpu()}
    if task.others is not None and task.boxes is not None:
        found["cIM"] = complementary_insertion(
            module, inputs, task.others, attribution, **common
        ).cpu()
        found["pointing"] = pointing_game(attribution.cpu(), task.boxes).double()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--count", type=int, default=200, help="use the first images")
    parser.add_argument("--pairs", type=int, help="use only the first (image, class) pairs of VOC")
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sampling-batch", type=int, default=512)
    parser.add_argument("--rise-masks", type=int)
    parser.add_argument("--rise-bfloat16", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    task = TASKS[options.task](options.shared, options.count)
    task.classifier.module.to(options.device)
    task = task.first(options.pairs, options.device)
    results: dict[str, dict[str, Any]] = {}
    print(f"{options.task}: {len(task.inputs)} questions to {task.classifier.name}")
    for name in parse_method_names(options.methods):
        for called, attribution, seconds in maps(name, task, options):
            variants = {called: attribution, f"{called}, smoothed": smoothed(attribution)}
            for variant, pixels in variants.items():
                if variant not in (name, "gradcam signed", *PROTOTYPE[options.task]):
                    continue
                found = scores(pixels, task, options.sampling_batch)
                results[variant] = _line(variant, found, seconds, PROTOTYPE[options.task])
                if options.json is not None:
                    options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False))


def _line(
    name: str, found: dict[str, Tensor], seconds: float, prototype: dict[str, str]
) -> dict[str, Any]:
    values: dict[str, Any] = {"seconds": seconds, "prototype": prototype.get(name)}
    text = f"{name:42s}"
    for metric, values_of in found.items():
        mean = float(values_of.mean())
        error = float(values_of.std() / len(values_of) ** 0.5) if len(values_of) > 1 else 0.0
        values[metric] = {"mean": mean, "error": error, "all": values_of.tolist()}
        text += f" {metric} {mean:.3f} ± {error:.3f} "
    text += f" {seconds:8.4f} s/image"
    print(text + (f"   prototype {prototype[name]}" if name in prototype else ""), flush=True)
    return values


if __name__ == "__main__":
    sys.exit(main())
