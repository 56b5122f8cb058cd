"""Volumes, signals and ten bands with a planted blob, and tables of which three features count.

What trained networks saw is found, tested by removal, scored by every metric, and saved.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import dmbp
from dmbp.attribution import METHODS
from dmbp.metrics import insertion, pointing_game, removal
from tests import blobs

KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], blobs.Planted]]] = {
    "volumes": (blobs.volume_network, blobs.volumes),
    "signals": (blobs.signal_network, blobs.signals),
    "bands": (blobs.bands_network, blobs.bands),
}


def with_blobs(kind: str) -> tuple[nn.Module, blobs.Planted, list[int]]:
    """A network, its inputs, and three rows that it knows have a blob."""
    network, make = KINDS[kind][0](), KINDS[kind][1]()
    with torch.no_grad():
        known = (network(make.inputs).argmax(1) == make.classes) & (make.classes > 0)
    return network, make, known.nonzero()[:3, 0].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_blob_is_found(kind: str, tmp_path: Path) -> None:
    network, data, rows = with_blobs(kind)
    inputs, classes = data.inputs[rows], data.classes[rows].tolist()
    d = dmbp.DMBP(network).explain(inputs, target=classes)
    red = d.attribution.sum(1).clamp(min=0)
    for row, positive in zip(rows, red, strict=True):
        inside = data.inside(row, grown=0 if kind == "bands" else 2)
        assert positive[inside].sum() >= 0.8 * positive.sum()
        assert inside.double().mean() < 0.06  # and that is a small part of the input
    assert d.tested is not None
    assert d.tested.is_confirmed.all()
    assert (d.worth_for > 0).all()
    score = insertion(network, inputs, classes, d.attribution, steps=10, substrate="zero")
    noise = torch.rand(d.attribution.shape, generator=torch.Generator().manual_seed(0))
    assert (score > insertion(network, inputs, classes, noise, steps=10, substrate="zero")).all()
    assert removal(network, inputs, classes, d.attribution).red_true.all()
    d.save(tmp_path / "d.safetensors")
    assert torch.equal(dmbp.load(tmp_path / "d.safetensors").attribution, d.attribution)


METHODS_OF_PLACES = {
    "gradcam": {},
    "integrated_gradients": {"steps": 10},
    "blur_ig": {"steps": 10, "max_sigma": 5.0},
    "rise": {"masks": 400, "preset": "torchray", "activation": "none"},
}


@pytest.mark.parametrize("name", METHODS_OF_PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_other_methods_point_at_the_blob(kind: str, name: str) -> None:
    network, data, rows = with_blobs(kind)
    inputs, classes = data.inputs[rows], data.classes[rows].tolist()
    maps = METHODS[name](network, **METHODS_OF_PLACES[name]).attribute(inputs, target=classes)
    boxes = [
        [(*data.start[row].flip(0).tolist(), *(data.stop[row] - 1).flip(0).tolist())]
        for row in rows
    ]
    tolerance = 8 if kind == "volumes" else 40
    assert pointing_game(maps, boxes, tolerance=tolerance).sum() >= 2


def test_the_features_that_count_are_found() -> None:
    network = blobs.table_network()
    rows = torch.randn(4, blobs.FEATURES, generator=torch.Generator().manual_seed(3))
    rows[:, :3] = rows[:, :3].abs() + 1
    d = dmbp.DMBP(network).explain(rows, target=1)
    strongest = d.attribution.topk(3).indices.sort().values
    assert strongest.tolist() == [[0, 1, 2]] * 4
    assert removal(network, rows, 1, d.attribution).red_true.all()
    assert insertion(network, rows, 1, d.attribution).mean() > 0.8
