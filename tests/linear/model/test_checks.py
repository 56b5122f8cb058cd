"""Inputs and models that cannot be used are refused with a clear message."""

import copy

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import CaptureError, InputError, ModelError
from dmbp.linear.model.checks import check_fit
from tests import nets

IMAGES = (2, 3, 16, 16)


def test_models_and_inputs_of_another_type() -> None:
    with pytest.raises(ModelError, match="an ExportedProgram, not <function"):
        dmbp.linearize(lambda x: x, torch.randn(IMAGES), target=1)
    with pytest.raises(ModelError, match="run the model once first"):
        dmbp.linearize(nn.Sequential(nn.LazyLinear(2)).eval(), torch.randn(2, 3), target=1)
    model = nets.ResidualNet().eval()
    for inputs in (None, "photo.jpg", torch.randn(IMAGES).numpy(), torch.randn(2, 3).to_sparse()):
        with pytest.raises(InputError, match="must be a dense tensor"):
            dmbp.linearize(model, inputs, target=1)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.full(IMAGES, torch.nan), "contain NaN"),
        (torch.zeros(IMAGES, dtype=torch.int64), "floating point"),
        (torch.zeros(0, 3, 16, 16), r"no image in inputs of shape \(0, 3, 16, 16\)"),
        (torch.zeros(3), "batch dimension"),
    ],
)
def test_inputs_that_cannot_be_used(inputs: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dmbp.linearize(nets.FunctionalNet().eval(), inputs, target=0)


def test_inputs_of_another_dtype() -> None:
    with pytest.raises(
        InputError, match=r"float64 but the model's 'a.weight' is torch.float32; use"
    ):
        dmbp.linearize(nets.FunctionalNet().eval(), torch.randn(IMAGES).double(), target=1)


def test_inputs_on_another_device() -> None:
    with pytest.raises(InputError, match=r"on meta but the model's 'a' is on cpu; use .*'cpu'"):
        check_fit(torch.empty(IMAGES, device="meta"), [("a", torch.ones(1))])


def test_a_model_or_inputs_without_data() -> None:
    """`inputs.to("meta")` would not help."""
    model = nets.FunctionalNet().eval()
    with pytest.raises(InputError, match="inputs on the meta device have no data"):
        dmbp.linearize(model, torch.empty(IMAGES, device="meta"), target=1)
    with pytest.raises(ModelError, match=r"'a.weight' is on the meta device and has no data"):
        dmbp.linearize(model.to("meta"), torch.randn(IMAGES), target=1)


def test_a_model_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = nets.ResidualNet().eval()
        inputs = torch.randn(IMAGES)
    with pytest.raises(ModelError, match=r"created in torch.inference_mode.*copy.deepcopy"):
        dmbp.linearize(model, inputs, target=1)
    net = dmbp.linearize(copy.deepcopy(model), inputs, target=1)  # as the message says
    assert net.pullback().shape == IMAGES


def test_nan_weights_are_named() -> None:
    model = nets.VGGLike().eval()
    nn.init.constant_(model.features[3].weight, torch.nan)
    with pytest.raises(ModelError, match=r"NaN or infinity, first in 'features\.3\.weight'"):
        dmbp.linearize(model, torch.randn(IMAGES), target=0)


class Returns(nn.Module):
    def __init__(self, what: object) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> object:
        return self.what(x)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda x: x.mean((0, 2, 3)), r"output has shape \(3,\)"),
        (lambda x: "cat", "returns a str without a tensor of shape"),
        (lambda x: x @ torch.zeros(3, 3), "does not run on an input of shape"),
        (lambda x: x.mean((2, 3)) if x.sum() > 0 else x.sum((2, 3)), "decides by the values"),
    ],
)
def test_models_that_cannot_be_explained(what: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        dmbp.linearize(Returns(what).eval(), torch.randn(IMAGES), target=0)


@pytest.mark.parametrize(
    "mix", [lambda h: h - h.mean(0, keepdim=True), lambda h: h + h.flip(0), lambda h: h.cumsum(0)]
)
@pytest.mark.parametrize("images", [1, 3])
def test_models_that_mix_the_images_of_a_batch(mix: object, images: int) -> None:
    class Mixing(nets.ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(mix(x))

    with pytest.raises(CaptureError, match="other images of its batch"):
        dmbp.linearize(Mixing().eval(), torch.randn(images, 3, 16, 16), target=1)
