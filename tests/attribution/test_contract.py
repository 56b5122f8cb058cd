"""The contract that every row of the method table keeps, on every kind of network."""

from functools import cache

import numpy
import pytest
import torch
from captum.attr import Attribution
from torch import Tensor, nn

from dmbp.attribution import METHODS, Method
from dmbp.errors import InputError, ModelError, TargetError
from tests import nets
from tests.attribution.networks import captures
from tests.tolerance import BATCH, relative

IMAGES = (3, 3, 16, 16)
SMALLER = {
    "rise": {"masks": 30},
    "lpr": {"iterations": 3},
    "smoothgrad": {"samples": 4},
    "blur_ig": {"steps": 6, "max_sigma": 3.0},
    "integrated_gradients": {"steps": 6},
    "scorecam": {"channels": 4},
    "finercam": {"signed": True},  # with random weights, no region may raise a difference
    "occlusion": {"window": 0.5},
    "windows": {"window": 0.5},
    "kernel_shap": {"count": 9, "samples": 40},
}
"""Fewer samples than the defaults: what is checked does not depend on their number."""

ABLATIONS = ("dmbp_paper", "dmbp_posneg", "dmbp_pos")
"""Rows that differ from `dmbp` in settings only, and need not be tried on every network."""


@cache
def network(net: type[nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    """One network of a kind for all tests, which check that methods leave it as it is."""
    torch.manual_seed(0)
    return net().to(dtype).eval()


def network_for(
    name: str, net: type[nn.Module] = nets.VGGLike, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """A network that a method explains: one with attention for those that need it."""
    return network(nets.TinyViT if name in nets.NEED_ATTENTION else net, dtype)


def make(name: str, model: nn.Module, **settings: object) -> Method:
    fewer = {"iterations": 4} if name.startswith("dmbp") else SMALLER.get(name, {})
    method = METHODS[name](model, **{**fewer, **settings})
    method.linearizer.share_captures(captures(model))
    return method


@pytest.mark.parametrize(
    ("name", "net"),
    [
        (name, net)
        for name in METHODS
        for net in ((nets.VGGLike, nets.TinyViT) if name in ABLATIONS else nets.IMAGE_NETWORKS)
        if name != "deeplift" or net not in nets.WITH_PRODUCTS
        if name not in nets.NEED_ATTENTION or net is nets.TinyViT
    ],
)
def test_contract(name: str, net: type[nn.Module]) -> None:
    """Shape, dtype, finite; the same again; batch = loop; batches inside change nothing."""
    model, inputs = network(net), torch.randn(IMAGES, dtype=torch.float64)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    method = make(name, model)
    maps = method.attribute(inputs, target=[0, 1, 2])
    assert maps.shape == ((3, 1, 16, 16) if METHODS[name].regions else inputs.shape)
    assert maps.dtype == inputs.dtype
    assert torch.isfinite(maps).all()
    assert not maps.requires_grad
    assert torch.equal(maps, method.attribute(inputs, target=[0, 1, 2]))
    alone = torch.cat([method.attribute(inputs[k : k + 1], target=k) for k in range(3)])
    assert relative(alone, maps) <= BATCH
    for size in (1, 7):
        parts = method.attribute(inputs, target=[0, 1, 2], internal_batch_size=size)
        assert relative(parts, maps) <= BATCH
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert not any(parameter.grad is not None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("name", METHODS)
def test_an_image_with_several_targets(name: str) -> None:
    model = network_for(name, nets.ResidualNet, torch.float64)
    inputs = torch.randn(IMAGES, dtype=torch.float64)
    method = make(name, model)
    maps = method.attribute(inputs, target=[[0, 4], [1], [2]])
    assert len(maps) == 4
    assert relative(maps[1:2], method.attribute(inputs[:1], target=4)) <= BATCH


@pytest.mark.parametrize("name", METHODS)
def test_a_function_of_the_outputs_as_target(name: str) -> None:
    model = network_for(name, nets.ResidualNet, torch.float64)
    inputs = torch.randn(IMAGES, dtype=torch.float64)
    # RISE reads classes from probabilities, but hands the outputs themselves to a function.
    settings = {"activation": "none"} if METHODS[name].probabilistic else {}
    method = make(name, model, **settings)
    weighted = method.attribute(inputs, target={1: 1.0, 3: -2.0})
    function = method.attribute(inputs, target=lambda outputs: outputs[1] - 2 * outputs[3])
    assert relative(function, weighted) <= BATCH


class ClassOutput:
    """A target as users of pytorch-grad-cam write them: a callable on one image's outputs."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __call__(self, outputs: Tensor) -> Tensor:
        return outputs[self.index] if outputs.dim() == 1 else outputs[:, self.index]


def test_a_callable_for_each_image() -> None:
    model, inputs = nets.VGGLike().eval(), torch.randn(IMAGES)
    method = METHODS["gradcam"](model)
    found = method.attribute(inputs, target=[ClassOutput(1), ClassOutput(3), ClassOutput(0)])
    assert torch.equal(found, method.attribute(inputs, target=[1, 3, 0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", METHODS)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    model, inputs = network_for(name, dtype=dtype), torch.randn(IMAGES).to(dtype)
    maps = make(name, model).attribute(inputs, target=1)
    assert maps.dtype == dtype
    assert torch.isfinite(maps).all()


@pytest.mark.parametrize("name", METHODS)
def test_captums_conventions(name: str) -> None:
    model, inputs = network_for(name), torch.randn(IMAGES)
    method = make(name, model)
    assert isinstance(method, Attribution)
    (maps,) = method.attribute((inputs,), target=1)
    assert torch.equal(maps, method.attribute(inputs, None, 1))
    with pytest.raises(ModelError, match="does not run on an input of shape"):
        method.attribute(inputs, target=1, additional_forward_args=(1,))


@pytest.mark.parametrize("name", METHODS)
def test_targets_that_are_refused(name: str) -> None:
    model, inputs = network_for(name), torch.randn(IMAGES)
    method = make(name, model)
    with pytest.raises(TargetError, match="out of range"):
        method.attribute(inputs, target=5)
    with pytest.raises(TargetError, match="2 targets were given for 3 images"):
        method.attribute(inputs, target=[0, 1])
    with pytest.raises(InputError, match="internal_batch_size must be 1 or more"):
        method.attribute(inputs, target=0, internal_batch_size=0)
    with pytest.raises(TargetError, match="must return one number"):
        method.attribute(inputs, target=lambda outputs: outputs)


class TrainedViT(nets.TinyViT):
    """A network with attention and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.bn1(x))


@pytest.mark.parametrize("name", [n for n in METHODS if n not in (*ABLATIONS, "random")])
def test_a_model_in_training_mode_is_restored(name: str) -> None:
    model, inputs = (
        TrainedViT() if name in nets.NEED_ATTENTION else nets.ResidualNet(),
        torch.randn(IMAGES),
    )
    statistics = model.bn1.running_mean.clone()
    with pytest.warns(UserWarning, match="training mode"):
        maps = make(name, model).attribute(inputs, target=0)
    assert model.training
    assert torch.equal(model.bn1.running_mean, statistics)
    assert torch.equal(maps, make(name, model.eval()).attribute(inputs, target=0))


CAMS = (
    "gradcam", "gradcam_plus_plus", "hirescam", "layercam", "scorecam", "finercam",
)  # fmt: skip
ONLY_IMAGES = (*CAMS, *nets.NEED_ATTENTION, "guided_gradcam", "fullgrad", "rise", "blur_ig")


@pytest.mark.parametrize("name", METHODS)
def test_inputs_other_than_images(name: str) -> None:
    model, inputs = network(nets.MLP, torch.float32), torch.randn(4, 7)
    method = make(name, model)
    if name in ONLY_IMAGES:
        with pytest.raises(InputError, match=r"no layer with a height|needs images|no attention"):
            method.attribute(inputs, target=0)
    else:
        assert method.attribute(inputs, target=0).shape == inputs.shape


class Conv1d(nn.Sequential):
    """A network of signals with two channels."""

    shape = (3, 2, 20)

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(2, 6, 5), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(6, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
            nn.Linear(6, 4),
        )  # fmt: skip
        self[-1].weight.data.abs_()  # some region raises every score


class Conv3d(nn.Sequential):
    """A network of volumes."""

    shape = (3, 1, 8, 6, 10)

    def __init__(self) -> None:
        super().__init__(
            nn.Conv3d(1, 6, 3), nn.BatchNorm3d(6), nn.ReLU(), nn.MaxPool3d(2),
            nn.Conv3d(6, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(),
            nn.Linear(6, 4),
        )  # fmt: skip
        self[-1].weight.data.abs_()


@pytest.mark.parametrize("net", [Conv1d, Conv3d])
@pytest.mark.parametrize(
    "name", [n for n in METHODS if n not in (*ABLATIONS, *nets.NEED_ATTENTION)]
)
def test_signals_and_volumes(name: str, net: type[Conv1d | Conv3d]) -> None:
    """Shape, dtype, the same again; batch = loop, as for images."""
    model = network(net)
    inputs = torch.randn(net.shape, dtype=torch.float64)
    method = make(name, model)
    maps = method.attribute(inputs, target=[0, 1, 2])
    channels = 1 if METHODS[name].regions else inputs.shape[1]
    assert maps.shape == (len(inputs), channels, *inputs.shape[2:])
    assert maps.dtype == inputs.dtype
    assert torch.isfinite(maps).all()
    assert maps.flatten(1).any(1).all()
    assert torch.equal(maps, method.attribute(inputs, target=[0, 1, 2]))
    alone = torch.cat([method.attribute(inputs[k : k + 1], target=k) for k in range(3)])
    assert relative(alone, maps) <= BATCH


@pytest.mark.parametrize("name", [*CAMS, "guided_gradcam", "fullgrad", "lrp_gamma", "lrp_epsilon"])
def test_a_signal_is_an_image_of_one_line(name: str) -> None:
    def layers(dims: int) -> nn.Module:
        conv, norm, pool = {
            1: (nn.Conv1d, nn.BatchNorm1d, nn.MaxPool1d),
            2: (nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d),
        }[dims]
        across = (1,) * (dims - 1)
        return nn.Sequential(
            conv(2, 6, (*across, 5)), norm(6), nn.ReLU(), pool((*across, 2)),
            conv(6, 6, (*across, 3)), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4),
        )  # fmt: skip

    line, image = layers(1).double().eval(), layers(2).double().eval()
    signal = torch.randn(Conv1d.shape, dtype=torch.float64)
    line(signal), image(signal[:, :, None])
    nets.randomise_statistics(line)
    line[-1].weight.data.abs_()
    image.load_state_dict(
        {
            key: value[:, :, None] if value.dim() == 3 else value
            for key, value in line.state_dict().items()
        }
    )
    for target in range(2):
        of_line = make(name, line).attribute(signal, target=target)
        of_image = make(name, image).attribute(signal[:, :, None], target=target)
        assert relative(of_image[:, :, 0], of_line) <= BATCH


@pytest.mark.parametrize("name", ["rise", "smoothgrad", "kernel_shap", "random"])
def test_a_generator_decides_what_is_drawn(name: str) -> None:
    model, inputs = network_for(name), torch.randn(IMAGES)

    def maps(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return make(name, model, generator=generator).attribute(inputs, target=1)

    assert torch.equal(maps(1), maps(1))
    assert not torch.equal(maps(1), maps(2))
    generator = torch.Generator().manual_seed(1)
    method = make(name, model, generator=generator)
    assert not torch.equal(method.attribute(inputs, target=1), method.attribute(inputs, target=1))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rise", {"masks": 0}),
        ("rise", {"open": 0.0}),
        ("smoothgrad", {"samples": 0}),
        ("integrated_gradients", {"steps": 0}),
        ("blur_ig", {"steps": 0}),
        ("lpr", {"learning_rate": 0.0}),
        ("scorecam", {"channels": 0}),
        ("finercam", {"strength": -1.0}),
        ("kernel_shap", {"samples": 1}),
        ("lrp_gamma", {"gamma": -1.0}),
    ],
)
def test_settings_out_of_range(name: str, settings: dict[str, object]) -> None:
    with pytest.raises(InputError, match="must be"):
        METHODS[name](nets.VGGLike().eval(), **settings)


@pytest.mark.parametrize("name", METHODS)
def test_baselines_are_used_or_refused(name: str) -> None:
    model, inputs = network_for(name), torch.randn(IMAGES)
    method = make(name, model)
    if not method.takes_baselines:
        with pytest.raises(InputError, match="takes no baselines"):
            method.attribute(inputs, torch.zeros_like(inputs), target=0)
        return
    each = torch.randn(IMAGES)
    maps = method.attribute(inputs, each, target=0)
    assert not torch.allclose(maps, method.attribute(inputs, 0.5, target=0))
    assert torch.equal(maps, method.attribute((inputs,), (each,), target=0)[0])
    with pytest.raises(InputError, match="contains NaN"):
        method.attribute(inputs, each * torch.nan, target=0)


@pytest.mark.parametrize(
    "name", ["gradient", "guided_gradcam", "lpr", "lrp_gamma", "occlusion", "kernel_shap", "dmbp"]
)
def test_a_reference_for_every_image_follows_its_rows(name: str) -> None:
    model, inputs = nets.VGGLike().double().eval(), torch.randn(IMAGES, dtype=torch.float64)
    each = torch.randn(IMAGES, dtype=torch.float64)
    setting = "background" if name == "lpr" else "reference"
    together = make(name, model, **{setting: each})
    maps = together.attribute(inputs, target=[[0, 1], [1], [2]], internal_batch_size=2)
    alone = make(name, model, **{setting: each[2:]}).attribute(inputs[2:], target=2)
    assert relative(maps[3:], alone) <= BATCH
    with pytest.raises(InputError, match="2 references were given for 3 images"):
        make(name, model, **{setting: each[:2]}).attribute(inputs, target=0)


def test_targets_of_numpy() -> None:
    model, inputs = nets.VGGLike().eval(), torch.randn(IMAGES)
    method = make("gradient", model)
    expected = method.attribute(inputs, target=[1, 2, 0])
    assert torch.equal(method.attribute(inputs, target=numpy.array([1, 2, 0])), expected)
    scalars = [numpy.int64(1), torch.tensor(2), numpy.array(0)]
    assert torch.equal(method.attribute(inputs, target=scalars), expected)
    method.attribute(inputs, target={1: numpy.float32(1.0)})
    for wrong in ({1, 2}, [[[1]], [2], [0]]):
        with pytest.raises(TargetError):
            method.attribute(inputs, target=wrong)
    with pytest.raises(TargetError, match=r"fails on one image's outputs, of shape \(5,\)"):
        method.attribute(inputs, target=lambda outputs: outputs[:, 1])
    with pytest.raises(InputError, match="inputs must be a tensor, not ndarray"):
        method.attribute(inputs.numpy(), target=1)


@pytest.mark.parametrize("name", ["guided_backprop", "lpr", "dmbp"])
def test_rules_at_activations_need_activations(name: str) -> None:
    with pytest.raises(ModelError, match=r"use torch\.relu"):
        make(name, nets.ReLUByComparison().eval()).attribute(torch.randn(IMAGES), target=0)
