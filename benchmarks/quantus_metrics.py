"""Which of Quantus' metrics run with `dmbp.explain_func`: `python -m benchmarks.quantus_metrics`.

Runs every metric that the installed Quantus lists, on a small untrained CNN and four random images
with three channels, with our gradient and with Quantus' own. Prints "ok" or the failure of each.
The exit code is 1 if a metric fails with our maps only, as some do with `--keep-channels`.
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import nn

import dmbp
from dmbp.models.torchvision_models import import_torchvision

import_torchvision()  # which Quantus imports, and which may need a CPU build's help
import quantus  # noqa: E402

IMAGES, SIDE, CLASSES = 4, 32, 5
STEP = {"features_in_step": 128}
PATCH = {"patch_size": 4}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "FaithfulnessCorrelation": {"nr_runs": 5, "subset_size": 32},
    "FaithfulnessEstimate": STEP,
    "PixelFlipping": STEP,
    "RegionPerturbation": {**PATCH, "regions_evaluation": 4},
    "Monotonicity": STEP,
    "MonotonicityCorrelation": {**STEP, "nr_samples": 3},
    "Selectivity": PATCH,
    "SensitivityN": {**STEP, "n_max_percentage": 0.8},
    "ROAD": {"percentages": [10, 50, 90], "noise": 0.01},
    "Infidelity": {"n_perturb_samples": 3, "perturb_patch_sizes": [4]},
    "Continuity": {"nr_steps": 3},
    "LocalLipschitzEstimate": {"nr_samples": 3},
    "MaxSensitivity": {"nr_samples": 3},
    "AvgSensitivity": {"nr_samples": 3},
    "RelativeInputStability": {"nr_samples": 3},
    "RelativeOutputStability": {"nr_samples": 3},
    "RelativeRepresentationStability": {"nr_samples": 3},
    "TopKIntersection": {"k": 20},
    "SmoothMPRT": {"nr_samples": 3},
    "RandomLogit": {"num_classes": CLASSES},
}
"""Settings of the metrics that need some on such small images, or are slow without."""


def metrics() -> Iterator[tuple[str, type[Any]]]:
    """Yield each metric's kind and class."""
    for kind, found in quantus.AVAILABLE_METRICS.items():
        for metric in found.values():
            yield kind, metric


def small_cnn() -> nn.Module:
    """Return a CNN without nesting, because `InputInvariance` looks for its first layer."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(32, CLASSES)),
    ).eval()


def outcome(metric: type[Any], explain: Callable[..., Any]) -> str:
    """Return "ok", or the failure in a line."""
    torch.manual_seed(0)
    numpy.random.seed(0)  # Quantus draws from this generator
    model = small_cnn()
    masks = numpy.zeros((IMAGES, 1, SIDE, SIDE), dtype=int)
    masks[:, :, 8:24, 8:24] = 1
    mosaic = {"custom_batch": [(1, 1, 0, 0)] * IMAGES} if metric.__name__ == "Focus" else {}
    quiet = {"disable_warnings": True, "display_progressbar": False}
    try:
        metric(**SETTINGS.get(metric.__name__, {}), **quiet)(
            model=model,
            x_batch=torch.rand(IMAGES, 3, SIDE, SIDE).numpy(),
            y_batch=numpy.arange(IMAGES),
            a_batch=None,
            s_batch=masks,
            explain_func=explain,
            explain_func_kwargs={"method": "Gradient"},  # which ours ignores
            **mosaic,
        )
    except Exception as error:  # any failure is a row of the table
        return f"{type(error).__name__}: {' '.join(str(error).split())[:60]}"
    return "ok"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep-channels", action="store_true", help="keep our maps' channels")
    ours = dmbp.explain_func("gradient", keep_channels=parser.parse_args().keep_channels)
    warnings.simplefilter("ignore")
    print(f"Quantus {quantus.__version__}\n")
    print("| kind | metric | dmbp.explain_func | quantus.explain |\n|---|---|---|---|")
    fine: Counter[tuple[bool, bool]] = Counter()
    for kind, metric in metrics():
        found = [outcome(metric, explain) for explain in (ours, quantus.explain)]
        fine[found[0] == "ok", found[1] == "ok"] += 1
        print(f"| {kind} | {metric.__name__} | {found[0]} | {found[1]} |", flush=True)
    print(
        f"\nboth run: {fine[True, True]}, both fail: {fine[False, False]}, "
        f"only ours fails: {fine[False, True]}, only Quantus' fails: {fine[True, False]}"
    )
    sys.exit(int(fine[False, True] > 0))


if __name__ == "__main__":
    main()
