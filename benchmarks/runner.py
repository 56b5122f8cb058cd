"""The overhead of `dmbp bench run`: `python -m benchmarks.runner throughput` or `memory`.

    throughput   cells per second, compared with a plain loop that calls the same method and metric
                 on the same photographs, at the batch size that suits it best
    memory       the driver's peak memory for a thousand and for fifty thousand cells

The plain loop finds its photographs decoded and on the device; the runner reads and decodes them,
makes keys and writes rows. Neither counts loading the model, nor the first batch, in which methods
capture and compile. `throughput` uses ResNet50's real weights and real photographs (`--shared`),
repeated under new names until there are `--count`.

`memory` measures only the driver; two worker processes do the computing. It runs the real runner
and the `gradient` method on a model of one convolution and photos of 16 × 16 pixels, one cell each.
"""

import argparse
import csv
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import torch
from PIL import Image
from tests.real import photographs, resnet50
from torch import nn

from dmbp.attribution import METHODS
from dmbp.bench.plan import Plan, Task, make_variant
from dmbp.bench.run.driver import RunOptions, Tally, run_plan
from dmbp.metrics import insertion
from dmbp.models import Classifier, Preprocessing

CELLS = (1_000, 50_000)


def throughput(options: argparse.Namespace) -> None:
    """Print each method's two rates and their ratio."""
    for method in options.methods:
        rates = {batch: _plain(method, batch, options) for batch in options.batches}
        best = max(rates, key=lambda batch: rates[batch])
        ran = _runner(method, best, options)
        print(
            f"{method}: plain loop {rates[best]:.4g} cells per second in batches of {best}, runner "
            f"{ran:.4g}, ratio {ran / rates[best]:.3f} on {options.device}",
            flush=True,
        )


def _plain(method: str, batch: int, options: argparse.Namespace) -> float:
    """Return the cells per second of a loop over photographs that are on the device already."""
    classifier = resnet50(options.shared)
    module = classifier.module.to(options.device).requires_grad_(False)
    inputs, target = photographs(options.shared, classifier.preprocessing, options.photos)
    inputs = inputs.to(options.device)
    explainer = METHODS[method](module)

    def once(start: int) -> None:
        which = [k % len(inputs) for k in range(start, start + batch)]
        maps = explainer.attribute(inputs[which], target=target[which].tolist())
        scored = insertion(
            module, inputs[which], target[which].tolist(), maps, internal_batch_size=256
        )
        scored.tolist()  # waits for the device

    once(0)
    started = time.perf_counter()
    for start in range(batch, options.count, batch):
        once(start)
    return (options.count - batch) / (time.perf_counter() - started)


def _runner(method: str, batch: int, options: argparse.Namespace) -> float:
    """Return the runner's cells per second, counted after its first batch."""
    with tempfile.TemporaryDirectory() as folder:
        moments: list[tuple[float, int]] = []

        def on_progress(tally: Tally) -> None:
            moments.append((time.perf_counter(), tally.done + tally.failed))

        plan = Plan((_photo_task(Path(folder), options),), (make_variant(method, {}),))
        tally = run_plan(
            plan, Path(folder) / "s.sqlite", RunOptions((options.device,), batch), on_progress
        )
    if tally.failed:
        sys.exit(f"{tally.failed} of {tally.total} cells failed")
    (began, first), (ended, last) = moments[0], moments[-1]
    return (last - first) / (ended - began)


def _photo_task(folder: Path, options: argparse.Namespace) -> Task:
    """Write a manifest that repeats the photographs under new names."""
    shared = options.shared.absolute()
    with (shared / "data" / "photos" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))[: options.photos]
    lines = ["file,label"]
    for k, row in enumerate(islice(cycle(rows), options.count)):
        name = f"{k:06d}.jpg"
        (folder / name).symlink_to(shared / "data" / "photos" / "images" / row["file"])
        lines.append(f"{name},{row['imagenet_class']}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    weights = shared / "models" / "resnet50_imagenet.safetensors"
    where = ("manifest", folder / "photos.csv")
    return Task("photos", *where, "resnet50-keras", weights=weights, fit="squeeze")


def memory(_: argparse.Namespace) -> None:
    """Print the driver's peak for each number of cells, each in a new process."""
    for cells in CELLS:
        with tempfile.TemporaryDirectory() as folder:
            _tiny_photos(Path(folder) / "photos", cells)
            command = [sys.executable, "-m", "benchmarks.runner", "drive", "--folder", folder]
            found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(found.strip(), flush=True)


def drive(options: argparse.Namespace) -> None:
    """Run a folder of tiny photos in two worker processes, with this process as the driver."""
    task = Task("tiny", "folder", options.folder / "photos", "benchmarks.runner:tiny", steps=2)
    devices = ("cpu", "cpu")
    tally = run_plan(
        Plan((task,), (make_variant("gradient", {}),)),
        options.folder / "s.sqlite",
        RunOptions(devices, batch=128),
    )
    print(f"{tally.done} cells, {tally.failed} failed: driver's peak {_peak():.0f} MiB")


def _peak() -> float:
    """Return this process's peak memory in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this system does not report a process's peak memory")


def _tiny_photos(root: Path, count: int) -> None:
    for kind in ("cat", "dog"):
        (root / kind).mkdir(parents=True)
    for index in range(count):
        path = root / ("cat", "dog")[index % 2] / f"{index:06d}.png"
        pixels = random.Random(index).randbytes(768)
        Image.frombytes("RGB", (16, 16), pixels).save(path, compress_level=1)


def tiny() -> Classifier:
    """Return a model of one convolution, with the same weights every time."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 144, 2))
    return Classifier("tiny", module.eval(), Preprocessing(resize=16, crop=16), ("cat", "dog"))


MEASURES: dict[str, Callable[[argparse.Namespace], None]] = {
    "throughput": throughput,
    "memory": memory,
    "drive": drive,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--methods", nargs="*", default=["gradient", "gradcam", "dmbp"])
    parser.add_argument("--batches", type=int, nargs="*", default=[16, 32, 64, 128])
    parser.add_argument("--count", type=int, default=1024, help="cells for each method")
    parser.add_argument("--photos", type=int, default=200, help="different photographs")
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    MEASURES[options.measure](options)


if __name__ == "__main__":
    sys.exit(main())
