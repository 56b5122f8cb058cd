"""Attention maps: how tokens have attended to each other, followed through all layers.

    rollout     R = Π_b (I + mean_h A_b) / 2                    the same for all targets
    gradients   R ← R + Ā_b R,  Ā_b = mean_h relu(∂y/∂A_b ⊙ A_b)    from R = I

A_b (heads, tokens, tokens) are the probabilities of attention layer b, read from the captured graph
(`dmbp.linear.attention`), whether they are fused or written out. The map is the mean of the rows of
R that belong to the tokens which the score is read from: the class token, or all tokens if the
model averages them. They are the tokens with a gradient after the last attention. Columns are laid
out by the points of the image that tokens stand for (`stage.py`), and resized by linear
interpolation; class and register tokens are left out.

Both need layers in which all tokens attend to each other. Attention in windows, or among tokens
that are merged on the way, is refused: no product of such matrices is defined.

Abnar and Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020. Chefer, Gur and Wolf,
"Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers",
ICCV 2021.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dmbp.attribution.base import Method
from dmbp.attribution.gradcam import warn_if_zero
from dmbp.attribution.stage import Grid, grid_of, require_places, resized
from dmbp.errors import InputError
from dmbp.linear import Question
from dmbp.linear.attention import AttentionLayer
from dmbp.linear.positions import Positions

NO_ATTENTION = (
    "the model has no attention layer whose probabilities could be shown; use a method for all "
    "networks, such as gradcam or dmbp"
)


@dataclass(frozen=True)
class TokenAttention:
    """The attention of all layers at a batch of rows.

    Attributes:
        probabilities: Of each layer, (rows, heads, tokens, tokens).
        gradients: The score's gradients with respect to them, in the same shape.
        is_read: From which tokens the score is read, (rows, tokens).
        grid: How tokens are laid out as a map.
    """

    probabilities: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]
    is_read: Tensor
    grid: Grid


class AttentionMethod(Method):
    """The base class of both; subclasses implement `relevance`."""

    @abstractmethod
    def relevance(self, attention: TokenAttention) -> Tensor:
        """Return how much each token counts for each other, (rows, tokens, tokens)."""

    def answer(self, question: Question) -> Tensor:
        """Return the relevance of the tokens that the score is read from, as a map."""
        require_places("attention", question.inputs)
        attention = token_attention(question)
        relevance = self.relevance(attention)
        read = attention.is_read.to(relevance)
        share = read / read.sum(1, keepdim=True).clamp(min=1)
        tokens = (share[:, None] @ relevance)[:, 0]
        regions = tokens[:, attention.grid.index].unflatten(1, attention.grid.size)[:, None]
        reason = "the score does not depend on what tokens attend to"
        warn_if_zero(regions, "the attention map", reason)
        return resized(regions, question.inputs.shape[2:])


class AttentionRollout(AttentionMethod):
    """Attention averaged over heads, with skip connections, multiplied over all layers.

    Args:
        model: The model to explain.
        generator: Not used by this method.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    def relevance(self, attention: TokenAttention) -> Tensor:
        """Return the product of all layers' attention."""
        total: Tensor | None = None
        for probabilities in attention.probabilities:
            mean = probabilities.mean(1)
            mixed = (mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)) / 2
            total = mixed if total is None else mixed @ total
        assert total is not None
        return total


class AttentionGradient(AttentionMethod):
    """Attention weighted by its positive gradients, accumulated over all layers (Chefer et al.).

    Args:
        model: The model to explain.
        generator: Not used by this method.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    def relevance(self, attention: TokenAttention) -> Tensor:
        """Return what the layers have added to the identity."""
        first = attention.probabilities[0]
        identity = torch.eye(first.shape[-1], dtype=first.dtype, device=first.device)
        total = identity.expand(len(first), *identity.shape)
        for probabilities, gradient in zip(
            attention.probabilities, attention.gradients, strict=True
        ):
            total = total + (probabilities * gradient).relu().mean(1) @ total
        return total - identity


def token_attention(question: Question) -> TokenAttention:
    """Return the attention of all layers and the score's gradients with respect to it.

    Raises:
        InputError: If there is no attention, or not all tokens attend to each other.
    """
    net = question.network()
    linearizer, inputs = question.linearizer, question.inputs
    found = linearizer.attention(inputs)
    if not found.layers:
        raise InputError(NO_ATTENTION)
    places = linearizer.positions(inputs)
    grids = [_grid(layer, places, len(inputs)) for layer in found.layers]
    sizes = {tuple(layer.probabilities.shape[-2:]) for layer in found.layers}
    for layer, grid in zip(found.layers, grids, strict=True):
        queries, keys = layer.probabilities.shape[-2:]
        if grid is None or queries != keys or len(sizes) > 1:
            raise InputError(
                f"the attention at '{layer.name}' is not among all tokens of the image "
                f"({queries} × {keys} probabilities), so it cannot be followed from layer to "
                "layer; use gradcam, cp_lrp or attn_lrp"
            )
    probabilities = [layer.probabilities for layer in found.layers]
    score = net.score(found.outputs).sum()
    gradients = torch.autograd.grad(
        score, [*probabilities, found.layers[-1].output], allow_unused=True, materialize_grads=True
    )
    rows = len(inputs)
    *by_layer, at_output = (_by_row(part.detach(), rows) for part in gradients)
    return TokenAttention(
        tuple(_by_row(part.detach(), rows) for part in probabilities),
        tuple(by_layer),
        is_read=(at_output != 0).any(-1).any(1),
        grid=next(grid for grid in grids if grid is not None),
    )


def _grid(layer: AttentionLayer, places: Mapping[str, Positions], rows: int) -> Grid | None:
    """Return how the keys of a layer are laid out, or None if they are not the image's tokens."""
    name, shape = layer.values
    positions = places.get(name)
    grid = None if positions is None else grid_of(positions, shape, rows)
    # Windows would be places in the first dimension; attention among channels, in the last one.
    return grid if grid is not None and grid.place_dims == (len(shape) - 2,) else None


def _by_row(part: Tensor, rows: int) -> Tensor:
    """Return a tensor (…, queries, last) as (rows, heads, queries, last)."""
    return part.unflatten(0, (rows, -1)).flatten(1, -3)
