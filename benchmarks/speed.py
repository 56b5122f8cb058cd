"""How long an explanation takes: `python -m benchmarks.speed`.

For every network and batch size, on the same images in one run, this times

- whole explanations by DMBP: the default, which tests its colours on the model, and those that
  only learn masks, with 50 and 200 iterations;
- one iteration of our engine, of the autograd engine and of Algorithm 1 as the paper prints it;
- a plain forward and input-gradient pass of the model;
- two alternatives: Captum's integrated gradients with 50 steps (in PyTorch's default precision) and
  GradCAM.

On a GPU, calls are timed from the third on, which replays a recording. It also prints the peak
memory of a call that is not recorded, the first call's extra cost, operations and bytes a second
next to what the device reaches in a plain matrix product and copy, and how the cost grows with
batch size, iterations and image size. Networks have random weights, on which the time of learning
does not depend. The default tries further details if the model does not confirm a map, as on random
weights: `--shared FOLDER` takes ResNet50's and VGG16's real weights, and photographs.

An iteration of one image counts as three passes of the network (two streams forward, one backward)
and as 36 bytes for each masked element in 16 bits, 72 in 32 bits: activations are written and read
by the convolution and by its site, logits are read twice and written once, RMSProp's squares are
read and written.
"""

import argparse
import gc
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from captum.attr import IntegratedGradients
from tests.literal import LiteralEngine
from tests.real import photographs, resnet50, vgg16_voc
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dmbp.attribution import METHODS
from dmbp.attribution.dmbp import DMBP
from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, engine_for, plan_for
from dmbp.linear import Linearizer
from dmbp.models.torchvision_models import import_torchvision
from dmbp.precision import full_precision

NETWORKS = ("resnet50", "vgg16", "squeezenet1_1", "mobilenet_v2", "densenet121")
LEARN = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}
ITERATIONS = 5
"""Iterations that our engine runs per timing on a GPU, where it needs no call for each of them."""

REAL = {"resnet50": resnet50, "vgg16": vgg16_voc}

NORMALISED = 16
"""Images from which batch norms of networks with random weights take their statistics."""

STEPS_AT_ONCE = 256
"""Images that Captum's integrated gradients runs at once; this size suits it on both devices."""


@dataclass(frozen=True)
class DevicePeak:
    """Bytes a second that a large copy moves, and operations a second of a large product."""

    bytes: float
    flops: float


def device_peak(device: str) -> DevicePeak:
    """Measure a device's peak: in bfloat16 on a GPU, in single precision on a CPU."""
    on_gpu = device.startswith("cuda")
    size = 1 << (31 if on_gpu else 28)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = least_seconds(lambda: target.copy_(source), device)
    side = 8192 if on_gpu else 2048
    dtype = torch.bfloat16 if on_gpu else torch.float32
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = least_seconds(lambda: a @ b, device)
    return DevicePeak(2 * size / copy, 2 * side**3 / product)


def least_seconds(action: Callable[[], Any], device: str, rounds: int = 5) -> float:
    """Return the least time of several calls, after one warm-up."""
    action()
    return min(seconds(action, device) for _ in range(rounds))


def seconds(action: Callable[[], Any], device: str) -> float:
    """Return the time of one call."""
    synchronise(device)
    started = time.perf_counter()
    action()
    synchronise(device)
    return time.perf_counter() - started


def synchronise(device: str) -> None:
    """Wait until the device has finished its work."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def medians(actions: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, float]:
    """Return each action's median time; actions alternate, so other load affects all equally."""
    for action in actions.values():
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            times[name].append(seconds(action, device))
    return {name: sorted(taken)[len(taken) // 2] for name, taken in times.items()}


def network(name: str, device: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = import_torchvision().models.get_model(name, weights=None)
    model = model.to(device).requires_grad_(False)
    for module in model.modules():  # batch norms of a trained network know what they normalise
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean over all batches
    with torch.no_grad():
        model.train()(torch.randn(NORMALISED, 3, 224, 224, device=device))
    return model.eval()


def peak(action: Callable[[], Any], device: str) -> float | None:
    """Return the GiB that a call adds at its peak; None on a CPU, where nothing counts them."""
    if not device.startswith("cuda"):
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    action()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def steps(model: nn.Module, inputs: Tensor, options: argparse.Namespace) -> dict[str, float]:
    """Time one iteration of each engine, and a plain pass."""
    plan = plan_for(Linearizer(model).linearize(inputs, target=3))
    logits = initial_logits(plan)

    def plain() -> Tensor:
        x = inputs.clone().requires_grad_()
        return torch.autograd.grad(model(x)[:, 3].sum(), x)[0]

    engine = engine_for(plan, logits, **LEARN)
    count = ITERATIONS if options.device.startswith("cuda") else 1
    engines: dict[str, Callable[[], Any]] = {
        "plain pass": plain,
        "iteration": partial(engine.learn, count),
        "autograd iteration": AutogradEngine(plan, logits, **LEARN).step,
    }
    if len(inputs) <= options.literal:
        engines["literal iteration"] = LiteralEngine(plan, logits, **LEARN).step
    with full_precision():
        found = medians(engines, options.device, options.rounds)
    return found | {"iteration": found["iteration"] / count}


def whole(model: nn.Module, inputs: Tensor, options: argparse.Namespace) -> dict[str, Any]:
    """Time whole explanations of a batch, the first call separately, and measure peak memory.

    On a GPU one method is timed after the other: their recordings may not fit into memory together.
    """
    device = options.device
    linearizer = Linearizer(model)
    with torch.no_grad():
        target = model(inputs).argmax(1).tolist()

    def dmbp(**settings: Any) -> Callable[[], Any]:
        explainer = DMBP(model, **settings)
        explainer.linearizer = linearizer
        return lambda: explainer.explain(inputs, target=target, internal_batch_size=len(inputs))

    def integrated_gradients() -> Callable[[], Any]:
        captum, most = IntegratedGradients(model), max(STEPS_AT_ONCE, len(inputs))
        return lambda: captum.attribute(inputs, target=target, n_steps=50, internal_batch_size=most)

    def gradcam() -> Callable[[], Any]:
        method = METHODS["gradcam"](model)
        return lambda: method.attribute(inputs, target=target)

    makers: dict[str, Callable[[], Callable[[], Any]]] = {
        "dmbp 50": partial(dmbp, preset="fast", iterations=50, learning_rate=0.05),
        "dmbp 200": partial(dmbp, preset="fast", iterations=200, learning_rate=0.01),
        "default": dmbp,
        "integrated gradients": integrated_gradients,
        "gradcam": gradcam,
    }
    calls: dict[str, Callable[[], Any]] = {}
    row: dict[str, Any] = {}
    for name, make in makers.items():
        calls[name] = make()
        first = seconds(calls[name], device)
        if name == "dmbp 50":
            row["first call"], row["second call"] = first, seconds(calls[name], device)
            row["memory"] = peak(dmbp(preset="fast", iterations=5), device)
        elif name != "gradcam":
            calls[name]()  # on a GPU the second call makes a recording, which later calls replay
        if device.startswith("cuda"):
            row |= medians({name: calls.pop(name)}, device, options.method_rounds)
            gc.collect()  # frees the recording
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    return row | medians(calls, device, options.method_rounds)


def measure(name: str, batch: int, side: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything for one network, batch size and image size."""
    if options.shared is not None and name in REAL:
        classifier = REAL[name](options.shared)
        model = classifier.module.eval().to(options.device).requires_grad_(False)
        inputs = photographs(options.shared, classifier.preprocessing, batch)[0].to(options.device)
    else:
        model = network(name, options.device)
        inputs = torch.randn(batch, 3, side, side, device=options.device)
    row: dict[str, Any] = {"network": name, "batch": batch, "side": side}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(inputs[:1])
    row["flops"] = 3 * counter.get_total_flops()
    row["elements"] = Linearizer(model).count_mask_elements(inputs[:1])
    if options.methods:
        row |= whole(model, inputs, options)
    if options.steps:
        row |= steps(model, inputs, options)
    return row


def largest(name: str, options: argparse.Namespace) -> str:
    """Find the largest batch that fits by doubling; time ten iterations of it and of half of it."""
    explainer = DMBP(network(name, options.device), preset="fast", iterations=10)
    batch, taken = 64, [math.nan]
    with warnings.catch_warnings(), suppress(UserWarning):
        warnings.filterwarnings("error", message=".* do not fit into memory")
        while True:
            inputs = torch.randn(batch, 3, 224, 224, device=options.device)
            action = partial(explainer.explain, inputs, target=3, internal_batch_size=batch)
            action()
            taken.append(seconds(action, options.device) / batch)
            batch *= 2
    return (
        f"{name}: {batch // 2} images fit at once; ten iterations take {taken[-1]:.4f} s an image, "
        f"{taken[-2]:.4f} s in half of that batch"
    )


def described(row: dict[str, Any], top: DevicePeak, device: str) -> list[str]:
    """Return the lines to print for a row."""
    batch = row["batch"]
    lines = [f"{row['network']}, batch {batch}, side {row['side']}"]
    if "dmbp 50" in row:
        names = ("default", "dmbp 50", "dmbp 200", "integrated gradients", "gradcam")
        lines.append("seconds per image: " + ", ".join(f"{n} {row[n] / batch:.4f}" for n in names))
        lines.append(
            f"the default costs {row['default'] / row['dmbp 50']:.2f} times 50 iterations, and "
            f"{row['default'] / row['integrated gradients']:.2f} times integrated gradients"
        )
        memory = "" if row["memory"] is None else f", peak {row['memory'] / batch:.3f} GiB an image"
        lines.append(
            f"first call {row['first call']:.2f} s, second {row['second call']:.2f} s{memory}; "
            f"200 iterations cost {row['dmbp 200'] / row['dmbp 50']:.2f} times 50, and "
            f"{(row['dmbp 200'] - row['dmbp 50']) * 4 / 3 / batch:.4f} s an image by themselves"
        )
    if "iteration" in row:
        once = row["iteration"]
        names = ("iteration", "plain pass", "autograd iteration", "literal iteration")
        given = [n for n in names if n in row]
        lines.append("milliseconds: " + ", ".join(f"{n} {row[n] * 1e3:.2f}" for n in given))
        each = [f"iteration / plain pass {once / row['plain pass']:.2f}"]
        each += [f"{n} / iteration {row[n] / once:.1f}" for n in given[2:]]
        flops = row["flops"] * batch / once
        moved = (36 if device.startswith("cuda") else 72) * row["elements"] * batch / once
        each.append(
            f"{flops / 1e12:.3g} TFLOP/s ({flops / top.flops:.0%} of {top.flops / 1e12:.3g})"
        )
        each.append(f"{moved / 1e12:.3g} TB/s ({moved / top.bytes:.0%} of {top.bytes / 1e12:.3g})")
        lines.append(", ".join(each))
    return lines


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """Describe how an explanation's cost grows with batch size and image size."""
    lines: list[str] = []
    for name in dict.fromkeys(row["network"] for row in rows):
        of = {(r["batch"], r["side"]): r for r in rows if r["network"] == name and "dmbp 200" in r}
        sides = sorted({side for _, side in of})
        batches = sorted({batch for batch, side in of if side == sides[0]}) if sides else []
        for small, large in pairwise(batches):
            more = of[large, sides[0]]["dmbp 200"] / of[small, sides[0]]["dmbp 200"]
            lines.append(
                f"{name}: {large / small:g} times the batch ({large}), {more:.2f} times the time"
            )
        for batch, side in of:
            if side != sides[0] and (batch, sides[0]) in of:
                more = of[batch, side]["dmbp 200"] / of[batch, sides[0]]["dmbp 200"]
                lines.append(f"{name}: side {side} at batch {batch}, {more:.2f} times the time")
    return lines


def consecutive(options: argparse.Namespace, calls: int = 20) -> list[int]:
    """Return the bytes allocated after each of several calls of the first network."""
    gc.collect()  # frees what was measured before
    model = network(options.networks[0], options.device)
    inputs = torch.randn(options.batches[0], 3, 224, 224, device=options.device)
    explainer = DMBP(model, iterations=5)
    allocated: list[int] = []
    for _ in range(calls):
        explainer.explain(inputs, target=3)
        allocated.append(_allocated(options.device))
    return allocated


def _allocated(device: str) -> int:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--batches", type=int, nargs="*")
    parser.add_argument("--sides", type=int, nargs="*", default=[224])
    parser.add_argument("--rounds", type=int, default=5, help="of single iterations")
    parser.add_argument("--method-rounds", type=int, default=1, help="of whole explanations")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--literal", type=int, help="largest batch for the literal algorithm")
    parser.add_argument("--shared", type=Path, help="the folder with real weights and photographs")
    parser.add_argument("--no-steps", dest="steps", action="store_false")
    parser.add_argument("--no-methods", dest="methods", action="store_false")
    parser.add_argument("--largest", action="store_true", help="also the largest batch")
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    options.batches = options.batches or ([1, 8, 64] if on_gpu else [1, 4])
    options.literal = (8 if on_gpu else 4) if options.literal is None else options.literal
    top = device_peak(options.device)
    print(f"copy {top.bytes / 1e12:.3g} TB/s, product {top.flops / 1e12:.3g} TFLOP/s", flush=True)
    rows: list[dict[str, Any]] = []
    for name in options.networks:
        for side in options.sides:
            for batch in options.batches:
                rows.append(measure(name, batch, side, options))
                print("\n    ".join(described(rows[-1], top, options.device)), flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps(rows, indent=1))
    print("\n".join(growth(rows)))
    if options.largest:
        for name in options.networks:
            print(largest(name, options), flush=True)
    if options.memory:
        after = consecutive(options)
        print(f"bytes allocated after the 2nd and the 20th of 20 calls: {after[1]}, {after[-1]}")


if __name__ == "__main__":
    sys.exit(main())
