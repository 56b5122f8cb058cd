"""Models with several inputs: one is explained, the others are constant."""

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.attribution import METHODS
from dmbp.errors import ModelError
from tests import nets
from tests.tolerance import BATCH, relative

IMAGES = (3, 3, 16, 16)


class WithExtraInputs(nets.ResidualNet):
    """Takes an image, a mask and a table index for each image, a factor and class weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(
        self, x: Tensor, mask: Tensor, kind: Tensor, factor: float = 1.0, weights: object = None
    ) -> Tensor:
        shift = torch.relu(self.table(kind))[:, :, None, None]
        out = super().forward(torch.relu(x * mask + shift) * factor)
        return out if weights is None else out * weights


class Bound(nn.Module):
    """The same model with its other inputs bound to fixed values."""

    def __init__(self, model: WithExtraInputs, *others: object) -> None:
        super().__init__()
        self.model, self.others = model, others

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, *self.others)


def model_and_inputs() -> tuple[WithExtraInputs, Tensor, tuple[object, ...]]:
    model = WithExtraInputs().double().eval()
    mask = torch.rand(3, 1, 16, 16, dtype=torch.float64)
    kind = torch.tensor([2, 0, 3])
    weights = torch.rand(5, dtype=torch.float64)
    return model, torch.randn(IMAGES, dtype=torch.float64), (mask, kind, 0.5, weights)


def of_image(others: tuple[object, ...], k: int) -> tuple[object, ...]:
    mask, kind, *rest = others
    return (mask[k : k + 1], kind[k : k + 1], *rest)


def test_each_image_has_its_own_linear_network() -> None:
    model, inputs, others = model_and_inputs()
    net = dmbp.linearize(model, inputs, target=[[1, 2], [3], [4]], additional_forward_args=others)
    expected = model(inputs, *others)
    torch.testing.assert_close(net.value(), expected[[0, 0, 1, 2], [1, 2, 3, 4]])
    x = inputs.clone().requires_grad_()
    gradient = torch.autograd.grad(model(x, *others)[[1, 2], [3, 4]].sum(), x)[0]
    torch.testing.assert_close(net.pullback()[2:], gradient[1:])


@pytest.mark.parametrize("name", [n for n in METHODS if n not in nets.NEED_ATTENTION])
def test_every_method_takes_extra_inputs(name: str) -> None:
    """Maps of a batch, with two targets for one image, equal those of each image alone."""
    fewer = {
        "rise": {"masks": 20},
        "lpr": {"iterations": 2},
        "blur_ig": {"steps": 3},
        "finercam": {"signed": True},
        "smoothgrad": {"samples": 3},
        "integrated_gradients": {"steps": 5},
    }
    settings = {"iterations": 3} if name.startswith("dmbp") else fewer.get(name, {})
    model, inputs, others = model_and_inputs()
    method = METHODS[name](model, **settings)
    maps = method.attribute(inputs, target=[[1, 2], [3], [4]], additional_forward_args=others)
    assert len(maps) == 4
    for row, (image, target) in enumerate([(0, 1), (0, 2), (1, 3), (2, 4)]):
        bound = Bound(model, *of_image(others, image)).eval()
        alone = METHODS[name](bound, **settings).attribute(
            inputs[image : image + 1], target=target, internal_batch_size=1
        )
        assert relative(maps[row : row + 1], alone) <= BATCH


def test_one_capture_serves_other_tensors_but_not_other_numbers(exports: list[object]) -> None:
    """A number among the extra inputs is a constant of the graph."""
    model, inputs, others = model_and_inputs()
    explainer = dmbp.DMBP(model, iterations=2)
    for given in (others, (others[0].flip(0), *others[1:]), (*others[:2], 0.7, others[3])):
        d = explainer.explain(inputs, target=1, additional_forward_args=given)
        torch.testing.assert_close(d.output, model(inputs, *given)[:, 1])
    assert len(exports) == 2


def test_a_single_extra_input_needs_no_tuple() -> None:
    class Scaled(nets.ResidualNet):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return super().forward(x) * scale[:, None]

    model, inputs, scale = Scaled().eval(), torch.randn(IMAGES), torch.rand(3)
    maps = METHODS["gradient"](model).attribute(inputs, None, 1, scale)
    assert torch.equal(maps, METHODS["gradient"](model).attribute(inputs, None, 1, (scale,)))


def test_extra_inputs_that_do_not_fit() -> None:
    model, inputs, others = model_and_inputs()
    with pytest.raises(
        ModelError, match="takes other inputs, too: 'mask' and 'kind'; pass them as"
    ):
        dmbp.linearize(model, inputs, target=1)
    with pytest.raises(ModelError, match="takes other inputs, too: 'kind'"):
        dmbp.DMBP(model).attribute(inputs, target=1, additional_forward_args=others[0])
    wrong = (others[0][:2, :, :5], *others[1:])
    with pytest.raises(ModelError, match="does not run on an input of shape"):
        dmbp.DMBP(model).attribute(inputs, target=1, additional_forward_args=wrong)


@pytest.mark.parametrize("images", [1, 2, 4, 5, 6])
@pytest.mark.parametrize("name", ["gradient", "integrated_gradients", "dmbp"])
def test_a_tensor_of_another_meaning_is_not_split_by_image(name: str, images: int) -> None:
    """A factor for each of the five classes may come with five images, or any other number."""

    class Weighted(nets.ResidualNet):
        def forward(self, x: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
            return super().forward(x) * weights * scale[:, None]

    model, inputs = Weighted().double().eval(), torch.randn(images, *IMAGES[1:]).double()
    weights, scale = torch.rand(5).double(), torch.rand(images).double()
    settings = {"iterations": 3} if name == "dmbp" else {}
    maps = METHODS[name](model, **settings).attribute(
        inputs, target=2, additional_forward_args=(weights, scale)
    )
    for k in range(images):
        alone = METHODS[name](Bound(model, weights, scale[k : k + 1]).eval(), **settings)
        assert relative(maps[k : k + 1], alone.attribute(inputs[k : k + 1], target=2)) <= BATCH
