"""Each method against an implementation of somebody else's, or against an identity it must keep."""

import pytest
import torch
from captum.attr import (
    DeepLift,
    GuidedBackprop,
    InputXGradient,
    IntegratedGradients,
    LayerGradCam,
    NoiseTunnel,
    Saliency,
)
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn
from torch.nn import functional

import dmbp
from dmbp.attribution import METHODS
from dmbp.attribution.blur_ig import BlurIG, gaussian_blur
from dmbp.attribution.fullgrad import full_gradient
from dmbp.attribution.gradcam import GradCAM, last_stage
from dmbp.attribution.rise import BLOCK, RISE
from dmbp.errors import InexactCapture, InputError
from dmbp.models.torchvision_models import import_torchvision
from tests import nets
from tests.tolerance import FLOAT64, relative

TARGET = [0, 1, 2]

# Captum's own remarks: that it switches gradients on, and that hooks are left out of a save.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Input Tensor 0 did not already require gradients"),
    pytest.mark.filterwarnings("ignore:Setting .* hooks"),
]


def images(side: int = 16) -> Tensor:
    return torch.randn(3, 3, side, side, dtype=torch.float64)


class HookedNet(nn.Module):
    """ReLUs as modules, each used once: what implementations by hooks can follow."""

    def __init__(self, pool: type[nn.Module] = nn.MaxPool2d) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            pool(2),
            nn.Conv2d(6, 8, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Sequential(pool(2), nn.Flatten(), nn.Linear(128, 10), nn.ReLU())
        self.last = nn.Linear(10, 5)
        nets.randomise_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.head(self.features(x)))


@pytest.fixture
def model() -> nn.Module:
    return HookedNet().double().eval()


def ours(name: str, model: nn.Module, inputs: Tensor, **settings: object) -> Tensor:
    return METHODS[name](model, **settings).attribute(inputs, target=TARGET)


def test_gradient_is_captums_and_the_pullback(model: nn.Module) -> None:
    inputs = images()
    theirs = InputXGradient(model).attribute(inputs, target=torch.tensor(TARGET))
    assert relative(ours("gradient", model, inputs), theirs) <= FLOAT64
    pullback = dmbp.linearize(model, inputs, target=TARGET).pullback()
    assert relative(ours("gradient", model, inputs), pullback * inputs) <= FLOAT64


def test_integrated_gradients_are_captums(model: nn.Module) -> None:
    inputs, start = images(), images()
    theirs = IntegratedGradients(model).attribute(inputs, start, target=torch.tensor(TARGET))
    method = METHODS["integrated_gradients"](model)
    mine = method.attribute(inputs, start, target=TARGET)
    assert relative(mine, theirs) <= FLOAT64


def test_integrated_gradients_add_up(model: nn.Module) -> None:
    """Captum's convergence delta: the sum against the change of the score."""
    inputs = images()
    with torch.no_grad():
        change = (model(inputs) - model(torch.zeros_like(inputs))).gather(
            1, torch.tensor(TARGET)[:, None]
        )[:, 0]
    coarse, fine = (
        ours("integrated_gradients", model, inputs, steps=steps).flatten(1).sum(1) - change
        for steps in (5, 2000)
    )
    assert fine.abs().max() < 0.01 * change.abs().max()
    assert fine.abs().max() < coarse.abs().max()


def test_smoothgrad_is_captums_noise_tunnel(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same noise, one image at a time: ours shares the noise between images."""
    inputs, samples = images()[:1], 6
    generator = torch.Generator().manual_seed(0)
    noise = torch.stack([torch.randn(inputs.shape[1:], generator=generator) for _ in range(6)])
    noise = noise.double() * 0.15 * (inputs.max() - inputs.min())
    monkeypatch.setattr(torch, "normal", lambda *_, **__: noise)
    tunnel = NoiseTunnel(Saliency(model))
    theirs = tunnel.attribute(
        inputs, nt_type="smoothgrad", nt_samples=samples, stdevs=1.0, target=0, abs=False
    )
    mine = METHODS["smoothgrad"](model, samples=samples).attribute(inputs, target=0)
    assert relative(mine, theirs * inputs) <= FLOAT64


def test_deeplift_is_captums_where_captums_works() -> None:
    """Not with max-pooling: there Captum's sum misses the score's change, and ours does not."""
    inputs, start = images(), images()
    model = HookedNet(nn.AvgPool2d).double().eval()
    theirs = DeepLift(model).attribute(inputs, start, target=torch.tensor(TARGET))
    mine = METHODS["deeplift"](model).attribute(inputs, start, target=TARGET)
    assert relative(mine, theirs) <= FLOAT64


@pytest.mark.parametrize(
    "net", [*(n for n in nets.IMAGE_NETWORKS if n not in nets.WITH_PRODUCTS), nets.SmoothNet]
)
def test_deeplift_adds_up_on_every_network(net: type[nn.Module]) -> None:
    model, inputs, start = net().double().eval(), images(), images()
    maps = METHODS["deeplift"](model).attribute(inputs, start, target=TARGET)
    with torch.no_grad():
        change = (model(inputs) - model(start))[range(3), TARGET]
    assert relative(maps.flatten(1).sum(1), change) <= FLOAT64


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "mobilenet_v2", "googlenet"])
def test_deeplift_adds_up_on_torchvisions(name: str) -> None:
    model = _torchvision(name)
    inputs = images(64)[:1]
    maps = METHODS["deeplift"](model).attribute(inputs, target=1)
    with torch.no_grad():
        score, start = (model(x)[:, 1] for x in (inputs, torch.zeros_like(inputs)))
    # Relative to the score: random weights may hardly change it.
    assert relative(maps.flatten(1).sum(1) + start, score) <= FLOAT64


def test_deeplift_has_no_slope_between_two_decisions() -> None:
    with pytest.raises(InexactCapture, match=r"use torch\.relu"):
        METHODS["deeplift"](nets.ReLUByComparison().double().eval()).attribute(images(), target=0)


def test_guided_backprop_is_captums(model: nn.Module) -> None:
    inputs = images()
    with pytest.warns(UserWarning, match="backward hooks"):
        theirs = GuidedBackprop(model).attribute(inputs, target=torch.tensor(TARGET))
    assert relative(ours("guided_backprop", model, inputs), theirs * inputs) <= FLOAT64


def test_guided_backprop_on_reused_and_functional_activations() -> None:
    """The same weights, with modules of their own, where Captum's can be compared."""
    reused = nets.ReusedNet().double().eval()
    unrolled = nn.Sequential(
        *[layer for conv in reused.convs for layer in (conv, nn.ReLU())],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        reused.fc,
    )
    inputs = images()
    with pytest.warns(UserWarning, match="backward hooks"):
        theirs = GuidedBackprop(unrolled).attribute(inputs, target=torch.tensor(TARGET))
    assert relative(ours("guided_backprop", reused, inputs), theirs * inputs) <= FLOAT64


def test_gradcam_is_captums(model: nn.Module) -> None:
    inputs = images()
    captum = LayerGradCam(model, model.features)
    theirs = captum.attribute(inputs, target=torch.tensor(TARGET), relu_attributions=True)
    theirs = functional.interpolate(theirs, inputs.shape[2:], mode="bilinear")
    assert relative(ours("gradcam", model, inputs), theirs) <= FLOAT64
    assert relative(ours("gradcam", model, inputs, layer="features"), theirs) <= FLOAT64
    earlier = ours("gradcam", model, inputs, layer="features.2")
    assert relative(earlier, theirs) > 0.01


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("resnet18", "layer4.1"),
        ("vgg11", "features.19"),
        ("densenet121", ""),
        ("googlenet", "inception5b"),
        ("mobilenet_v2", "features.18.2"),
        ("squeezenet1_1", "classifier.2"),
        ("convnext_tiny", "features.7.2"),
        ("swin_t", "permute"),
    ],
)
def test_the_last_stage_is_found(name: str, module: str) -> None:
    """The last thing everything passes before the pooling that ends the convolutions."""
    net = dmbp.linearize(_torchvision(name), images(64)[:1], target=0)
    assert last_stage(net).module.startswith(module)


def test_layers_that_cannot_be_shown(model: nn.Module) -> None:
    with pytest.raises(InputError, match="no layer 'featurs'; did you mean 'features"):
        GradCAM(model, layer="featurs").attribute(images(), target=0)
    with pytest.raises(InputError, match="'last' has no height and width"):
        GradCAM(model, layer="last").attribute(images(), target=0)


def test_gradcam_is_not_led_astray_by_rearranged_tensors() -> None:
    """Channels moved last, then averaged: four dimensions, but no feature map."""

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
        ours("gradcam", Moved(*layers, moved).eval(), inputs, signed=True)
        for moved in (True, False)
    )
    assert relative(one, other) <= FLOAT64


def test_gradcam_where_branches_are_pooled_apart() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 5), nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            pooled = [torch.relu(branch(x)).mean((2, 3)) for branch in (self.a, self.b)]
            return self.fc(torch.cat(pooled, 1))

    model = Apart().double().eval()
    with pytest.raises(InputError, match="name one of them with layer="):
        ours("gradcam", model, images())
    assert ours("gradcam", model, images(), layer="a").shape == (3, 1, 16, 16)


def test_gradcam_of_a_layer_that_is_run_twice() -> None:
    """One behind the other, the last is meant; side by side, neither sees everything."""

    class Twice(nn.Module):
        def __init__(self, *, apart: bool) -> None:
            super().__init__()
            self.a, self.fc, self.apart = nn.Conv2d(3, 3, 3), nn.Linear(3, 5), apart

        def forward(self, x: Tensor) -> Tensor:
            once = torch.relu(self.a(x))
            again = torch.relu(self.a(x.flip(3) if self.apart else once))
            pooled = again.mean((2, 3))
            return self.fc(once.mean((2, 3)) + pooled if self.apart else pooled)

    behind, apart = (Twice(apart=apart).double().eval() for apart in (False, True))
    assert ours("gradcam", behind, images(), layer="a").shape == (3, 1, 16, 16)
    with pytest.raises(
        InputError, match="'a' runs 2 times, and its last run does not see the whole image"
    ):
        ours("gradcam", apart, images(), layer="a")


def test_guided_gradcam_is_the_product(model: nn.Module) -> None:
    inputs = images()
    product = ours("guided_backprop", model, inputs) * ours("gradcam", model, inputs)
    assert relative(ours("guided_gradcam", model, inputs), product) <= FLOAT64


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg11_bn", "densenet121", "googlenet"])
def test_fullgrads_parts_are_the_whole_score(name: str) -> None:
    inputs = images(64)[:1]
    model = _torchvision(name)
    net = dmbp.linearize(model, inputs, target=1)
    parts = full_gradient(net)
    total = (parts.input_gradient * inputs).flatten(1).sum(1)
    total = total + sum(part.flatten(1).sum(1) for part in parts.contributions)
    with torch.no_grad():
        assert relative(total, model(inputs)[:, 1]) <= FLOAT64


def test_fullgrad_by_hand() -> None:
    """One convolution with a bias: |w x| and |b w'| scaled to [0, 1], added."""
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 1)).double()
    nn.init.constant_(model[0].weight, 2.0)
    nn.init.constant_(model[0].bias, 1.0)
    model[3].weight.data = torch.tensor([[1.0, -1.0, 0.5, 4.0]]).double()
    inputs = torch.tensor([[[[1.0, 2.0], [3.0, -4.0]]]]).double()
    # Gates 1 1 1 0; input · gradient 2 −4 3 0; bias · gradient 1 −1 0.5 0.
    expected = torch.tensor([2.0, 4.0, 3.0, 0.0]) / 4 + torch.tensor([1.0, 1.0, 0.5, 0.0])
    maps = METHODS["fullgrad"](model.eval()).attribute(inputs, target=0)
    torch.testing.assert_close(maps.flatten(), expected.double())


def test_gaussian_blur_is_scipys() -> None:
    inputs = images(20)
    for sigma in (0.0, 0.4, 2.0, 11.0):
        theirs = gaussian_filter(inputs.numpy(), (0, 0, sigma, sigma), mode="constant")
        torch.testing.assert_close(gaussian_blur(inputs, sigma), torch.from_numpy(theirs))


def test_blur_integrated_gradients_add_up(model: nn.Module) -> None:
    """The sum is the change of the score from the blurred image to the sharp one."""
    inputs = gaussian_blur(images(), 1.0)
    maps = BlurIG(model, max_sigma=8.0, steps=1600).attribute(inputs, target=TARGET)
    with torch.no_grad():
        change = (model(inputs) - model(gaussian_blur(inputs, 8.0)))[range(3), TARGET]
    assert (maps.flatten(1).sum(1) - change).abs().max() < 0.02 * change.abs().max()
    assert BlurIG(model, max_sigma=9.0, steps=3, square_root=True).sigmas()[-1] == 3.0


def test_rise_by_hand() -> None:
    """Half the cells open, masks drawn again here, a model that is the brightness."""

    class Brightness(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((1, 2, 3))[:, None]

    inputs = images(8)[:1]
    method = RISE(
        Brightness().eval(), masks=5, cells=2, open=0.5, activation=lambda outputs: outputs
    )
    generator = torch.Generator().manual_seed(0)
    cells = (torch.rand(BLOCK, 1, 2, 2, generator=generator) < 0.5).double()
    down, across = (torch.randint(4, (BLOCK,), generator=generator) for _ in range(2))
    expected = torch.zeros(8, 8).double()
    for k in range(5):
        large = functional.interpolate(cells[k : k + 1], (12, 12), mode="bilinear")[0, 0]
        mask = large[down[k] : down[k] + 8, across[k] : across[k] + 8]
        expected += (mask * inputs[0]).mean() * mask / (5 * 0.5)
    torch.testing.assert_close(method.attribute(inputs, target=0)[0, 0], expected)


def test_rise_finds_the_region_that_matters() -> None:
    class Corner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            lit = x[:, :, :8, :8].mean((1, 2, 3))
            return torch.stack([10 * lit, torch.zeros_like(lit)], 1)

    method = RISE(Corner().eval(), masks=300, cells=4, open=0.5)
    maps = method.attribute(torch.ones(1, 3, 32, 32), target=0)
    assert maps[0, 0, :8, :8].mean() > maps[0, 0, 16:, 16:].mean() * 1.05


def test_lpr_without_iterations_is_the_gradient(model: nn.Module) -> None:
    inputs = images()
    plain = ours("lpr", model, inputs, iterations=0)
    assert relative(plain, ours("gradient", model, inputs)) <= FLOAT64


def test_lpr_learns_what_its_loss_asks(model: nn.Module) -> None:
    """After learning, the image masked by the map keeps more of the score."""
    inputs = images()
    method = METHODS["lpr"](model, area=0.0, iterations=25)
    (question,) = method.questions(inputs, TARGET)
    learned, plain = (
        method._loss(map_, question)
        for map_ in (
            method.linear_map(question),
            METHODS["gradient"](model).linear_map(question),
        )
    )
    assert learned.sum() < 0.7 * plain.sum()


def _torchvision(name: str) -> nn.Module:
    torch.manual_seed(0)
    options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    model = getattr(import_torchvision().models, name)(weights=None, **options)
    nets.randomise_statistics(model)
    return model.double().eval()
