"""How long a first call takes: `python -m benchmarks.first_call`.

Runs `dmbp explain` on one photo, each time in a new process, alternating between the autograd
engine, our engine and, on a GPU, our engine with no kernel compiled yet. Prints the seconds of each
process and of the explanation within it. Weights and photo are random, which does not change the
time. The first process of each kind reads everything from the disk and is not counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MARKER = "seconds of the explanation:"


def explain(autograd: bool, arguments: list[str]) -> None:
    """Run the command line in this process and print how long the explanation took."""
    import torch

    from dmbp.attribution import dmbp as method
    from dmbp.cli import app
    from dmbp.decompose import decomposer, learn
    from dmbp.engine import AutogradEngine, Engine

    if autograd:

        def engine_for(*given: Any, precision: str, **settings: Any) -> Engine:
            assert precision == "auto"
            return AutogradEngine(*given, **settings)

        def compile_nothing(*_: Any, **__: Any) -> None: ...

        learn.engine_for = engine_for
        decomposer.prepare = method.prepare = compile_nothing
    run = method.DMBP.explain

    def timed(*given: Any, **settings: Any) -> Any:
        start = time.perf_counter()
        found = run(*given, **settings)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        print(MARKER, time.perf_counter() - start)
        return found

    method.DMBP.explain = timed  # pyright: ignore[reportAttributeAccessIssue]
    sys.argv = ["dmbp", "explain", *arguments]
    app()


def measure(kind: str, arguments: list[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Return the seconds of a process and of the explanation within it."""
    command = [sys.executable, "-m", "benchmarks.first_call", "--as", kind, *arguments]
    start = time.perf_counter()
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    whole = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    line = next(line for line in done.stdout.splitlines() if line.startswith(MARKER))
    return {"process": whole, "explanation": float(line.removeprefix(MARKER))}


def main() -> None:
    import torch
    from PIL import Image
    from safetensors.torch import save_file

    from benchmarks.speed import network

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights, photo = folder / "weights.safetensors", folder / "photo.png"
        state = network(options.network, "cpu").state_dict()
        save_file({key: value.contiguous() for key, value in state.items()}, weights)
        Image.effect_noise((400, 300), 60).convert("RGB").save(photo)
        given = [str(photo), "--model", options.network, "--weights", str(weights)]
        given += ["--device", options.device, "--out", str(folder / "out")]
        kept = {"TRITON_CACHE_DIR": str(folder / "kept")}
        measure("autograd", given, kept)
        measure("ours", given, kept)
        for round in range(options.rounds):
            kinds = {"autograd engine": ("autograd", kept), "ours": ("ours", kept)}
            if options.device.startswith("cuda"):
                new = {"TRITON_CACHE_DIR": str(folder / f"new-{round}")}
                kinds["ours, kernels not compiled yet"] = ("ours", new)
            for label, (kind, environment) in kinds.items():
                seconds = measure(kind, given, environment)
                found.setdefault(label, []).append(seconds)
                print(label, *(f"{n} {s:.1f} s" for n, s in seconds.items()), sep=", ", flush=True)
    print(f"\n| {options.network}, {options.device} | whole process, s | explanation, s |")
    print("| --- | --- | --- |")
    for label, all_seconds in found.items():
        columns = (" ".join(f"{s[n]:.1f}" for s in all_seconds) for n in all_seconds[0])
        print(f"| {label} | {' | '.join(columns)} |")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as"]:
        explain(sys.argv[2] == "autograd", sys.argv[3:])
    else:
        main()
