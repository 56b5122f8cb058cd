"""How fast a folder of photos is explained: `python -m benchmarks.folder PHOTOS --before SOURCE`.

Runs `dmbp explain FOLDER --report` on the first photos of a folder, in a new process each time, and
prints its seconds, its CPU seconds, photos a second, and the most memory that any of its processes
took. SOURCE is the `src` folder of another version, with which runs alternate: the last line is the
ratio of both. With `--agreement` the pictures and the numbers of both are compared as well.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy
from PIL import Image

OWN = Path(__file__).parents[1] / "src"
WORTHS = ("worth_for", "worth_against")


def run_command(source: Path, arguments: Sequence[str]) -> tuple[float, float]:
    """Run a command of dmbp from these sources, and return its seconds and its CPU seconds."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    command = [sys.executable, "-m", "dmbp", *arguments]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    taken = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def link_photos(photos: Path, count: int, folder: Path) -> int:
    """Make a folder of links to the first photos of another, and return how many there are."""
    found = sorted(path for path in photos.iterdir() if path.suffix.lower() in (".jpg", ".png"))
    for path in found[:count]:
        (folder / path.name).symlink_to(path.resolve())
    return len(found[:count])


def print_agreement(one: Path, other: Path) -> None:
    """Print by how much pictures and numbers of two folders of results differ."""
    shares: list[float] = []
    errors: list[float] = []
    for record in sorted(one.glob("*.json")):
        pictures = [
            numpy.asarray(Image.open(folder / f"{record.stem}.png").convert("RGB"), dtype=float)
            for folder in (one, other)
        ]
        same_size = pictures[0].shape == pictures[1].shape
        shares.append(float((pictures[0] != pictures[1]).mean()) if same_size else 1.0)
        found, expected = (
            json.loads((folder / record.name).read_text())["targets"] for folder in (one, other)
        )
        for first, second in zip(found, expected, strict=True):
            for name in WORTHS:
                scale = max(abs(second[k]) for k in WORTHS) or 1.0
                errors.append(abs(first[name] - second[name]) / scale)
    print(
        f"{len(shares)} pictures: {100 * max(shares):.2f} % of the values differ in the worst, "
        f"{100 * float(numpy.mean(shares)):.3f} % on average; worths differ by {max(errors):.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path, help="a folder of photos")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--before", type=Path, help="the sources of another version")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--agreement", action="store_true")
    options = parser.parse_args()
    sources = {"now": OWN} | ({"before": options.before} if options.before else {})
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "photos"
        folder.mkdir()
        count = link_photos(options.photos, options.count, folder)
        for _ in range(options.rounds):
            for name, source in sources.items():
                out = str(Path(made) / name)
                arguments = ("explain", str(folder), "--report", "--out", out)
                taken, cpu = run_command(source, arguments)
                best[name] = min(best.get(name, taken), taken)
                peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
                print(
                    f"{name}: {taken:.1f} s for {count} photos, {count / taken:.2f} photos/s, "
                    f"{cpu:.1f} s of CPU; the largest process so far took {peak:.0f} MiB",
                    flush=True,
                )
        if "before" in best:
            print(f"throughput: {best['before'] / best['now']:.2f} times")
            if options.agreement:
                print_agreement(Path(made) / "now", Path(made) / "before")


if __name__ == "__main__":
    sys.exit(main())
