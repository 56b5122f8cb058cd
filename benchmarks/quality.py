"""Every method's scores on real networks: `python -m benchmarks.quality voc160`.

    voc160         the built-in model, every (image, class) pair of its first val images; also cIM
    photos         ResNet50, 200 photographs, target = true class
    voc-resnet50   ResNet50 with a VOC head, every pair of the VOC images; also cIM and pointing
    voc-vgg16      the same for VGG16 with a VOC head

Prints a row for each method, with the mean and standard error of every score and the seconds per
map; `docs/benchmarks/quality.md` explains the columns. `--split tune` takes the even-numbered
images and `--split report` the odd ones, so that settings can be chosen on other images than
those reported.

Only voc160 is small enough for a CPU. All tasks need the folder of photographs (`--shared`), and
the others its weights.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch
from tests.real import (
    Pairs,
    photographs,
    resnet50,
    resnet50_voc,
    vgg16_voc,
    voc160,
    voc160_pairs,
    voc_pairs,
)
from torch import Tensor, nn

from dmbp.attribution import METHODS, parse_method_names
from dmbp.attribution.settings import parse_settings
from dmbp.engine import fast_forward
from dmbp.errors import DMBPError
from dmbp.linear import Linearizer
from dmbp.metrics import complementary_insertion, deletion, insertion, pointing_game, removal
from dmbp.metrics.removal import Substrate
from dmbp.models import Classifier, Preprocessing

SPLITS = {"all": (0, 1), "tune": (0,), "report": (1,)}
"""The remainders of an image's number, divided by two."""

SUBSTRATES = ("blur", "zero", "mean")
"""What insertion and deletion replace pixels with; a column without a name is "blur"."""


@dataclass(frozen=True)
class Task:
    """A network and questions; `image` is the number of each question's image.

    `others` has the other classes of each image, and `boxes` those of the class asked about.
    """

    classifier: Classifier
    inputs: Tensor
    target: list[int]
    image: list[int]
    others: list[list[int]] | None = None
    boxes: list[Any] | None = None

    def pick(self, questions: Sequence[int], device: str) -> "Task":
        """Return some of the questions, on a device."""
        return Task(
            self.classifier,
            self.inputs[list(questions)].to(device),
            [self.target[k] for k in questions],
            [self.image[k] for k in questions],
            self.others and [self.others[k] for k in questions],
            self.boxes and [self.boxes[k] for k in questions],
        )


def photos(shared: Path, count: int) -> Task:
    """Return one question for each photograph."""
    classifier = resnet50(shared)
    inputs, target = photographs(shared, classifier.preprocessing, count)
    return Task(classifier, inputs, target.tolist(), list(range(len(target))))


def pairs_of(
    make: Callable[[Path], Classifier], read: Callable[[Path, Preprocessing, int], Pairs]
) -> Callable[[Path, int], Task]:
    """Return a function that reads one question for each class of each image."""

    def task(shared: Path, count: int) -> Task:
        classifier = make(shared)
        pairs = read(shared, classifier.preprocessing, count)
        target = pairs.target.tolist()
        return Task(classifier, pairs.inputs, target, pairs.image, pairs.others, pairs.boxes)

    return task


TASKS: dict[str, Callable[[Path, int], Task]] = {
    "voc160": pairs_of(voc160, voc160_pairs),
    "photos": photos,
    "voc-resnet50": pairs_of(resnet50_voc, voc_pairs),
    "voc-vgg16": pairs_of(vgg16_voc, voc_pairs),
}


def noise(inputs: Tensor, _mask: Tensor) -> Tensor:
    """Return Gaussian noise with the mean and deviation of each channel of each image."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(inputs.shape[1:], generator=generator).to(inputs)
    mean, deviation = (
        statistic.view(*inputs.shape[:2], 1, 1)
        for statistic in (inputs.flatten(2).mean(2), inputs.flatten(2).std(2))
    )
    return mean + deviation * drawn


def inpainting(preprocessing: Preprocessing) -> Substrate:
    """Return a substrate that fills removed pixels from their surroundings (Telea, radius 3)."""
    import cv2  # not a dependency of dmbp

    def fill(inputs: Tensor, mask: Tensor) -> Tensor:
        mean, std = (
            torch.tensor(values).view(3, 1, 1).to(inputs)
            for values in (preprocessing.mean, preprocessing.std)
        )
        pictures = ((inputs * std + mean) * 255).round().clamp(0, 255).byte()
        with ThreadPoolExecutor() as pool:
            filled = list(
                pool.map(
                    lambda picture, removed: cv2.inpaint(picture, removed, 3, cv2.INPAINT_TELEA),
                    numpy.ascontiguousarray(pictures.permute(0, 2, 3, 1).cpu().numpy()),
                    mask[:, 0].byte().cpu().numpy(),
                )
            )
        pixels = torch.from_numpy(numpy.stack(filled)).permute(0, 3, 1, 2).to(inputs)
        return (pixels / 255 - mean) / std

    return fill


REMOVALS: dict[str, Callable[[Preprocessing], Substrate]] = {
    "blur": lambda _: "blur",
    "mean": lambda _: "mean",
    "zero": lambda _: "zero",
    "noise": lambda _: noise,
    "inpaint": inpainting,
}
"""What the checks of colours replace pixels with. The default confirms its colours by the blur, the
mean and noise; no method knows inpainting."""

UNUSED_BY_METHODS = "inpaint" if find_spec("cv2") else "noise"


class FastModel(nn.Module):
    """Runs a model through our fast forward pass, in 16 bits on a GPU."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        super().__init__()
        linearizer = Linearizer(model)
        linearizer.linearize(example, target=0)
        captured = linearizer.captured_graph(example)
        forward = None if captured is None else fast_forward(captured, example)
        self._run = forward or model
        self.register_buffer("like", example[:0])  # tells methods where the model is

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs."""
        return self._run(inputs)


def maps(
    name: str, task: Task, fast: nn.Module, options: argparse.Namespace
) -> Iterator[tuple[str, Tensor, float]]:
    """Yield a method's maps, and GradCAM's with signs: label, maps and seconds per map.

    `fast` runs RISE's masked images.
    """
    row = METHODS[name]
    settings = dict(options.settings.get(name, {}))
    if row.probabilistic:
        settings["activation"] = task.classifier.activation
    variants = {name: settings}
    if name == "gradcam":
        variants["gradcam signed"] = {**settings, "signed": True}
    batch = options.sampling_batch if row.probabilistic else options.batch
    for called, own in variants.items():
        method = row(fast if name == "rise" else task.classifier.module, **own)
        started = clock(task.inputs)
        found = method.attribute(task.inputs, target=task.target, internal_batch_size=batch)
        yield called, found.float(), (clock(task.inputs) - started) / len(task.inputs)


def clock(like: Tensor) -> float:
    """Return the seconds, once the device has finished."""
    if like.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def columns(task: Task, options: argparse.Namespace) -> list[str]:
    """Return the names of the scores that `scores` finds, in the order of the table."""
    curves = [label(kind, s) for kind in ("IM", "deletion") for s in options.substrates]
    several = ["cIM"] * (task.others is not None) + ["pointing"] * (task.boxes is not None)
    checks = [label(kind, r) for kind in ("red true", "blue true") for r in options.removals]
    return [*curves, *several, "blue claims", *checks]


def label(kind: str, substrate: str) -> str:
    """Return a score's name; that of the blurred substrate goes without saying."""
    return kind if substrate == "blur" else f"{kind} {substrate}"


def scores(
    attribution: Tensor, task: Task, module: nn.Module, options: argparse.Namespace
) -> dict[str, Tensor]:
    """Return every question's scores by column, NaN where a question has none.

    `module` runs the long curves; it is the task's network, or a fast forward pass of it.
    """
    common: dict[str, Any] = {
        "activation": task.classifier.activation,
        "internal_batch_size": options.sampling_batch,
    }
    about = (task.inputs, task.target, attribution)
    found: dict[str, Tensor] = {}
    for substrate in options.substrates:
        for kind, metric in (("IM", insertion), ("deletion", deletion)):
            found[label(kind, substrate)] = metric(module, *about, substrate=substrate, **common)
    for name in options.removals:
        substrate = REMOVALS[name](task.classifier.preprocessing)
        # In single precision: a few passes only, and 16 bits would round small changes away.
        removed = removal(task.classifier.module, *about, substrate=substrate, **common)
        found[label("red true", name)] = removed.red_true
        found[label("blue true", name)] = removed.blue_true
        found["blue claims"] = removed.claims_blue
    if task.others is not None:
        found["cIM"] = torch.full((len(task.target),), torch.nan)
        if several := [k for k, others in enumerate(task.others) if others]:
            found["cIM"][several] = complementary_insertion(
                module,
                task.inputs[several],
                [task.others[k] for k in several],
                attribution[several],
                **common,
            ).cpu()
    if task.boxes is not None:
        found["pointing"] = pointing_game(attribution.cpu(), task.boxes)
    return {name: values.double().cpu() for name, values in found.items()}


def summary(values: Tensor) -> dict[str, Any]:
    """Return the mean and its standard error over the questions that have a score."""
    scored = values[~values.isnan()]
    count = len(scored)
    return {
        "mean": float(scored.mean()) if count else None,
        "error": float(scored.std() / count**0.5) if count > 1 else None,
        "count": count,
        "all": [None if math.isnan(value) else value for value in values.tolist()],
    }


WIDTH = len("0.000 ± 0.000")


def entry(result: dict[str, Any]) -> str:
    """Return a mean and its error as text."""
    if result["mean"] is None:
        return "–"
    error = "" if result["error"] is None else f" ± {result['error']:.3f}"
    return f"{result['mean']:.3f}{error}"


def line(name: str, entries: dict[str, str], seconds: str) -> str:
    """Return a line of the table, aligned with the others."""
    cells = [f"{text:>{max(WIDTH, len(column))}s}" for column, text in entries.items()]
    return "  ".join([f"{name:20s}", *cells, f"{seconds:>9s}"])


def listed(text: str, known: Sequence[str]) -> list[str]:
    """Return the names in a comma-separated list."""
    names = text.split(",")
    if unknown := sorted(set(names) - set(known)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(known)}")
    return names


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--set", action="append", default=[], metavar="METHOD.NAME=VALUE")
    parser.add_argument("--count", type=int, default=200, help="use the first images")
    parser.add_argument("--pairs", type=int, help="use only the first (image, class) pairs of them")
    parser.add_argument("--split", choices=SPLITS, default="all")
    parser.add_argument(
        "--substrates", type=lambda text: listed(text, SUBSTRATES), default=list(SUBSTRATES)
    )
    parser.add_argument(
        "--removals",
        type=lambda text: listed(text, list(REMOVALS)),
        default=["blur", "mean", UNUSED_BY_METHODS],
    )
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sampling-batch", type=int, help="for RISE and scores")
    parser.add_argument(
        "--fast", action="store_true", help="curves and RISE by the fast forward pass, in 16 bits"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.sampling_batch = options.sampling_batch or (64 if options.device == "cpu" else 512)
    return options


def main() -> None:
    options = parse_options()
    names = parse_method_names(options.methods)
    options.settings = parse_settings(options.set, names)
    task = TASKS[options.task](options.shared, options.count)
    module = task.classifier.module.to(options.device)
    questions = range(len(task.target))[: options.pairs]
    split = [k for k in questions if task.image[k] % 2 in SPLITS[options.split]]
    task = task.pick(split, options.device)
    fast = FastModel(module, task.inputs[:2]).eval() if options.fast else module
    about = {"task": options.task, "split": options.split, "images": task.image}
    print(
        f"{options.task}, {options.split}: {len(split)} questions on {len(set(task.image))} images"
    )
    shown = columns(task, options)
    print(line("", {name: name for name in shown}, "s per map"), flush=True)
    results: dict[str, Any] = {}
    for name in names:
        try:
            for called, attribution, seconds in maps(name, task, fast, options):
                found = scores(attribution, task, fast, options)
                results[called] = {c: summary(found[c]) for c in shown} | {"seconds": seconds}
                entries = {column: entry(results[called][column]) for column in shown}
                print(line(called, entries, f"{seconds:.4f}"), flush=True)
        except DMBPError as error:  # one method that cannot run should not end a run of hours
            print(f"{name}: left out: {error}", flush=True)
        if options.json is not None:
            text = json.dumps({**about, "methods": results}, indent=1, ensure_ascii=False)
            options.json.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
