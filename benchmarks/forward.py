"""How fast models run on many images: `python -m benchmarks.forward --shared ../shared`.

For every network and chunk size, this prints milliseconds per image

- of the model itself in float32 (on a GPU also in TF32), as methods ran it until now;
- of the fast forward pass (`dmbp.engine.forward`) in its variants: on a GPU in float16 and
  bfloat16, with and without cuDNN's fused convolutions, with and without CUDA graphs; on a CPU in
  float32, and in bfloat16 if it has instructions for that;

and the largest relative error of the outputs, the time to build the forward pass and its peak
memory. Variants alternate, and the least of several times counts, because other programs may use
the machine. The built-in model has its own weights; ResNet50 and VGG16 have real weights from the
shared folder, or random ones without it. `--cudnn-benchmark` lets cuDNN time its kernels instead of
guessing the fastest.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.speed import REAL, network, peak, seconds
from dmbp.engine.forward.forward_pass import ForwardPass, fast_forward
from dmbp.linear import Linearizer
from dmbp.models import load_model
from dmbp.precision import reduced_precision, relative_error

NETWORKS = ("voc160", "resnet50", "vgg16", "mobilenet_v2", "densenet121", "vit_b_16")
SIDES = {"voc160": 160}


def load(name: str, options: argparse.Namespace) -> nn.Module:
    """Return a network with real weights if there are any, else with random ones."""
    if name == "voc160":
        module = load_model("voc160").module
    elif name in REAL and options.shared is not None:
        module = REAL[name](options.shared).module
    else:
        return network(name, options.device)
    return module.eval().to(options.device).requires_grad_(False)


def variants(name: str, linearizer: Linearizer, example: Tensor) -> dict[str, ForwardPass]:
    """Build the forward pass in every variant, and print how long each takes."""
    captured = linearizer.captured_graph(example)
    assert captured is not None

    def build(dtype: torch.dtype, **settings: bool) -> ForwardPass:
        return ForwardPass(captured, example.device, dtypes=[dtype], **settings)

    makers: dict[str, Callable[[], ForwardPass | None]] = {
        "fast": lambda: fast_forward(captured, example)
    }
    if example.is_cuda:
        half = torch.float16
        makers |= {
            "float16 eager": lambda: build(half, is_recorded=False),
            "float16 unfused": lambda: build(half, is_fused=False),
            "float16 unfused eager": lambda: build(half, is_fused=False, is_recorded=False),
            "bfloat16": lambda: build(torch.bfloat16),
        }
    else:
        makers["bfloat16"] = lambda: fast_forward(captured, example, dtypes=[torch.bfloat16])
    found: dict[str, ForwardPass] = {}
    for variant, make in makers.items():
        started = time.perf_counter()
        forward = make()
        if forward is None:
            print(f"{name}: {variant} is not available")
            continue
        forward(example)
        taken = time.perf_counter() - started
        print(
            f"{name}: {variant} built in {taken:.2f} s, in {forward.dtype}, "
            f"{forward.fused_convolutions} fused convolutions",
            flush=True,
        )
        found[variant] = forward
    return found


def least(actions: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, float]:
    """Return each action's least time after three warm-ups; actions alternate."""
    for action in actions.values():
        for _ in range(3):  # the second run of a batch size is recorded as a CUDA graph
            action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            times[name].append(seconds(action, device))
    return {name: min(taken) for name, taken in times.items()}


def measure(name: str, options: argparse.Namespace) -> None:
    """Print the times of one network for every chunk size."""
    model = load(name, options)
    linearizer = Linearizer(model)
    side = SIDES.get(name, 224)
    example = torch.randn(1, 3, side, side, device=options.device)
    linearizer.linearize(example, target=0)
    built = variants(name, linearizer, example)

    for chunk in options.chunks:
        images = torch.randn(chunk, 3, side, side, device=options.device)
        expected = linearizer.runner.outputs(images)

        def tf32(images: Tensor = images) -> Tensor:
            with reduced_precision("tf32", "cuda"), torch.no_grad():
                return linearizer.runner.forward(images)

        actions: dict[str, Callable[[], Any]] = {
            "model": lambda images=images: linearizer.runner.outputs(images)
        }
        if images.is_cuda:
            actions["model in tf32"] = tf32
        for variant, forward in built.items():
            actions[variant] = lambda forward=forward, images=images: forward(
                images, batch_size=len(images)
            )
        times = least(actions, options.device, options.rounds)
        print(f"{name}, chunks of {chunk}: milliseconds per image")
        for action, taken in times.items():
            line = (
                f"    {action:24s} {taken / chunk * 1e3:9.4f}  {times['model'] / taken:6.2f} times"
            )
            if action in built:
                line += f"  error {relative_error(actions[action](), expected):.1e}"
            memory = peak(actions[action], options.device)
            print(line if memory is None else f"{line}  peak {memory:.2f} GiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS[:3]))
    parser.add_argument("--chunks", type=int, nargs="*")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shared", type=Path, help="the folder with the real weights")
    parser.add_argument("--cudnn-benchmark", action="store_true")
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    options.chunks = options.chunks or ([1, 8, 64, 512] if on_gpu else [1, 8, 16, 32])
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    torch.manual_seed(0)
    for name in options.networks:
        measure(name, options)


if __name__ == "__main__":
    sys.exit(main())
