"""Quantus' own metric classes, over `dmbp.explain_func` as it is."""

from typing import Any

import numpy
import pytest
import torch

import dmbp
from dmbp.models.torchvision_models import import_torchvision
from tests import nets

import_torchvision()  # which Quantus imports, and which may need a CPU build's help
quantus = pytest.importorskip("quantus")

OURS = {"dmbp": {"iterations": 3}, "gradient": {}, "guided_backprop": {}}
METRICS: dict[str, dict[str, Any]] = {
    "MaxSensitivity": {"nr_samples": 3},
    "PixelFlipping": {"features_in_step": 32, "perturb_baseline": "black"},
    "FaithfulnessCorrelation": {"nr_runs": 5, "subset_size": 32, "return_aggregate": False},
    "RandomLogit": {"num_classes": 5},
    "Sparseness": {},
    "MPRT": {},
    "PointingGame": {},
    "TopKIntersection": {"k": 20},
    "RelevanceMassAccuracy": {},
    "RelevanceRankAccuracy": {},
    "AttributionLocalisation": {},
    "AUC": {},
}
"""One of each other kind, and all that compare a map with a mask of the object."""


def scores(metric: str, method: str) -> Any:
    model = nets.VGGLike().eval()
    masks = numpy.zeros((3, 1, 16, 16), dtype=int)
    masks[:, :, 4:12, 4:12] = 1
    quiet = {"disable_warnings": True, "display_progressbar": False}
    return getattr(quantus, metric)(**METRICS[metric], **quiet)(
        model=model,
        x_batch=torch.randn(3, 3, 16, 16).numpy(),
        y_batch=numpy.array([0, 1, 2]),
        s_batch=masks,
        explain_func=dmbp.explain_func(method, **OURS[method]),
    )


@pytest.mark.parametrize("method", OURS)
@pytest.mark.parametrize("metric", METRICS)
def test_metric(metric: str, method: str) -> None:
    found = scores(metric, method)
    by_layer = found if isinstance(found, dict) else {"": found}
    for values in by_layer.values():
        assert len(values) == 3
        assert numpy.isfinite(numpy.asarray(values, dtype=float)).all()


def test_maps_change_with_the_weights() -> None:
    """Its randomisation test draws layers afresh; maps that stayed would correlate fully."""
    found = scores("MPRT", "gradient")
    assert numpy.allclose(found["original"], 1)
    last = list(found)[-1]
    assert max(found[last]) < 0.99
