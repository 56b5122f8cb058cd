"""How exactly the linear network reproduces the model: `python -m benchmarks.exactness`.

Networks have random weights and batch-norm statistics and run on a batch of two, in float64 and
float32. The error is the largest |net.value() − model(x)[:, target]|, relative to the model's
largest output.
"""

import time

import torch
from tests.exactness import NETWORKS, measure


def main() -> None:
    print(f"{'network':20s} {'sites':>6s} {'float64':>10s} {'float32':>10s} {'seconds':>8s}")
    for name in NETWORKS:
        started = time.perf_counter()
        double, sites = measure(name, torch.float64)
        single, _ = measure(name, torch.float32)
        seconds = time.perf_counter() - started
        print(f"{name:20s} {sites:6d} {double:10.1e} {single:10.1e} {seconds:8.1f}")


if __name__ == "__main__":
    main()
