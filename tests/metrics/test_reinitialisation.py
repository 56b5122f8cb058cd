"""The re-initialisation check: ranks against scipy's, and which layer forgets."""

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from dmbp.attribution import METHODS
from dmbp.errors import InputError, ModelError
from dmbp.linear.model.wrappers import OneAtATime, force_eval
from dmbp.metrics import rank_correlation, reinitialisation, with_reinitialised_layer
from tests import nets


def test_correlation_is_scipys_with_ties() -> None:
    first = torch.randint(0, 6, (4, 1, 7, 7)).double()
    second = first + torch.randint(0, 9, (4, 1, 7, 7))
    theirs = [
        spearmanr(a.flatten().numpy(), b.flatten().numpy()).statistic
        for a, b in zip(first, second, strict=True)
    ]
    torch.testing.assert_close(rank_correlation(first, second), torch.tensor(theirs))


def test_channels_are_added_up_first() -> None:
    maps = torch.randn(2, 3, 5, 5)
    assert rank_correlation(maps, maps.sum(1, keepdim=True)).tolist() == pytest.approx([1.0, 1.0])
    assert rank_correlation(maps, -maps).tolist() == pytest.approx([-1.0, -1.0])


def test_a_constant_map_correlates_with_nothing() -> None:
    assert rank_correlation(torch.ones(1, 1, 4, 4), torch.randn(1, 1, 4, 4)).tolist() == [0.0]


def test_maps_that_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="cannot be compared"):
        rank_correlation(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 5, 5))
    with pytest.raises(InputError, match="cannot be compared"):
        rank_correlation(torch.zeros(2, 5), torch.zeros(2, 7))
    with pytest.raises(InputError, match="contains NaN"):
        rank_correlation(torch.full((1, 1, 4, 4), torch.nan), torch.zeros(1, 1, 4, 4))


class Backwards(nn.Module):
    """Registers its last layer first."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.first = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu().mean((2, 3)))


def test_only_the_layer_that_runs_last_forgets() -> None:
    model, inputs = Backwards().eval(), torch.randn(2, 3, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fresh = with_reinitialised_layer(model, inputs)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(fresh.first.weight, model.first.weight)
    assert not torch.equal(fresh.last.weight, model.last.weight)
    assert torch.equal(fresh.last.bias, torch.zeros(3))
    assert torch.equal(fresh.last.weight, with_reinitialised_layer(model, inputs).last.weight)
    other = with_reinitialised_layer(model, inputs, generator=torch.Generator().manual_seed(5))
    assert not torch.equal(other.last.weight, fresh.last.weight)


def test_what_does_not_look_at_the_last_layer_stays_the_same() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(2, 3, 16, 16)
    assert reinitialisation(METHODS["random"], model, inputs, 0).tolist() == pytest.approx(
        [1.0] * 2
    )
    changed = reinitialisation(METHODS["gradient"], model, inputs, [0, 1])
    assert (changed.abs() < 0.999).all()


def test_without_a_target_both_models_are_asked_about_the_same_class() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(2, 3, 16, 16)
    top = model(inputs).argmax(1).tolist()
    named = reinitialisation(METHODS["gradient"], model, inputs, top)
    assert torch.equal(reinitialisation(METHODS["gradient"], model, inputs, None), named)


def test_a_model_without_layers() -> None:
    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3))

    with pytest.raises(ModelError, match="no layer with a weight"):
        with_reinitialised_layer(Bare().eval(), torch.randn(1, 3, 4, 4))


class TwoHeads(nn.Module):
    """Outputs of two heads side by side; the last to run knows nothing of the first's classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).relu().mean((2, 3))
        return torch.cat([self.one(features), self.two(features)], 1)


class BareWeight(nn.Module):
    """A last layer that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.matrix = nn.Conv2d(3, 4, 3), nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).relu().mean((2, 3)) @ self.matrix.T


def test_an_output_that_does_not_notice_is_refused() -> None:
    inputs = torch.randn(2, 3, 8, 8)
    with pytest.raises(ModelError, match=r"class 0 does not change when 'two'"):
        with_reinitialised_layer(TwoHeads().eval(), inputs)
    with pytest.raises(ModelError, match=r"class 3 does not change when 'one'"):
        with_reinitialised_layer(TwoHeads().eval(), inputs, layer="one")
    fresh = with_reinitialised_layer(TwoHeads().eval(), inputs, layer="conv")
    assert torch.equal(fresh.conv.bias, torch.zeros(4))


def test_a_last_layer_that_cannot_be_drawn_afresh_is_refused() -> None:
    inputs = torch.randn(2, 3, 8, 8)
    normed = Backwards().eval()
    nn.utils.parametrizations.weight_norm(normed.last)
    for model in (normed.eval(), BareWeight().eval()):
        with pytest.raises(ModelError, match="has no plain weight to draw afresh"):
            with_reinitialised_layer(model, inputs)
    with pytest.raises(InputError, match="no layer 'frist'; did you mean 'first'"):
        with_reinitialised_layer(Backwards().eval(), inputs, layer="frist")


def exported(model: nn.Module, images: Tensor) -> ExportedProgram:
    return torch.export.export(model, (images,), dynamic_shapes=({0: Dim.AUTO},))


@pytest.mark.parametrize("make", [Backwards, nets.ResidualNet])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_program_forgets_as_the_module_it_was(make: type[nn.Module], wrapped: bool) -> None:
    """Drawn from the same numbers, also where it is run on one image after the other."""
    model, inputs = make().eval(), torch.randn(2, 3, 16, 16)
    program = exported(model, inputs)
    one_by_one = OneAtATime(program.module())
    force_eval(one_by_one)
    again = one_by_one if wrapped else program
    fresh = with_reinitialised_layer(again, inputs)
    with torch.no_grad():
        torch.testing.assert_close(fresh(inputs), with_reinitialised_layer(model, inputs)(inputs))
        torch.testing.assert_close(program.module()(inputs), model(inputs))
    ours = reinitialisation(METHODS["gradient"], again, inputs, [0, 1])
    torch.testing.assert_close(ours, reinitialisation(METHODS["gradient"], model, inputs, [0, 1]))


def test_a_program_whose_last_layer_cannot_be_drawn_afresh() -> None:
    inputs = torch.randn(2, 3, 8, 8)
    normed = Backwards().eval()
    nn.utils.parametrizations.weight_norm(normed.last)
    for model in (normed.eval(), BareWeight().eval()):
        with pytest.raises(ModelError, match="has no plain weight to draw afresh"):
            with_reinitialised_layer(exported(model, inputs), inputs)
    with pytest.raises(ModelError, match=r"class 0 does not change when 'two'"):
        with_reinitialised_layer(exported(TwoHeads().eval(), inputs), inputs)


def test_a_last_layer_of_one_weight() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 1), nn.ReLU(), nn.Linear(1, 1)).eval()
    nn.init.constant_(model[1].bias, 5.0)
    assert torch.isfinite(with_reinitialised_layer(model, torch.randn(2, 3, 2, 2))[3].weight).all()


def test_captums_own_methods_may_be_checked() -> None:
    from captum.attr import InputXGradient

    model, inputs = nets.ResidualNet().eval(), torch.randn(2, 3, 16, 16).requires_grad_()
    ours = reinitialisation(METHODS["gradient"], model, inputs.detach(), [0, 1])
    torch.testing.assert_close(reinitialisation(InputXGradient, model, inputs, [0, 1]), ours)
