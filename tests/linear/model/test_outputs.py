"""Models that return several tensors: the one to explain is found, or a message asks for it."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.attribution import METHODS
from dmbp.decompose.tested import TIE_BREAK
from dmbp.errors import InputError, ModelError, UnsupportedOperation
from tests import nets
from tests.tolerance import relative

IMAGES = (3, 3, 16, 16)


@dataclass
class Found:
    """An output as in model libraries: neither a dict nor registered with torch."""

    hidden: Tensor
    scores: Tensor
    loss: Tensor | None = None


class Plain:
    def __init__(self, scores: Tensor) -> None:
        self.scores = scores


Named = namedtuple("Named", "scores features")


class Returning(nets.ResidualNet):
    """Returns what `form` makes of its scores and features."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        return self.form(super().forward(x), x.flatten(2).mean(2)[:, :2])


FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Any]] = {
    "logits in a dict": (lambda s, f: {"features": f, "logits": s}, None),
    "the only one in a dict": (lambda s, f: {"loss": None, "scores": s, "size": f[None]}, None),
    "the only one in a tuple": (lambda s, f: (f.sum(), s, [f]), None),
    "the only one in a dataclass": (lambda s, f: Found(f[:, :, None], s), None),
    "the only one in an object": (lambda s, f: Plain(s), None),
    "by name": (lambda s, f: {"features": f, "scores": s}, "scores"),
    "by a dataclass's name": (lambda s, f: Found(f, s), "scores"),
    "by a named tuple's name": (lambda s, f: Named(s, f), "scores"),
    "by a named tuple's position": (lambda s, f: Named(s, f), 0),
    "by position": (lambda s, f: (f, s), 1),
    "by a function": (lambda s, f: {"a": [f, (s, f)]}, lambda found: found["a"][1][0]),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_output_is_found(form: str) -> None:
    make, output = FORMS[form]
    model = Returning(make).double().eval()
    inputs = torch.randn(IMAGES, dtype=torch.float64)
    net = dmbp.linearize(model, inputs, target=4, output=output)
    plain = Returning(lambda s, _: s).double().eval()
    plain.load_state_dict(model.state_dict())
    alone = dmbp.linearize(plain, inputs, target=4)
    assert torch.equal(net.value(), plain(inputs)[:, 4])
    assert torch.equal(net.pullback(), alone.pullback())
    assert [site.name for site in net.sites] == [site.name for site in alone.sites]


@pytest.mark.parametrize("images", [1, 3])
def test_one_score_for_each_image_is_a_single_class(images: int) -> None:
    model = Returning(lambda s, _: s[:, 2]).double().eval()
    inputs = torch.randn(images, *IMAGES[1:], dtype=torch.float64)
    net = dmbp.linearize(model, inputs, target=0)
    assert torch.equal(net.value(), model(inputs))
    found = dmbp.DMBP(model, iterations=2).attribute(inputs, target=0)
    model.form = lambda s, _: s
    # Five classes have rivals, which order the pixels without a colour.
    expected = dmbp.DMBP(model, iterations=2).attribute(inputs, target=2)
    assert relative(found, expected) < 2 * TIE_BREAK


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in METHODS if n not in nets.NEED_ATTENTION])
def test_every_method_takes_an_output(name: str) -> None:
    """The selected output is explained as if the model returned it alone."""
    fewer = {
        "rise": {"masks": 8},
        "lpr": {"iterations": 1},
        "blur_ig": {"steps": 2},
        "finercam": {"signed": True},
    }
    settings = {"iterations": 2} if name.startswith("dmbp") else fewer.get(name, {})
    model, inputs = Returning(lambda s, f: (f, s)).eval(), torch.randn(IMAGES)
    maps = METHODS[name](model, output=1, **settings).attribute(inputs, target=4)
    model.form = lambda s, _: s
    assert torch.equal(maps, METHODS[name](model, **settings).attribute(inputs, target=4))


@pytest.mark.parametrize(
    ("form", "output", "error", "message"),
    [
        (
            lambda s, f: {"scores": s, "features": f},
            None,
            ModelError,
            r"dict with 2 tensors .*\('scores' \(3, 5\), 'features' \(3, 2\)\); .*output='scores'",
        ),
        (lambda s, f: (s, f), None, ModelError, r"tuple with 2 .*\(0 \(3, 5\), 1 .*output=0"),
        (lambda s, f: (s[0],), None, ModelError, r"without a tensor of shape .*\(0 \(5,\)\)"),
        (lambda s, f: (s, f), 2, InputError, "without an output 2: it has 0, 1"),
        (lambda s, f: {"scores": s}, "score", InputError, "'score': it has 'scores'"),
        (lambda s, f: s, "logits", InputError, "Tensor without an output 'logits'"),
        (lambda s, f: s, lambda s: s["no"], InputError, "given as output fails on the Tensor"),
        (lambda s, f: (s, f), lambda found: 7, ModelError, "output to explain is a int"),
        (lambda s, f: (s, f), True, InputError, "without an output True"),
    ],
)
def test_missing_and_ambiguous_outputs(
    form: Callable[..., Any], output: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        dmbp.linearize(Returning(form).eval(), torch.randn(IMAGES), target=0, output=output)


def test_the_model_inside_is_the_callers_own() -> None:
    model, inputs = Returning(lambda s, f: (f, s)).eval(), torch.randn(IMAGES)
    names = list(model.state_dict())
    explainer = dmbp.DMBP(model, output=1, iterations=1)
    assert explainer.linearizer.model is model
    explainer.attribute(inputs, target=0)
    assert list(model.state_dict()) == names
    nn.init.normal_(model.fc.weight)  # in place: the graph reads the model's own tensors
    d = explainer.explain(inputs, target=0)
    assert torch.equal(d.output, model(inputs)[1][:, 0])


def test_places_are_named_as_in_the_model() -> None:
    class Refused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nets.Spectral()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.stem(x).mean((2, 3))}

    with pytest.raises(
        UnsupportedOperation, match=r"at 'stem' \(nets\.py, line \d+\) cannot be frozen"
    ):
        dmbp.linearize(Refused().eval(), torch.randn(IMAGES), target=0)


def test_a_program_with_two_outputs() -> None:
    model, inputs = Returning(lambda s, f: (f, s)).eval(), torch.randn(IMAGES)
    program = torch.export.export(model, (inputs,))
    net = dmbp.linearize(program, inputs, target=4, output=1)
    assert torch.equal(net.value(), model(inputs)[1][:, 4])


def test_metrics_take_the_logits() -> None:
    model, inputs = Returning(lambda s, f: {"logits": s, "f": f}).eval(), torch.randn(IMAGES)
    maps = METHODS["gradient"](model).attribute(inputs, target=1)
    scores = dmbp.metrics.insertion(model, inputs, 1, maps)
    model.form = lambda s, _: s
    assert torch.equal(scores, dmbp.metrics.insertion(model, inputs, 1, maps))
