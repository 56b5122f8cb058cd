"""RISE against maps that are computed here from the definition of its masks."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dmbp.attribution import rise
from dmbp.attribution.rise import BLOCK, RISE
from dmbp.engine import ForwardPass
from dmbp.engine.forward.convolution import has_onednn
from tests import nets
from tests.attribution.networks import images


def drawn_masks(masks: int, cells: int, share: float, height: int, width: int) -> Tensor:
    """All masks (masks, height, width): random cells, enlarged, cut out at a random place."""
    generator = torch.Generator().manual_seed(0)
    tall, wide = -(-height // cells), -(-width // cells)
    found: list[Tensor] = []
    while len(found) < masks:  # numbers are drawn for a block at a time
        grid = (torch.rand(BLOCK, 1, cells, cells, generator=generator) < share).double()
        down = torch.randint(tall, (BLOCK,), generator=generator)
        across = torch.randint(wide, (BLOCK,), generator=generator)
        size = ((cells + 1) * tall, (cells + 1) * wide)
        large = functional.interpolate(grid, size, mode="bilinear")[:, 0]
        found += [
            large[k, down[k] : down[k] + height, across[k] : across[k] + width]
            for k in range(BLOCK)
        ]
    return torch.stack(found[:masks])


def test_a_map_by_hand() -> None:
    """The model is the brightness, and five masks are averaged with it as their weight."""

    class Brightness(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((1, 2, 3))[:, None]

    inputs = images(8)[:1]
    expected = torch.zeros(8, 8).double()
    for mask in drawn_masks(5, cells=2, share=0.5, height=8, width=8):
        expected += (mask * inputs[0]).mean() * mask / (5 * 0.5)
    method = RISE(Brightness().eval(), masks=5, cells=2, open=0.5, activation="none")
    torch.testing.assert_close(method.attribute(inputs, target=0)[0, 0], expected)


def test_maps_of_a_network() -> None:
    """More masks than a block, an image that is not square, several targets, softmax, batches."""
    count, share, targets = BLOCK + 9, 0.3, [[0, 4], [1]]
    model, inputs = nets.FunctionalNet().double().eval(), images(13)[:2, :, :10]
    masks = drawn_masks(count, cells=3, share=share, height=10, width=13)
    with torch.no_grad():
        seen = [model(masks[:, None] * image).softmax(1) for image in inputs]
    rows = [(image, target) for image, own in enumerate(targets) for target in own]
    expected = torch.stack(
        [torch.einsum("k,khw->hw", seen[i][:, t], masks) / (count * share) for i, t in rows]
    )
    method = RISE(model, masks=count, cells=3, open=share)
    for size in ("auto", 50):
        found = method.attribute(inputs, target=targets, internal_batch_size=size)
        torch.testing.assert_close(found[:, 0], expected)


def test_presets_and_what_overrides_them() -> None:
    model = nets.VGGLike().eval()
    authors, torchray = RISE(model), RISE(model, preset="torchray", masks=10)
    assert (authors.masks, authors.cells, authors.open) == (6000, 8, 0.1)
    assert (torchray.masks, torchray.cells, torchray.open) == (10, 7, 0.5)


def test_the_region_that_matters_is_found() -> None:
    class Corner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            lit = x[:, :, :8, :8].mean((1, 2, 3))
            return torch.stack([10 * lit, torch.zeros_like(lit)], 1)

    method = RISE(Corner().eval(), masks=300, cells=4, open=0.5)
    maps = method.attribute(torch.ones(1, 3, 32, 32), target=0)
    assert maps[0, 0, :8, :8].mean() > maps[0, 0, 16:, 16:].mean() * 1.05


AGREED = {"float32": 0.999999, "bfloat16": 0.999}
"""The least correlation with the map of the model as it is."""


@pytest.mark.parametrize("precision", AGREED)
def test_a_captured_model_runs_faster_and_gives_the_same_map(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    if not has_onednn(torch.device("cpu"), dtype):
        pytest.skip(f"this CPU has no fast convolutions in {dtype}")
    model, inputs = nets.VGGLike().eval(), images(16)[:2].float()
    settings: dict[str, Any] = {"masks": 200, "cells": 4, "open": 0.3, "precision": precision}
    plain = RISE(model, **settings | {"precision": "float32"}).attribute(inputs, target=[1, 2])
    runs: list[torch.dtype] = []
    run = ForwardPass.__call__

    def counted(self: ForwardPass, *arguments: Any, **keywords: Any) -> Tensor:
        runs.append(self.dtype)
        return run(self, *arguments, **keywords)

    monkeypatch.setattr(ForwardPass, "__call__", counted)
    monkeypatch.setattr(rise, "WORTH_CAPTURING", 200)
    fast = RISE(model, **settings).attribute(inputs, target=[1, 2])
    assert runs.count(dtype) > 200 / 32
    for one, other in zip(fast.flatten(1), plain.flatten(1), strict=True):
        assert torch.corrcoef(torch.stack([one, other]))[0, 1] > AGREED[precision]


def test_a_model_that_cannot_be_captured_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spectral(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.rfft2(x).abs().mean((2, 3))

    inputs = images(8)[:1].float()
    expected = RISE(Spectral().eval(), masks=10, cells=2).attribute(inputs, target=0)
    monkeypatch.setattr(rise, "WORTH_CAPTURING", 10)
    found = RISE(Spectral().eval(), masks=10, cells=2).attribute(inputs, target=0)
    assert torch.equal(found, expected)
