"""Models have the same description only if they compute the same with their weights."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dmbp.linear.model.architecture import Indescribable, described
from dmbp.linear.model.runner import ModelRunner
from tests import nets


class Function(nn.Module):
    """Applies a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Settings:
    """An ordinary object."""

    def __init__(self, slope: float) -> None:
        self.slope = slope


class WithSettings(nn.Module):
    def __init__(self, slope: float) -> None:
        super().__init__()
        self.settings = Settings(slope)
        self.table = {"values": [slope]}


def scaled(factor: float) -> nn.Module:
    """Return a module of a class that is made anew and holds a number."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            return factor * x

    return Scaled()


def with_constant(value: float) -> nn.Module:
    module = nn.Identity()
    module.constant = torch.full((2,), value)
    return module


def text(model: nn.Module) -> str:
    return "\n".join(described(model))


def test_weights_do_not_matter() -> None:
    assert text(nets.ResidualNet()) == text(nets.ResidualNet())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
        (nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, stride=2)),
        (nn.Conv2d(3, 4, 3), nn.Conv2d(3, 5, 3)),
        (nn.Linear(3, 4), nn.Linear(3, 4, bias=False)),
        (nn.Linear(3, 4), nn.Linear(3, 4).double()),
        (nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Sequential(nn.Tanh(), nn.ReLU())),
        (nets.ResidualNet(), nets.VGGLike()),
        (Function(lambda x: x + 1.0), Function(lambda x: x + 2.0)),
        (Function(lambda x: x.sin()), Function(lambda x: x.cos())),
        (Function(lambda x: (lambda y: y + 1)(x)), Function(lambda x: (lambda y: y + 2)(x))),
        (Function(torch.relu), Function(torch.tanh)),
        (WithSettings(0.1), WithSettings(0.2)),
        (scaled(1.0), scaled(2.0)),
        (with_constant(1.0), with_constant(2.0)),
    ],
)
def test_what_changes_the_function_changes_the_description(
    one: nn.Module, other: nn.Module
) -> None:
    assert text(one) == text(one)
    assert text(one) != text(other)


def test_the_chosen_output_is_part_of_the_description() -> None:
    class Heads(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": x.flatten(1), "b": -x.flatten(1)}

    inputs = torch.zeros(1, 3, 2, 2)
    heads = Heads()
    texts = [ModelRunner(heads, output=name).exportable(inputs) for name in ("a", "b")]
    assert text(texts[0]) != text(texts[1])


def hooked() -> nn.Module:
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: None)
    return model


def hidden() -> nn.Module:
    model = nn.Identity()
    model.others = [nn.Linear(2, 2)]
    return model


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    "make", [hooked, hidden, lambda: torch.jit.script(nn.Linear(2, 2)), lambda: Function(iter([]))]
)
def test_what_is_not_known_is_indescribable(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(Indescribable):
        text(make())
