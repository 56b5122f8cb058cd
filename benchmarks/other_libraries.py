"""Whether other libraries explain a network alike, however its activations are written.

    pip install --no-deps zennit
    python -m benchmarks.other_libraries

One small network is written three times with the same weights: each ReLU a module of its own, one
ReLU module used twice, and `F.relu`. The function is the same, so a method's map must be, too. The
lines about libraries that are not installed say so.
"""

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dmbp
from dmbp.models.torchvision_models import import_torchvision

Maps = Callable[[nn.Module, Tensor], Tensor]
TARGET = 1


class Functional(nn.Module):
    """Every ReLU is `F.relu`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.last = nn.Linear(8 * 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.second(F.relu(self.first(x)))).flatten(1))


class Reused(Functional):
    """One ReLU module is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.relu(self.second(self.relu(self.first(x)))).flatten(1))


class Modules(Functional):
    """Each ReLU is a module of its own, which hooks need."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.two(self.second(self.one(self.first(x)))).flatten(1))


def of_dmbp(name: str) -> Maps:
    return lambda model, x: dmbp.methods()[name](model).attribute(x, target=TARGET)


def of_captum(name: str) -> Maps:
    attr = import_module("captum.attr")
    return lambda model, x: getattr(attr, name)(model).attribute(x, target=TARGET)


def of_zennit(composite: str) -> Maps:
    attribution = import_module("zennit.attribution")
    composites = import_module("zennit.composites")

    def maps(model: nn.Module, x: Tensor) -> Tensor:
        with attribution.Gradient(model=model, composite=getattr(composites, composite)()) as ask:
            return ask(x, torch.eye(3)[[TARGET] * len(x)])[1]

    return maps


ROWS = [
    ("captum", of_captum, ["DeepLift", "GuidedBackprop"]),
    ("zennit", of_zennit, ["GuidedBackprop", "EpsilonPlus"]),
    ("dmbp", of_dmbp, ["deeplift", "guided_backprop", "lrp_epsilon"]),
]


def verdict(maps: Maps, model: nn.Module, x: Tensor, expected: Tensor) -> str:
    try:
        error = float((maps(model, x) - expected).abs().max() / expected.abs().max())
    except Exception as refusal:
        return f"{type(refusal).__name__}: {str(refusal).splitlines()[0][:60]}"
    return "the same map" if error < 1e-5 else f"another map, by {error:.0%} of its maximum"


def main() -> None:
    warnings.filterwarnings("ignore")
    import_torchvision()
    torch.manual_seed(0)
    model, x = Modules().eval(), torch.randn(2, 3, 8, 8)
    for library, make, names in ROWS:
        for name in names:
            try:
                maps = make(name)
            except ImportError as error:
                print(f"{library}: {error}")
                break
            expected = maps(model, x)
            for kind in (Reused, Functional):
                other = kind().eval()
                other.load_state_dict(model.state_dict())
                found = verdict(maps, other, x, expected)
                print(f"{library} {version(library)} {name}, {kind.__name__}: {found}")


if __name__ == "__main__":
    main()
