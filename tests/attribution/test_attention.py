"""Attention rollout and gradient-weighted attention against networks that keep what they attend."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dmbp.attribution import METHODS
from dmbp.errors import InputError
from tests import nets
from tests.attribution.networks import TARGET, attribute, images
from tests.attribution.token_networks import TOKEN_NETWORKS
from tests.tolerance import FLOAT64, relative

NAMES = ("attention_rollout", "attention_gradient")


class ViTThatKeeps(nets.WrittenOutViT):
    """TinyViT with attention written out, which keeps its probabilities."""

    def weigh(self, scores: Tensor) -> Tensor:
        probabilities = super().weigh(scores)
        if probabilities.requires_grad:
            probabilities.retain_grad()
        self.kept.append(probabilities)
        return probabilities


def by_hand(name: str, kept: list[Tensor], grid: tuple[int, int], size: torch.Size) -> Tensor:
    """The papers' formulas; the class token is the first one."""
    tokens = kept[0].shape[-1]
    one = torch.eye(tokens).double()
    total = one.expand(len(kept[0]), tokens, tokens)
    for probabilities in kept:
        a, g = probabilities.detach(), probabilities.grad
        if name == "attention_rollout":
            total = (a.mean(1) + one) / 2 @ total
        else:
            total = total + (g * a).clamp(min=0).mean(1) @ total
    patches = total[:, 0, 1:].unflatten(1, grid)[:, None]
    return functional.interpolate(patches, size, mode="bilinear")


@pytest.mark.parametrize("name", NAMES)
def test_the_formula(name: str) -> None:
    model, keeps = nets.TinyViT().double().eval(), ViTThatKeeps().double().eval()
    keeps.load_state_dict(model.state_dict())
    keeps.kept, inputs = [], images()
    keeps(inputs)[range(3), TARGET].sum().backward()
    expected = by_hand(name, keeps.kept, (4, 4), inputs.shape[2:])
    assert relative(attribute(name, model, inputs), expected) <= FLOAT64
    keeps.kept = []
    written_out = attribute(name, keeps, inputs)  # the same, though no operation is fused
    assert relative(written_out, expected) <= FLOAT64


@pytest.mark.parametrize("name", NAMES)
def test_a_network_of_timm(name: str) -> None:
    """Probabilities that hooks see where timm writes attention out, on 4 × 6 patches."""
    network = TOKEN_NETWORKS["vit"]
    model, inputs, kept = network.model(), network.images(), []

    def keep(_: nn.Module, arguments: tuple[Tensor], output: Tensor) -> None:
        output.retain_grad()
        kept.append(output)

    found = METHODS[name](model).attribute(inputs, target=1)
    hooks = []
    for block in model.blocks:
        block.attn.fused_attn = False
        hooks.append(block.attn.attn_drop.register_forward_hook(keep))
    model(inputs)[:, 1].sum().backward()
    for hook in hooks:
        hook.remove()
    expected = by_hand(name, kept, network.grid, inputs.shape[2:])
    assert relative(found, expected) <= FLOAT64


def test_tokens_that_the_score_is_read_from() -> None:
    """If the score is the mean of all tokens, so is the relevance of the rows."""

    class Mean(nets.TinyViT):
        def forward(self, x: Tensor) -> Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = x + self.outs[0](self._attend(self.mixes[0](self.norms[0](x))))
            return self.head(x.mean(1))

    class MeanThatKeeps(Mean, ViTThatKeeps):
        pass

    model, keeps = Mean().double().eval(), MeanThatKeeps().double().eval()
    keeps.load_state_dict(model.state_dict())
    keeps.kept, inputs = [], images()
    keeps(inputs)[range(3), TARGET].sum().backward()
    (probabilities,) = keeps.kept
    rollout = (probabilities.detach().mean(1) + torch.eye(16).double()) / 2
    weighted = (probabilities.grad * probabilities.detach()).clamp(min=0).mean(1)
    for name, relevance in zip(NAMES, (rollout, weighted), strict=True):
        patches = relevance.mean(1).unflatten(1, (4, 4))[:, None]
        expected = functional.interpolate(patches, (16, 16), mode="bilinear")
        assert relative(attribute(name, model, inputs), expected) <= FLOAT64


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("convnext", "the model has no attention layer whose probabilities could be shown"),
        ("swin of torchvision", "is not among all tokens of the image"),  # in windows
        ("cait", "is changed before it weighs values"),  # heads are mixed
    ],
)
def test_networks_that_are_refused(network: str, words: str) -> None:
    row = TOKEN_NETWORKS[network]
    with pytest.raises(InputError, match=words):
        METHODS["attention_rollout"](row.model()).attribute(row.images(1), target=1)


def test_a_score_that_reads_no_attention() -> None:
    class Shortcut(nets.TinyViT):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 0 + self.head(self.patches(x).mean((2, 3)))

    with pytest.warns(UserWarning, match="the score does not depend on what tokens attend to"):
        attribute("attention_gradient", Shortcut().double().eval(), images())
