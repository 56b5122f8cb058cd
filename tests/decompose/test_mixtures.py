"""Gradients in partly removed images, against formulas and autograd."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.decompose.mixtures import draw_shares, mean_stream, mixture_stream
from dmbp.decompose.removal import ChangedImages
from dmbp.engine import input_gradients
from dmbp.linear import Linearizer, Question, Target
from tests import nets
from tests.engine.networks import Overwritten
from tests.tolerance import BATCH, relative

EXACT = 1e-12
"""For the same sums in float64, in another order."""


def two_classes(score: Tensor) -> Tensor:
    """A score, and its opposite."""
    return torch.stack([score, -score], 1)


class Linear(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = torch.randn(shape, generator=generator, dtype=torch.float64)

    def score(self, x: Tensor) -> Tensor:
        return (x * self.weight).flatten(1).sum(1)

    def forward(self, x: Tensor) -> Tensor:
        return two_classes(self.score(x))


class Squared(Linear):
    def score(self, x: Tensor) -> Tensor:
        return super().score(x).square()


class EitherHalf(nn.Module):
    """The brighter half of the image decides, so the other one is redundant."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.sum(1).tensor_split(2, dim=2)
        return two_classes(torch.maximum(left.mean((1, 2)), 0.9 * right.mean((1, 2))))


class Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return two_classes(torch.relu(x.detach()).flatten(1).sum(1))


def question(model: nn.Module, inputs: Tensor, target: Target = 0) -> Question:
    linearizer = Linearizer(model.eval())
    inputs, outputs, rows = linearizer.runner.target_rows(inputs, target)
    return Question(linearizer, inputs, rows, images=len(inputs), known_outputs=outputs)


def stream_of(asked: Question, removal: str = "zero", count: int = 4) -> Tensor | None:
    runner = asked.runner
    changed = ChangedImages(asked, (removal,), run=runner.outputs)  # type: ignore[arg-type]
    side = (1,) * (asked.inputs.dim() - 2)  # too small to smooth anything
    shares = draw_shares(asked.inputs.shape[2:], count, asked.generator())
    gradients = partial(input_gradients, runner.run)
    return mixture_stream(changed, gradients, shares=shares.to(asked.inputs), side=side)


@pytest.mark.parametrize("shape", [(3, 9, 12), (2, 20), (1, 4, 5, 6)])
def test_the_gradient_of_a_linear_score_is_the_same_in_every_mixture(
    shape: tuple[int, ...],
) -> None:
    model, inputs = Linear(shape), torch.rand(2, *shape, dtype=torch.float64)
    for removal, empty in (
        ("zero", torch.zeros_like(inputs)),
        ("mean", inputs.flatten(2).mean(2).view(2, -1, *(1,) * (len(shape) - 1))),
    ):
        found = stream_of(question(model, inputs), removal)
        assert found is not None
        expected = (model.weight * (inputs - empty)).sum(1).clamp(min=0)
        assert relative(found, expected) < EXACT


def test_the_stream_is_the_mean_over_mixtures() -> None:
    shape = (3, 8, 8)
    model, inputs = Squared(shape), torch.rand(2, *shape, dtype=torch.float64)
    asked = question(model, inputs)
    shares = draw_shares((8, 8), 6, asked.generator()).double()
    total = torch.zeros_like(inputs)
    for share in shares:  # the score is (w·sx)², so its gradient is 2 (w·sx) w
        inside = (model.weight * share * inputs).sum((1, 2, 3), keepdim=True)
        total += 2 * inside * model.weight * inputs / len(shares)
    found = stream_of(asked, count=6)
    assert found is not None
    assert relative(found, total.sum(1).clamp(min=0)) < EXACT


def test_mixtures_see_evidence_that_is_redundant_in_the_whole_image() -> None:
    inputs = torch.ones(1, 3, 16, 16, dtype=torch.float64)
    asked = question(EitherHalf(), inputs)
    gradient = input_gradients(asked.runner.run, inputs, torch.tensor([[1.0, 0.0]]).double())
    assert gradient is not None
    assert not gradient[..., 8:].any()
    found = stream_of(asked, count=16)
    assert found is not None
    assert found[..., 8:].sum() > 0.2 * found.sum()


def test_a_function_of_the_outputs_is_differentiated_at_each_mixture() -> None:
    model, inputs = Squared((3, 8, 8)), torch.rand(1, 3, 8, 8, dtype=torch.float64)

    def root(outputs: Tensor) -> Tensor:
        return outputs[0].sqrt()

    asked = question(model, inputs, root)
    shares = draw_shares((8, 8), 4, asked.generator()).double()
    total = torch.zeros_like(inputs)
    for share in shares:  # the root is |w·sx|
        total += torch.sign((model.weight * share * inputs).sum()) * model.weight * inputs / 4
    found = stream_of(asked)
    assert found is not None
    assert relative(found, total.sum(1).clamp(min=0)) < EXACT


def test_shares_are_smooth_and_have_opposites() -> None:
    shares = draw_shares((40, 30), 8, torch.Generator().manual_seed(0))
    assert shares.shape == (8, 40, 30)
    assert torch.allclose(shares[:4] + shares[4:], torch.ones(4, 40, 30))
    assert 0 <= shares.min() < 0.2
    assert 0.8 < shares.max() <= 1
    assert shares.diff(dim=1).abs().max() < 0.25


def test_a_model_without_gradients_is_explained_by_the_streams_alone() -> None:
    inputs = torch.rand(1, 3, 16, 16, dtype=torch.float64)
    assert stream_of(question(Detached(), inputs)) is None
    without = dmbp.DMBP(Detached().eval(), removal="zero", mixtures=0).attribute(inputs, target=0)
    found = dmbp.DMBP(Detached().eval(), removal="zero").attribute(inputs, target=0)
    assert found.abs().sum() > 0
    assert torch.equal(found, without)


def test_a_model_that_autograd_cannot_differentiate_is_explained() -> None:
    model, inputs = Overwritten().double().eval(), torch.randn(1, 3, 12, 12).double()
    weights = torch.ones_like(model(inputs))
    assert input_gradients(model, inputs, weights) is None
    assert dmbp.DMBP(model, iterations=2).attribute(inputs, target=0).isfinite().all()


def test_mixtures_change_the_map_and_can_be_left_out() -> None:
    model, inputs = nets.ResidualNet().double().eval(), torch.randn(2, 3, 24, 24).double()
    maps = [dmbp.DMBP(model, mixtures=count).attribute(inputs, target=1) for count in (0, 2, 8, 8)]
    assert relative(maps[2], maps[3]) <= BATCH
    assert relative(maps[0], maps[2]) > 1e-3
    assert relative(maps[1], maps[2]) > 1e-3


def test_both_streams_count_the_same_in_their_mean() -> None:
    stream = torch.tensor([[[1.0, 3.0]], [[0.0, 0.0]]])
    other = torch.tensor([[[200.0, 0.0]], [[5.0, 15.0]]])
    assert mean_stream(stream, None) is stream
    assert torch.allclose(
        mean_stream(stream, other), torch.tensor([[[1.25, 0.75]], [[0.25, 0.75]]])
    )
