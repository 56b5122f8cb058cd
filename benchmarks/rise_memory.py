"""RISE's peak memory does not grow with its masks: `python -m benchmarks.rise_memory`.

Runs RISE on ResNet50 with random weights at 224 × 224 with 1000 and with 8000 masks, each in a
process of its own. Prints the allocator's peak on a GPU, and the peak resident memory on a CPU.
"""

import argparse
import resource
import subprocess
import sys

import torch

from dmbp.attribution.rise import RISE
from dmbp.models.torchvision_models import import_torchvision


def peak(masks: int, device: str, batch: int) -> float:
    """Return the peak in MiB."""
    torch.manual_seed(0)
    model = import_torchvision().models.resnet50(weights=None).eval().to(device)
    inputs = torch.randn(1, 3, 224, 224, device=device)
    RISE(model, masks=masks).attribute(inputs, target=0, internal_batch_size=batch)
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return torch.cuda.max_memory_allocated() / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--masks", type=int, nargs="*", default=[1000, 8000])
    options = parser.parse_args()
    if len(options.masks) == 1:
        print(peak(options.masks[0], options.device, options.batch))
        return
    for masks in options.masks:
        command = [sys.executable, "-m", "benchmarks.rise_memory", "--masks", str(masks)]
        command += ["--device", options.device, "--batch", str(options.batch)]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(f"{masks} masks: peak {float(found):.0f} MiB on {options.device}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
