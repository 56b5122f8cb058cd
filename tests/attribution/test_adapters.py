"""Our methods as other libraries call them."""

import gc
import weakref

import numpy
import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.attribution import METHODS
from dmbp.errors import InputError
from tests import nets


def test_quantus_explain_func() -> None:
    """Called by keyword with NumPy arrays, and with more than it needs."""
    model, inputs = nets.VGGLike().eval(), torch.randn(2, 3, 16, 16)
    explain = dmbp.explain_func("gradient", reference="blur")
    maps = explain(model=model, inputs=inputs.numpy(), targets=numpy.array([1, 2]), device="cpu")
    expected = METHODS["gradient"](model, reference="blur").attribute(inputs, target=[1, 2])
    assert isinstance(maps, numpy.ndarray)
    assert numpy.array_equal(maps, expected.numpy())


def test_quantus_may_change_the_weights_between_calls() -> None:
    """Its randomisation metrics do."""
    model, inputs = nets.VGGLike().eval(), torch.randn(2, 3, 16, 16)
    explain = dmbp.explain_func("guided_backprop")
    before = explain(model=model, inputs=inputs, targets=[1, 2])
    with torch.no_grad():
        model.classifier[2].weight.mul_(-1)
    after = explain(model=model, inputs=inputs, targets=[1, 2])
    expected = METHODS["guided_backprop"](model).attribute(inputs, target=[1, 2])
    assert not numpy.allclose(before, after)
    assert numpy.array_equal(after, expected.numpy())


def test_quantus_models_are_let_go() -> None:
    """Randomisation tests make many copies."""
    explain = dmbp.explain_func("gradient")
    models = [nets.VGGLike().eval() for _ in range(2)]
    gone = weakref.ref(models[0])
    for model in models:
        explain(model=model, inputs=torch.randn(1, 3, 16, 16), targets=[1])
    del model, models
    gc.collect()
    assert gone() is None


def test_quantus_unknown_method() -> None:
    with pytest.raises(InputError, match="did you mean 'gradcam'"):
        dmbp.explain_func("gradcam2")


class ClassOutput:
    """A target as pytorch-grad-cam's users write them: a callable on one image's outputs."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __call__(self, outputs: Tensor) -> Tensor:
        return outputs[self.index] if outputs.dim() == 1 else outputs[:, self.index]


def test_callable_targets_one_for_each_image() -> None:
    model, inputs = nets.VGGLike().eval(), torch.randn(2, 3, 16, 16)
    method = METHODS["gradcam"](model)
    asked = method.attribute(inputs, target=[ClassOutput(1), ClassOutput(3)])
    assert torch.equal(asked, method.attribute(inputs, target=[1, 3]))


def test_a_curved_target_takes_its_tangent() -> None:
    """The linear network of a probability: its value is the probability, its map the gradient."""
    model = nets.VGGLike().double().eval()
    inputs = torch.randn(2, 3, 16, 16, dtype=torch.float64)

    def probability(outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)[2]

    net = dmbp.linearize(model, inputs, target=probability)
    torch.testing.assert_close(net.value(), model(inputs).softmax(1)[:, 2])
    gradient = METHODS["gradient"](model).linear_map(
        next(iter(METHODS["gradient"](model).questions(inputs, probability)))
    )
    torch.testing.assert_close(net.pullback(), gradient)
    d = dmbp.DMBP(model, iterations=3).explain(inputs, target=probability)
    total = d.positive_output + d.negative_output + d.nuisance_output
    torch.testing.assert_close(total, model(inputs).softmax(1)[:, 2])


def test_a_function_is_saved_by_its_name(tmp_path) -> None:
    def difference(outputs: Tensor) -> Tensor:
        return outputs[0] - outputs[1]

    model: nn.Module = nets.VGGLike().eval()
    d = dmbp.DMBP(model, iterations=1).explain(torch.randn(1, 3, 16, 16), target=difference)
    d.save(tmp_path / "d.safetensors")
    loaded = dmbp.load(tmp_path / "d.safetensors")
    assert loaded.targets == ("difference",)
    loaded.plot(tmp_path / "d.png")
    loaded.save(tmp_path / "again.safetensors")
    assert dmbp.load(tmp_path / "again.safetensors").targets == ("difference",)
