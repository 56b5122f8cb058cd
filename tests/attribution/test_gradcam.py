"""GradCAM against Captum's, and which tensor it takes for the last stage."""

from collections.abc import Callable

import pytest
import torch
from captum.attr import LayerGradCam
from torch import Tensor, nn
from torch.nn import functional

from dmbp.attribution.base import Layer
from dmbp.attribution.gradcam import GradCAM
from dmbp.errors import InputError
from dmbp.models.torchvision_models import import_torchvision
from tests import nets
from tests.attribution.networks import TARGET, HookedNet, attribute, images, torchvision_network
from tests.tolerance import FLOAT64, relative


def test_it_is_captums(model: HookedNet) -> None:
    inputs = images()
    captums = LayerGradCam(model, model.features)
    expected = captums.attribute(inputs, target=torch.tensor(TARGET), relu_attributions=True)
    expected = functional.interpolate(expected, inputs.shape[2:], mode="bilinear")
    assert relative(attribute("gradcam", model, inputs), expected) <= FLOAT64
    assert relative(attribute("gradcam", model, inputs, layer="features"), expected) <= FLOAT64
    earlier = attribute("gradcam", model, inputs, layer="features.2")
    assert relative(earlier, expected) > 0.01


class ChannelsLast(nn.Module):
    """Mixes channels in the last dimension, as Swin does, and moves them back before pooling."""

    class Permute(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.permute(0, 3, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix, self.fc = nn.Conv2d(3, 6, 3), nn.Linear(6, 8), nn.Linear(8, 5)
        self.back = self.Permute()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.mix(self.conv(x).permute(0, 2, 3, 1)))
        return self.fc(self.back(x).mean((2, 3)))


@pytest.mark.parametrize(
    ("net", "module"),
    [
        (nets.VGGLike, "features.4"),  # the pooling after it is passed over
        (nets.FunctionalNet, "relu_2"),  # an operation of the model itself
        (ChannelsLast, "back"),
    ],
)
def test_the_last_stage(net: type[nn.Module], module: str) -> None:
    """It is the last tensor every path passes before the pooling that ends the convolutions."""
    cam = GradCAM(net().eval(), signed=True)
    cam.attribute(torch.randn(1, 3, 16, 16), target=0)
    assert cam.used_layer is not None
    assert cam.used_layer.name == module


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("resnet18", "layer4"),
        ("googlenet", "inception5b"),
        ("squeezenet1_1", "classifier.2"),
    ],
)
def test_the_last_stage_of_torchvisions(name: str, module: str) -> None:
    cam = GradCAM(torchvision_network(name), signed=True)
    cam.attribute(images(64)[:1], target=0)
    assert cam.used_layer is not None
    assert cam.used_layer.name == module


def small_densenet() -> nn.Module:
    models = import_torchvision().models
    return models.DenseNet(growth_rate=4, block_config=(2, 2), num_init_features=8, num_classes=5)


def small_efficientnet() -> nn.Module:
    efficientnet = import_torchvision().models.efficientnet
    blocks = [efficientnet.MBConvConfig(4, 3, 2, 8, 8, 1, 1.0, 1.0)]
    return efficientnet.EfficientNet(blocks, dropout=0.0, last_channel=16, num_classes=5)


def small_vgg() -> nn.Module:
    features = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 512, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2),
    )  # fmt: skip
    vgg = import_torchvision().models.VGG(features, num_classes=5, init_weights=False)
    vgg.classifier = nn.Linear(512 * 7 * 7, 5)
    return vgg


@pytest.mark.parametrize(
    ("make", "layer"),
    [
        (small_densenet, ("relu__10", (4, 4))),  # forward() itself calls this, its eleventh ReLU
        (small_efficientnet, ("features", (8, 8))),
        (small_vgg, ("features.4", (16, 16))),
    ],
)
def test_the_last_stage_of_small_ones(
    make: Callable[[], nn.Module], layer: tuple[str, tuple[int, int]]
) -> None:
    cam = GradCAM(make().eval(), signed=True)
    cam.attribute(torch.randn(1, 3, 32, 32), target=0)
    assert cam.used_layer == Layer(*layer)


def test_layers_that_cannot_be_shown(model: nn.Module) -> None:
    with pytest.raises(InputError, match="no layer 'featurs'; did you mean 'features"):
        GradCAM(model, layer="featurs").attribute(images(), target=0)
    with pytest.raises(InputError, match="'last' has no height and width"):
        GradCAM(model, layer="last").attribute(images(), target=0)


def test_rearranged_tensors_are_not_stages() -> None:
    """With channels moved last and then averaged there are four dimensions, but no feature map."""

    class Moved(nn.Module):
        def __init__(self, conv: nn.Module, fc: nn.Module, moved: bool) -> None:
            super().__init__()
            self.conv, self.fc, self.moved = conv, fc, moved

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.conv(x))
            return self.fc(x.permute(0, 2, 3, 1).mean((1, 2)) if self.moved else x.mean((2, 3)))

    layers = nn.Conv2d(3, 4, 3).double(), nn.Linear(4, 5).double()
    inputs = images()
    one, other = (
        attribute("gradcam", Moved(*layers, moved).eval(), inputs, signed=True)
        for moved in (True, False)
    )
    assert relative(one, other) <= FLOAT64


def test_branches_that_are_pooled_separately() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 5), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            pooled = [torch.relu(branch(x)).mean((2, 3)) for branch in (self.a, self.b)]
            return self.fc(torch.cat(pooled, 1))

    model = Branches().double().eval()
    with pytest.raises(InputError, match="name one of them with layer="):
        attribute("gradcam", model, images())
    assert attribute("gradcam", model, images(), layer="a").shape == (3, 1, 16, 16)


def test_a_layer_that_runs_twice() -> None:
    """One after the other, the last run is meant; side by side, neither sees everything."""

    class Twice(nn.Module):
        def __init__(self, *, parallel: bool) -> None:
            super().__init__()
            self.a, self.fc, self.parallel = nn.Conv2d(3, 3, 3), nn.Linear(3, 5), parallel

        def forward(self, x: Tensor) -> Tensor:
            once = torch.relu(self.a(x))
            again = torch.relu(self.a(x.flip(3) if self.parallel else once))
            pooled = again.mean((2, 3))
            return self.fc(once.mean((2, 3)) + pooled if self.parallel else pooled)

    in_turn, parallel = (Twice(parallel=parallel).double().eval() for parallel in (False, True))
    assert attribute("gradcam", in_turn, images(), layer="a").shape == (3, 1, 16, 16)
    with pytest.raises(InputError, match="'a' runs 2 times, and its last run does not see"):
        attribute("gradcam", parallel, images(), layer="a")
