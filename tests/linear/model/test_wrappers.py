"""Wrappers are removed; models and programs for a single image take batches."""

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.engine import ForwardPasses
from dmbp.linear.linearizer import Linearizer
from tests import nets
from tests.tolerance import relative

IMAGES = (2, 3, 16, 16)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports
@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        torch.compile,
        lambda model: torch.compile(nn.DataParallel(model)),
        lambda model: nn.DataParallel(torch.compile(model)),
    ],
)
def test_wrappers_are_removed(wrap: object) -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    wrapped = wrap(model)
    with pytest.warns(UserWarning, match="explained without its .* wrapper"):
        linearizer = Linearizer(wrapped)
    assert linearizer.model is model
    assert torch.equal(linearizer.linearize(inputs, target=1).value(), model(inputs)[:, 1])
    with pytest.warns(UserWarning, match="explained without its .* wrapper"):
        maps = dmbp.DMBP(wrapped, iterations=2).attribute(inputs, target=1)
    assert torch.equal(maps, dmbp.DMBP(model, iterations=2).attribute(inputs, target=1))


def test_a_wrapper_causes_one_warning_at_the_callers_line() -> None:
    wrapped = nn.DataParallel(nets.FunctionalNet().eval())
    with pytest.warns(UserWarning, match="explained without its DataParallel wrapper") as caught:
        dmbp.DMBP(wrapped)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports
def test_a_model_compiled_in_place() -> None:
    model, inputs = nets.ReusedNet().eval(), torch.randn(IMAGES)
    expected = model(inputs)[:, 1]
    model.compile(backend="eager")
    torch.testing.assert_close(dmbp.linearize(model, inputs, target=1).value(), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own imports
def test_a_compiled_part() -> None:
    model, inputs = nets.VGGLike().eval(), torch.randn(IMAGES)
    expected = model(inputs)[:, 1]
    model.features = torch.compile(model.features, backend="eager")
    torch.testing.assert_close(dmbp.linearize(model, inputs, target=1).value(), expected)


def test_a_program_for_one_image_takes_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of one size has no pass that computes in fewer bits, so the model gets none."""
    monkeypatch.setattr(ForwardPasses, "find", lambda *_, **__: None)
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    program = torch.export.export(model, (inputs[:1],))
    assert relative(dmbp.linearize(program, inputs, target=1).value(), model(inputs)[:, 1]) <= 1e-6
    for name in ("dmbp", "gradcam", "smoothgrad"):
        settings = {"iterations": 3} if name == "dmbp" else {}
        maps = [
            dmbp.methods()[name](net, **settings).attribute(inputs, target=1)
            for net in (program, model)
        ]
        assert relative(*maps) <= 1e-4


class OneAtATime(nn.Module):
    """Takes only a batch of one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.conv(x).squeeze(0)).mean((1, 2)))[None]


def test_a_model_that_takes_one_image_at_a_time() -> None:
    model = OneAtATime().eval()
    image = torch.randn(1, 3, 10, 10)
    assert torch.equal(dmbp.linearize(model, image, target=1).value(), model(image)[:, 1])
    assert dmbp.DMBP(model, iterations=3).attribute(image, target=1).shape == image.shape
