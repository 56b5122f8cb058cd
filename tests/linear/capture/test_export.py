"""Models and exported programs become graphs, or a clear message says why they cannot."""

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import CaptureError, ModelError, UnsupportedOperation
from dmbp.linear.linearizer import Linearizer
from tests import nets

IMAGES = (2, 3, 16, 16)


class Counter(nets.ResidualNet):
    """Updates a buffer on every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1.0)
        return super().forward(x)


class WithoutGradients(nets.ResidualNet):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class WithGradients(nets.ResidualNet):
    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(True):
            return super().forward(x)


class WritesIntoItsInput(nets.ResidualNet):
    def forward(self, x: Tensor) -> Tensor:
        x -= 0.3
        return super().forward(x.relu_())


@pytest.mark.parametrize("make", [Counter, WithoutGradients, WithGradients, WritesIntoItsInput])
def test_models_with_side_effects_and_gradient_modes(make: type[nn.Module]) -> None:
    model, inputs = make().eval(), torch.randn(IMAGES)
    before = inputs.clone()
    net = dmbp.linearize(model, inputs, target=1)
    assert torch.equal(inputs, before)
    assert torch.equal(net.value(), model(inputs.clone())[:, 1])
    assert net.pullback().abs().max() > 0


def test_a_wrapper_with_variable_arguments(exports: list[object]) -> None:
    class Wrapper(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: Tensor) -> Tensor:
            return self.model(*args)

    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    linearizer = Linearizer(Wrapper(model).eval())
    for count in (3, 1):
        net = linearizer.linearize(inputs[:count], target=1)
        assert torch.equal(net.value(), model(inputs[:count])[:, 1])
    assert len(exports) == 1


class FixedBatch(nets.ResidualNet):
    """Reads its batch size as a Python number, which binds the exported graph to it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(int(x.shape[0]), 3, 16, 16))


def test_a_graph_bound_to_a_batch_size_is_captured_again() -> None:
    model, inputs = FixedBatch().eval(), torch.randn(5, 3, 16, 16)
    linearizer = Linearizer(model)
    for count in (1, 5, 2, 1):
        net = linearizer.linearize(inputs[:count], target=1)
        assert torch.equal(net.value(), model(inputs[:count])[:, 1])


def test_an_exported_program_is_a_model() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    program = torch.export.export(model, (inputs,))
    net = dmbp.linearize(program, inputs, target=1)
    assert torch.equal(net.value(), model(inputs)[:, 1])


def test_a_program_exported_for_another_batch_size() -> None:
    program = torch.export.export(nets.ResidualNet().eval(), (torch.randn(IMAGES),))
    with pytest.raises(ModelError, match=r"does not run on an input of shape \(3, 3, 16, 16\)"):
        dmbp.linearize(program, torch.randn(3, 3, 16, 16), target=1)
    d = dmbp.linearize(program, torch.randn(IMAGES), target=1)
    assert d.exactness <= 1e-4


def test_the_callers_program_is_unchanged() -> None:
    model, inputs = nets.ReusedNet().eval(), torch.randn(IMAGES)
    model.relu.inplace = True
    program = torch.export.export(model, (inputs,))
    before = str(program.graph)
    assert "relu_" in before
    dmbp.linearize(program, inputs, target=1)
    assert str(program.graph) == before


def test_a_program_exported_in_training_mode_is_refused() -> None:
    inputs = torch.randn(4, 3, 16, 16)
    images = ({0: torch.export.Dim("images", min=2)},)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    program = torch.export.export(model.train(), (inputs,), dynamic_shapes=images)
    with pytest.raises(UnsupportedOperation, match=r"evaluation mode with model\.eval\(\)"):
        dmbp.linearize(program, inputs, target=0)


def test_a_softmax_that_is_nearly_the_last_layer_is_pointed_out() -> None:
    model = nn.Sequential(nets.ResidualNet(), nn.Softmax(1), nn.Linear(5, 3)).eval()
    with pytest.raises(CaptureError, match=r"softmax.*at '1'.*last layer, explain the model"):
        dmbp.linearize(model, torch.randn(IMAGES), target=1)
