"""How long `dmbp compare` takes: `python -m benchmarks.compare_time PHOTO --before SOURCE`.

Runs the command with all methods and the built-in model, in a new process each time; SOURCE is the
`src` folder of another version, with which runs alternate. The last lines compare RISE's map, as
`precision` makes it, with that of the model itself, which runs as it is, on the same masks.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.folder import OWN, run_command
from dmbp.attribution.rise import RISE
from dmbp.data import read_photo
from dmbp.linear import Question
from dmbp.models import load_model


class PlainRISE(RISE):
    """RISE with the model as it is."""

    def _fast_run(self, question: Question) -> None:  # noqa: ARG002
        return None


def correlation(one: Tensor, other: Tensor) -> float:
    """Return Pearson's correlation of two maps."""
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]).double())[0, 1])


def print_agreement(photo: Path, masks: int) -> None:
    """Print how RISE's maps correlate, and the seconds they take."""
    classifier = load_model("voc160")
    inputs = classifier.preprocessing.tensor(classifier.preprocessing.view(read_photo(photo)))
    target = int(classifier.module(inputs).argmax())
    found: dict[str, Tensor] = {}
    makers = {"plain": PlainRISE, "float32": RISE, "bfloat16": RISE}
    for name, maker in makers.items():
        precision = "bfloat16" if name == "bfloat16" else "float32"
        method = maker(classifier.module, masks=masks, activation="sigmoid", precision=precision)
        method.linearizer.linearize(inputs, target=target)
        started = time.perf_counter()
        found[name] = method.attribute(inputs, target=target)
        taken = time.perf_counter() - started
        agreed = correlation(found[name], found["plain"])
        print(f"RISE, {masks} masks, {name}: {taken:.1f} s, correlation {agreed:.6f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photo", type=Path)
    parser.add_argument("--before", type=Path, help="the sources of another version")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--masks", type=int, default=2000)
    options = parser.parse_args()
    sources = {"now": (OWN, []), "quick": (OWN, ["--quick"])}
    sources |= {"before": (options.before, [])} if options.before else {}
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as out:
        for _ in range(options.rounds):
            for name, (source, more) in sources.items():
                arguments = ("compare", str(options.photo), "--out", out, *more)
                taken, cpu = run_command(source, arguments)
                best[name] = min(best.get(name, taken), taken)
                print(f"{name}: {taken:.1f} s, {cpu:.1f} s of CPU", flush=True)
    if "before" in best:
        print(f"before / now: {best['before'] / best['now']:.2f}")
    print_agreement(options.photo, options.masks)


if __name__ == "__main__":
    sys.exit(main())
