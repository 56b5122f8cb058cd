"""Metrics of volumes, signals and tables, on trained networks and against loops by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dmbp.errors import InputError
from dmbp.metrics import complementary_insertion, deletion, insertion, removal
from tests import blobs
from tests.tolerance import BATCH, relative


class Total(nn.Module):
    """The sum of all numbers, and minus the sum."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.flatten(1).sum(1)
        return torch.stack([total, -total], 1)


SHAPES = [(2, 6), (2, 3, 8), (2, 1, 4, 3, 2), (2, 2, 2, 3, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES)
def test_curves_by_hand(shape: tuple[int, ...]) -> None:
    """Pixels are put in one by one, in the order of the map's sum over channels."""
    inputs, maps = torch.randn(shape).double(), torch.randn(shape).double()
    pixels = maps.sum(1) if len(shape) > 2 else maps
    values = (inputs.sum(1) if len(shape) > 2 else inputs).flatten(1)
    order = pixels.flatten(1).argsort(dim=1, descending=True)
    sums = torch.cat([torch.zeros(2, 1).double(), values.gather(1, order).cumsum(1)], 1)
    expected = (sums[:, :-1] + sums[:, 1:]).mean(1) / 2
    steps = values.shape[1]
    options = {"steps": steps, "substrate": "zero", "activation": "none"}
    found = insertion(Total().eval(), inputs, 0, maps, **options)
    assert relative(found, expected) <= BATCH
    left = sums[:, -1:] - sums
    deleted = deletion(Total().eval(), inputs, 0, maps, **options)
    assert relative(deleted, (left[:, :-1] + left[:, 1:]).mean(1) / 2) <= BATCH
    assert (
        relative(
            complementary_insertion(Total().eval(), inputs, [[1], [1]], -maps, **options), -expected
        )
        <= BATCH
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_removal_by_hand(shape: tuple[int, ...]) -> None:
    inputs, maps = torch.rand(shape).double() + 1, torch.randn(shape).double()
    found = removal(Total().eval(), inputs, 0, maps, share=None, substrate="zero")
    pixels = maps.sum(1, keepdim=True) if len(shape) > 2 else maps
    for sign, score in ((1, found.score_without_positive), (-1, found.score_without_negative)):
        kept = torch.where(sign * pixels > 0, 0, inputs)
        assert relative(score, kept.flatten(1).sum(1)) <= BATCH


@pytest.mark.parametrize("make", [blobs.volumes, blobs.signals])
def test_a_true_map_scores_better_than_noise(make: Callable[[int], blobs.Planted]) -> None:
    model = blobs.volume_network() if make is blobs.volumes else blobs.signal_network()
    data = make(6)
    truth = torch.stack([data.inside(k) for k in range(6)])[:, None].float()
    noise = torch.rand(truth.shape, generator=torch.Generator().manual_seed(0))
    rows = (data.classes > 0).nonzero()[:, 0]
    inputs, target = data.inputs[rows], data.classes[rows].tolist()
    options = {"steps": 8, "substrate": "zero", "activation": "none"}
    good, bad = (insertion(model, inputs, target, k[rows], **options) for k in (truth, noise))
    assert (good > bad).all()
    checked = removal(model, inputs, target, truth[rows], share=None)
    assert checked.red_true.all()


def test_vectors_have_no_blur() -> None:
    inputs = torch.rand(2, 6)
    zero = insertion(Total().eval(), inputs, 0, inputs, substrate="zero")
    assert torch.equal(insertion(Total().eval(), inputs, 0, inputs), zero)
    with pytest.raises(InputError, match="'blur' needs images"):
        insertion(Total().eval(), inputs, 0, inputs, substrate="blur")
    with pytest.raises(InputError, match="'blur' needs images"):
        removal(Total().eval(), inputs, 0, inputs, substrate="blur")
