"""How long an explanation takes: `python -m benchmarks.speed`.

For every network and batch, in one run on the same images: a plain forward and input-gradient pass
of the model, one iteration of Algorithm 1 taken literally, of the reference engine and of the fast
one, and what a user would pick instead (Captum's integrated gradients with 50 steps, GradCAM).
Networks have random weights: the time does not depend on them. Prints a table, and JSON on request.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.literal import LiteralEngine
from dmbp.attribution import METHODS
from dmbp.decompose.initialisation import initial_logits
from dmbp.decompose.objective import OBJECTIVES
from dmbp.engine import ReferenceEngine, engine_for
from dmbp.linear import Linearizer
from dmbp.models.torchvision_import import import_torchvision

NETWORKS = ("resnet50", "vgg16", "squeezenet1_1", "mobilenet_v2", "densenet121")
LEARN = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}


def seconds(action: Callable[[], Any], device: str) -> float:
    """What one call takes."""
    _wait(device)
    started = time.perf_counter()
    action()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def medians(actions: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, float]:
    """The median of each action; all take turns, so that whatever else goes on meets all alike."""
    for action in actions.values():
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            times[name].append(seconds(action, device))
    return {name: sorted(taken)[len(taken) // 2] for name, taken in times.items()}


def measure(name: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each, for one network and batch."""
    torch.manual_seed(0)
    model: nn.Module = import_torchvision().models.get_model(name, weights=None)
    model = model.eval().to(options.device).requires_grad_(False)
    inputs = torch.randn(batch, 3, options.side, options.side, device=options.device)
    linearizer = Linearizer(model)
    row: dict[str, Any] = {"network": name, "batch": batch, "side": options.side}
    row["capture"] = seconds(lambda: linearizer.linearize(inputs, target=3), options.device)
    net = linearizer.linearize(inputs, target=3)
    logits = initial_logits(net)
    row["build"] = seconds(lambda: engine_for(net, logits, **LEARN), options.device)

    def plain() -> Tensor:
        x = inputs.clone().requires_grad_()
        return torch.autograd.grad(model(x)[:, 3].sum(), x)[0]

    engines: dict[str, Callable[[], Any]] = {
        "fast step": engine_for(net, logits, **LEARN).step,
        "reference step": ReferenceEngine(net, logits, **LEARN).step,
    }
    if options.literal:
        engines["literal step"] = LiteralEngine(net, logits, **LEARN).step
    row |= medians({"plain": plain, **engines}, options.device, options.rounds)
    if options.methods:
        methods: dict[str, Callable[[], Any]] = {
            method: lambda method=method: METHODS[method](model).attribute(inputs, target=3)
            for method in ("integrated_gradients", "gradcam", "dmbp")
        }
        row |= medians(methods, options.device, 1)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=NETWORKS)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-literal", dest="literal", action="store_false")
    parser.add_argument("--methods", action="store_true", help="whole methods too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.networks:
        for batch in options.batches:
            row = measure(name, batch, options)
            rows.append(row)
            text = f"{name:14s} batch {batch:3d}"
            for key in ("plain", "fast step", "reference step", "literal step"):
                if key in row:
                    text += f"  {key} {row[key] * 1e3:8.1f} ms"
            text += f"  fast/plain {row['fast step'] / row['plain']:.2f}"
            text += f"  reference/fast {row['reference step'] / row['fast step']:.2f}"
            if "literal step" in row:
                text += f"  literal/fast {row['literal step'] / row['fast step']:.1f}"
            print(text, flush=True)
            if options.methods:
                each = ("integrated_gradients", "gradcam", "dmbp")
                print("   " + "  ".join(f"{k} {row[k] / batch:.3f} s/image" for k in each))
            if options.json is not None:
                options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    sys.exit(main())
