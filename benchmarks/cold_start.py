"""How long a person waits for the first picture: `python -m benchmarks.cold_start`.

Runs whole processes and prints the seconds of each: `dmbp --help`, the import of `dmbp.DMBP`, and
`dmbp explain` with the built-in model and with ResNet50, with captured graphs kept in a fresh
folder (a first process, then later ones) and with `--no-cache`. `--other SRC`, the `src` folder of
another checkout, runs its commands in turn with ours, so that other load affects both alike.
ResNet50's weights are random, which makes it try more details than a trained one would, unless
`--shared FOLDER` has them.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

SOURCE = Path(__file__).parent.parent / "src"
IMPORT = [sys.executable, "-c", "import dmbp; dmbp.DMBP"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dmbp", *arguments]


def seconds(arguments: Sequence[str], source: Path, cache: Path) -> float:
    """Run a process with the package in `source` and return how long it took."""
    environment = {**os.environ, "PYTHONPATH": str(source), "DMBP_CACHE": str(cache)}
    started = time.perf_counter()
    subprocess.run(arguments, env=environment, check=True, capture_output=True)
    return time.perf_counter() - started


def measure(
    name: str, arguments: Sequence[str], sources: dict[str, Path], folder: Path, runs: int
) -> None:
    """Print the first run and the median of later ones for each checkout, and their ratio."""
    found: dict[str, list[float]] = {label: [] for label in sources}
    for _ in range(runs + 1):
        for label, source in sources.items():
            found[label].append(seconds(arguments, source, folder / f"{label}-{name}"))
    medians = {label: statistics.median(times[1:]) for label, times in found.items()}
    cells = [
        f"{label}: first {times[0]:.2f}, then {', '.join(f'{k:.2f}' for k in times[1:])} s"
        for label, times in found.items()
    ]
    if len(medians) > 1:
        cells.append(f"ratio of the medians {medians['this'] / medians['other']:.2f}")
    print(f"{name}: {'; '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path, help="the src folder of another checkout")
    parser.add_argument("--shared", type=Path, help="the folder with real weights")
    parser.add_argument("--photo", type=Path, help="a photo; default: random pixels")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    sources = {"this": SOURCE} | ({} if options.other is None else {"other": options.other})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photo = options.photo or folder / "photo.png"
        if options.photo is None:
            pixels = torch.randint(256, (240, 320, 3), dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(photo)
        explain = command("explain", str(photo), "--out", str(folder / "out"))
        explain += ["--device", options.device]
        weights = folder / "resnet50.pth"
        if options.shared is not None:
            weights = options.shared / "models" / "resnet50_imagenet.safetensors"
        else:
            from dmbp.models.torchvision_models import import_torchvision

            model = import_torchvision().models.resnet50(weights=None)
            torch.save(model.state_dict(), weights)
        resnet = [*explain, "--model", "resnet50", "--weights", str(weights)]
        cases = {
            "help": command("--help"),
            "import": IMPORT,
            "explain": explain,
            "explain-resnet50": resnet,
        }
        for case, arguments in cases.items():
            measure(case, arguments, sources, folder, options.runs)
        ours = {"this": SOURCE}
        measure("explain-resnet50-no-cache", [*resnet, "--no-cache"], ours, folder, options.runs)


if __name__ == "__main__":
    main()
