"""Stages of token networks: the layer that is taken, and its layout against one made by hand."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from dmbp.attribution import METHODS
from dmbp.attribution.gradcam import GradCAM
from dmbp.attribution.guided_backprop import GuidedGradCAM
from dmbp.attribution.stage import Stage, Stages
from dmbp.errors import InputError
from dmbp.linear import Linearizer
from tests.attribution.token_networks import TOKEN_NETWORKS, tokens
from tests.tolerance import FLOAT64, relative


def stages_of(model: nn.Module, images: Tensor) -> Stages:
    linearizer = Linearizer(model)
    net = linearizer.linearize(images, target=0)
    return Stages(net, linearizer.positions(images))


@cache
def captured(name: str) -> tuple[nn.Module, Tensor, Linearizer]:
    """A network of the table with images for it, captured once for all tests."""
    network = TOKEN_NETWORKS[name]
    model, images = network.model(), network.images()
    linearizer = Linearizer(model)
    linearizer.linearize(images, target=0)
    return model, images, linearizer


def named_stages(name: str) -> tuple[nn.Module, Tensor, Stages]:
    model, images, linearizer = captured(name)
    net = linearizer.linearize(images, target=0)
    return model, images, Stages(net, linearizer.positions(images))


def output_of(model: nn.Module, name: str, images: Tensor) -> Tensor:
    """The output of a module when the model runs as it is."""
    seen: list[Tensor] = []
    module = model.get_submodule(name)
    module = module[-1] if isinstance(module, nn.ModuleList) else module
    handle = module.register_forward_hook(lambda *call: seen.append(call[-1]))
    with handle, torch.no_grad():
        model(images)
    return seen[-1]


def name_and_size(stage: Stage) -> tuple[str, tuple[int, int]]:
    return stage.layer.name, stage.layer.size


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKEN_NETWORKS)
def test_the_last_stage(name: str) -> None:
    """It has the name, the size and the layout of the table, and its name gives the same map."""
    network = TOKEN_NETWORKS[name]
    model, images, stages = named_stages(name)
    stage = stages.last()
    assert name_and_size(stage) == (network.layer, network.grid)
    by_hand = network.lay_out(output_of(model, network.layer, images))
    assert relative(stage.activation, by_hand) <= FLOAT64
    named = stages.named(network.layer)
    assert torch.equal(named.activation, stage.activation)
    assert torch.equal(named.gradient, stage.gradient)
    assert stage.is_read


def test_other_layers_by_name() -> None:
    """Blocks, the modules inside them and windows are laid out too."""
    model, images, stages = named_stages("vit")
    for name, skip in (("blocks.0", 1), ("blocks.2.attn", 1), ("blocks.1.mlp.fc1", 1)):
        by_hand = tokens((4, 6), skip)(output_of(model, name, images))
        assert relative(stages.named(name).activation, by_hand) <= FLOAT64
    with pytest.raises(InputError, match=r"no layer 'block\.1'; did you mean"):
        stages.named("block.1")
    with pytest.raises(InputError, match=r"'head' has no height and width.*such as .*'blocks"):
        stages.named("head")


def test_windows_by_name() -> None:
    """Attention inside windows has them in its first dimension, with those of all images."""
    model, images, stages = named_stages("swin of timm")
    found = stages.named("layers.0.blocks.0.attn").activation
    windows = output_of(model, "layers.0.blocks.0.attn", images)  # (2 · 16, 16, channel)
    rows = windows.unflatten(0, (2, 4, 4)).unflatten(3, (4, 4))
    by_hand = rows.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
    assert relative(found, by_hand) <= FLOAT64


class Shuffled(nn.Module):
    """Tokens in an order of their own, in front of a class token, with the sequence first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
        self.block = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).permute(2, 0, 1)[self.order]
        x = torch.cat([patches, self.token.expand(1, patches.shape[1], -1)])
        x = self.block(x)
        return self.head((x + self.attention(x, x, x, need_weights=False)[0])[-1])


def test_tokens_in_any_order() -> None:
    model = Shuffled().double().eval()
    images = torch.randn(2, 3, 12, 16, dtype=torch.float64)
    stage = stages_of(model, images).last()
    assert name_and_size(stage) == ("block", (3, 4))
    with torch.no_grad():
        by_hand = model.block(model.embed(images).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert relative(stage.activation, by_hand) <= FLOAT64


def test_maps_do_not_depend_on_the_batch() -> None:
    model, images, linearizer = captured("swin of timm")
    for name, settings in (("gradcam", {"signed": True}), ("guided_gradcam", {}), ("fullgrad", {})):
        method = METHODS[name](model, **settings)
        method.linearizer.share_captures(linearizer)
        together = method.attribute(images, target=0)
        alone = torch.cat([method.attribute(one, target=0) for one in images.split(1)])
        assert relative(alone, together) <= FLOAT64


def test_a_layer_that_the_score_does_not_depend_on() -> None:
    """After the last block only the class token is read."""
    model, images, linearizer = captured("vit")
    cam = GradCAM(model, layer="blocks.2")
    cam.linearizer.share_captures(linearizer)
    with pytest.warns(UserWarning, match=r"at blocks\.2 is zero everywhere: the score does not"):
        assert not cam.attribute(images, target=0).any()


def test_the_layer_is_told() -> None:
    model, images, linearizer = captured("vit")
    for method in (GradCAM(model, signed=True), GuidedGradCAM(model)):
        method.linearizer.share_captures(linearizer)
        assert method.used_layer is None
        method.attribute(images, target=0)
        assert str(method.used_layer) == "blocks.1 (4×6)"
