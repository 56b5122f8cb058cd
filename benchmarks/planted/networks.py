"""A small CNN and a small ViT, trained on planted images until interventions show the rule.

    >>> network = CNN().eval()
    >>> network(as_inputs([render(draw_scene(numpy.random.default_rng(0)))])).shape
    torch.Size([1, 4])

Training draws 12,000 scenes and minimises the cross entropy between the network's probabilities
and those of the rule. Pictures are flipped at random, which changes no texture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.planted.images import CLASSES, SIDE, as_inputs, draw_scene, log_odds, render
from benchmarks.planted.questions import measure_rates

TRAINING_SEED, CHECKING_SEED = 1, 2
SCENES, BATCH, CYCLES = 12_000, 32, 3


class CNN(nn.Module):
    """Convolutions with batch norm, ReLU and two residual blocks, then a global average."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(3, 16, 5, 2), nn.ReLU())
        self.stages = nn.Sequential(_Block(16, 48, 2), _Block(48, 96, 2))
        self.hidden = nn.Sequential(nn.Linear(96, 96), nn.ReLU())
        self.head = nn.Linear(96, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the log odds of every class."""
        features = self.stages(self.stem(x))
        return self.head(self.hidden(features.mean((2, 3))))


class _Block(nn.Module):
    """Two convolutions beside a projection."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(channels, out, 3, stride)
        self.second = _convolution(out, out, 3)
        self.skip = _convolution(channels, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.second(functional.relu(self.first(x))) + self.skip(x))


def _convolution(channels: int, out: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(channels, out, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out))


class ViT(nn.Module):
    """A transformer on patches of 8 × 8 pixels; the mean of its tokens is classified."""

    def __init__(self, width: int = 64, depth: int = 3, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (SIDE // patch) ** 2, width) * 0.02)
        self.layers = nn.Sequential(*(_Layer(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return the log odds of every class."""
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(tokens)).mean(1))


class _Layer(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and beside a skip connection."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.projections(self.norm1(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.perceptron(self.norm2(x))


@dataclass(frozen=True)
class Recipe:
    """A network and how it is trained: epochs in a cycle and the largest learning rate."""

    make: Callable[[], nn.Module]
    epochs: int
    learning_rate: float


NETWORKS: Mapping[str, Recipe] = {
    "cnn": Recipe(CNN, epochs=8, learning_rate=3e-3),
    "vit": Recipe(ViT, epochs=16, learning_rate=1e-3),
}


def load_network(name: str, folder: Path, device: str = "cpu") -> nn.Module:
    """Return a trained network, from a file in `folder` or trained now and written there.

    It is trained on a device, on which its weights come out a little different, and returned on the
    CPU.
    """
    torch.manual_seed(0)
    network = NETWORKS[name].make()
    path = folder / f"{name}.safetensors"
    if path.exists():
        network.load_state_dict(load_file(path))
        print(f"{name}: weights from {path}")
        return network.eval()
    train(network, NETWORKS[name], device)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(network.state_dict(), path)
    return network.eval()


def train(network: nn.Module, recipe: Recipe, device: str = "cpu") -> None:
    """Train in cycles until the network follows the rule.

    Raises:
        SystemExit: If it does not after all cycles.
    """
    pictures, wanted = _training_set()
    for cycle in range(CYCLES):
        _train_cycle(network.to(device), recipe, pictures.to(device), wanted.to(device))
        network.cpu()
        rates = measure_rates(network.eval(), 200, seed=CHECKING_SEED)
        print(f"cycle {cycle + 1}: {rates}", flush=True)
        if rates.follows_rule():
            return
    raise SystemExit(f"the network does not follow the rule after {CYCLES} cycles of training")


def _training_set() -> tuple[Tensor, Tensor]:
    """Return pictures as bytes and the rule's probabilities."""
    random = numpy.random.default_rng(TRAINING_SEED)
    scenes = [draw_scene(random) for _ in range(SCENES)]
    pictures = torch.as_tensor(numpy.stack([render(scene) for scene in scenes]))
    return pictures, torch.tensor([log_odds(scene) for scene in scenes]).sigmoid()


def _train_cycle(network: nn.Module, recipe: Recipe, pictures: Tensor, wanted: Tensor) -> None:
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        recipe.learning_rate,
        epochs=recipe.epochs,
        steps_per_epoch=len(pictures) // BATCH,
    )
    for epoch in range(recipe.epochs):
        losses = []
        for rows in torch.randperm(len(pictures)).split(BATCH)[: len(pictures) // BATCH]:
            inputs = as_inputs(pictures[rows])
            flipped = [d for d in (2, 3) if torch.rand(()) < 0.5]
            outputs = network(inputs.flip(flipped))
            loss = functional.binary_cross_entropy_with_logits(outputs, wanted[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        excess = torch.stack(losses).mean() - _entropy(wanted)
        print(f"  epoch {epoch + 1}: excess loss {excess:.4f}", flush=True)


def _entropy(wanted: Tensor) -> Tensor:
    """Return the loss of the rule itself, the least that a network can reach."""
    return functional.binary_cross_entropy(wanted, wanted)
