"""The model's state is restored, torch's modes do not matter, and changed models are noticed."""

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import CaptureError
from dmbp.linear.linearizer import Linearizer
from tests import nets

IMAGES = (2, 3, 16, 16)


def state_of(model: nn.Module) -> list[object]:
    """Return all that must not change: values, gradients, modes, hooks and modules."""
    return [
        *((n, p.detach().clone(), p.requires_grad, p.grad) for n, p in model.named_parameters()),
        *((n, b.clone()) for n, b in model.named_buffers()),
        *((n, m.training, dict(m._forward_hooks)) for n, m in model.named_modules()),
        *(
            (n, dict(m._backward_hooks), dict(m.__dict__["_modules"]))
            for n, m in model.named_modules()
        ),
    ]


def same(before: list[object], after: list[object]) -> bool:
    flat = zip(before, after, strict=True)
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for one, two in flat
        for a, b in zip(one, two, strict=True)
    )


@pytest.mark.parametrize("make", [nets.ResidualNet, nets.InPlaceNet, nets.ReusedNet])
def test_the_model_is_unchanged(make: type[nn.Module]) -> None:
    model = make().eval()
    next(model.parameters()).requires_grad_(False)
    model.register_forward_hook(lambda *_: None)
    before = state_of(model)
    dmbp.linearize(model, torch.randn(IMAGES), target=1).pullback()
    assert same(before, state_of(model))


def test_a_model_in_training_mode_is_explained_in_evaluation_mode() -> None:
    model = nets.ResidualNet()
    model.bn2.eval()
    inputs = torch.randn(IMAGES)
    before = state_of(model)
    with pytest.warns(UserWarning, match="training mode"):
        value = dmbp.linearize(model, inputs, target=1).value()
    assert same(before, state_of(model))
    assert torch.equal(value, model.eval()(inputs)[:, 1])


def test_the_mode_is_restored_after_an_exception() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(), nets.Spectral(), nn.Flatten()).train()
    before = state_of(model)
    with pytest.warns(UserWarning, match="training mode"), pytest.raises(CaptureError):
        dmbp.linearize(model, torch.randn(IMAGES), target=1)
    assert same(before, state_of(model))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradients_may_be_switched_off(context: type) -> None:
    inputs = torch.randn(IMAGES)
    model = nets.ResidualNet().eval()
    expected = dmbp.linearize(model, inputs, target=1).pullback()
    with context():
        assert torch.equal(dmbp.linearize(model, inputs.clone(), target=1).pullback(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model = nets.ResidualNet().to(dtype).eval()
    net = dmbp.linearize(model, torch.randn(IMAGES, dtype=dtype), target=1)
    assert net.value().dtype == dtype
    assert net.pullback().dtype == dtype


def test_a_model_changed_since_its_capture_is_captured_anew() -> None:
    model = nets.FunctionalNet().eval()
    linearizer = Linearizer(model)
    inputs = torch.randn(IMAGES)
    linearizer.linearize(inputs, target=0)
    nn.init.normal_(model.fc.weight)  # in place: the graph reads the model's own tensors
    assert torch.equal(linearizer.linearize(inputs, target=0).value(), model(inputs)[:, 0])
    model.fc = nn.Linear(8, 7).eval()  # another head
    assert torch.equal(linearizer.linearize(inputs, target=6).value(), model(inputs)[:, 6])
