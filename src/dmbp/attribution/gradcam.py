"""Class activation maps: the channels of a layer, added up with weights that depend on the class.

    a = relu(Σ_c w_c ⊙ A_c)             resized to the image by linear interpolation

A is the layer's activation and G = ∂y/∂A the score's gradient. The methods differ in the weights:

| method     | weights w of channel c                        | one for        |
| ---------- | --------------------------------------------- | -------------- |
| GradCAM    | mean(G_c)                                     | each channel   |
| GradCAM++  | Σ α relu(G_c),  α = 1 / (2 + G_c Σ A_c)       | each channel   |
| Score-CAM  | softmax over c of y(x ⊙ A_c scaled to [0, 1]) | each channel   |
| HiResCAM   | G_c                                           | each position  |
| LayerCAM   | relu(G_c)                                     | each position  |
| Finer-CAM  | mean(∂(y − strength · rivals)/∂A_c)           | each channel   |

HiResCAM is exact: if all that follows the layer is linear once it is frozen, its signed map adds up
to the score minus what later biases contribute. The layer is the last stage unless one is named
(`stage.py`): `layer4` of a ResNet, `features.29` of VGG16, the concatenated branches of an
Inception network, the last tokens of a transformer whose patches the score depends on. Of several
layers, each map is divided by its largest magnitude, and the mean is taken. `used_layer` says which
layer it was.

    >>> cam = GradCAM(model)
    >>> cam.attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])
    >>> print(cam.used_layer)
    1 (6×6)

Selvaraju et al., "Grad-CAM", ICCV 2017. Chattopadhay et al., "Grad-CAM++", WACV 2018. Wang et al.,
"Score-CAM", CVPR workshops 2020. Draelos and Carin, "Use HiResCAM instead of Grad-CAM", arXiv
2011.08891. Jiang et al., "LayerCAM", IEEE TIP 2021. Zhang et al., "Finer-CAM", CVPR 2025.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from dmbp.attribution.base import Layer, Method
from dmbp.attribution.passes import rows_by_image, run_of
from dmbp.attribution.stage import Stage, Stages, resized
from dmbp.engine import ForwardPasses
from dmbp.errors import TargetError
from dmbp.linear import LinearNetwork, Question
from dmbp.linear.class_difference import RIVAL_COUNT, RIVALS
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model, levels_to_caller
from dmbp.linear.named_target import TargetContext
from dmbp.probabilities import Activation, check_activation
from dmbp.validation import check_range

Layers = str | Sequence[str] | None
"""The name of a layer, several names or "layer3,layer4", or None for the last stage."""

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MAX_CHANNELS = 100_000
MAX_STRENGTH = 1000


class ClassActivationMap(Method):
    """The base class of the family: regions at the resolution of a layer, or of several.

    Subclasses implement `weighted`.

    Args:
        model: The model to explain.
        layer: The name of the module whose output's channels are weighted, such as "layer3" or
            "blocks.7", or several names; None takes the last stage.
        signed: Whether to keep regions that lower the score, as negative values.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Attributes:
        used_layer: The layer of the last call, with the size of its map; None before the first. Of
            several layers, it has all names and the size of the finest.
    """

    title: str
    """What warnings call the method."""

    def __init__(
        self,
        model: Model,
        *,
        layer: Layers = None,
        signed: bool = False,
        output: Output = None,
    ) -> None:
        super().__init__(model, output=output)
        self.layer = layer
        self.signed = signed

    @abstractmethod
    def weighted(self, stage: Stage, question: Question) -> Tensor:
        """Return the weighted channels of a stage, shaped like its activation."""

    def network(self, question: Question) -> LinearNetwork:
        """Return the network that has the score whose gradients are taken."""
        return question.network()

    def answer(self, question: Question) -> Tensor:
        """Return the weighted sum of channels for each row, resized to the image."""
        stages = Stages(self.network(question), question.linearizer.positions(question.inputs))
        names = _names(self.layer)
        found = stages.all_named(names) if names else [stages.last()]
        self.used_layer = _joined([stage.layer for stage in found])
        maps = [self._regions(stage, question) for stage in found]
        return maps[0] if len(maps) == 1 else torch.stack([*map(_scaled, maps)]).mean(0)

    def _regions(self, stage: Stage, question: Question) -> Tensor:
        regions = self.weighted(stage, question).sum(1, keepdim=True)
        regions = regions if self.signed else regions.relu()
        warn_if_zero(regions, f"{self.title}'s map at {stage.layer.name}", _reason(stage))
        return resized(regions, question.inputs.shape[2:])


class GradCAM(ClassActivationMap):
    """Channels weighted by their mean gradient.

    Args:
        model: The model to explain.
        layer: The name of the module whose output's channels are weighted, such as "layer3" or
            "blocks.7", or several names; None takes the last stage.
        signed: Whether to keep regions that lower the score, as negative values.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    title = "GradCAM"

    def weighted(self, stage: Stage, question: Question) -> Tensor:
        """Return channels times their mean gradient."""
        return by_channel(stage.gradient.flatten(2).mean(2), stage)


class GradCAMPlusPlus(ClassActivationMap):
    """Channels weighted by their positive gradients, so that several objects count alike.

    The paper takes derivatives of exp(y). The factor exp(y) is the same for all channels of an
    image, and is left out.

    Args:
        model: The model to explain.
        layer: The name of the module whose output's channels are weighted, such as "layer3" or
            "blocks.7", or several names; None takes the last stage.
        signed: Whether to keep regions that lower the score, as negative values.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    title = "GradCAM++"

    def weighted(self, stage: Stage, question: Question) -> Tensor:
        """Return channels times the sum over positions of α relu(G)."""
        gradient = stage.gradient.flatten(2)
        competing = 2 + gradient * stage.activation.flatten(2).sum(2, keepdim=True)
        # α = G² / (2 G² + G³ Σ A) = 1 / (2 + G Σ A), which may be singular if A has both signs.
        alpha = torch.where(competing != 0, 1 / competing, 0)
        return by_channel((alpha * gradient.relu()).sum(2), stage)


class HiResCAM(ClassActivationMap):
    """Channels times their gradients, position by position.

    If everything after the layer is linear once it is frozen, a signed map adds up to the score
    minus what biases after the layer contribute.

    Args:
        model: The model to explain.
        layer: The name of the module whose output's channels are weighted, such as "layer3" or
            "blocks.7", or several names; None takes the last stage.
        signed: Whether to keep regions that lower the score, as negative values.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    title = "HiResCAM"

    def weighted(self, stage: Stage, question: Question) -> Tensor:
        """Return channels times gradients."""
        return stage.gradient * stage.activation


class LayerCAM(ClassActivationMap):
    """Channels times their positive gradients, position by position; made for earlier layers too.

    Args:
        model: The model to explain.
        layer: The name of the module whose output's channels are weighted, such as "layer3" or
            "blocks.7", or several names; None takes the last stage.
        signed: Whether to keep regions that lower the score, as negative values.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    title = "LayerCAM"

    def weighted(self, stage: Stage, question: Question) -> Tensor:
        """Return channels times positive gradients."""
        return stage.gradient.relu() * stage.activation


class ScoreCAM(ClassActivationMap):
    """Channels weighted by the score of the image when only what they mark is left of it.

    A channel, resized to the image and scaled to [0, 1], is multiplied with the image. The weights
    are a softmax, over the channels, of the scores. The score of an empty image, which the paper
    subtracts, does not change them. No gradient is used.

    Args:
        model: The model to explain.
        layer: The name of the module whose output's channels are weighted, such as "layer3" or
            "blocks.7", or several names; None takes the last stage.
        signed: Whether to keep regions that lower the score, as negative values.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
        channels: The most channels to run: those whose activation varies most. None runs all, as in
            the paper; in a ResNet50 they are 2048.

    Raises:
        InputError: If `channels` is out of range.
    """

    title = "Score-CAM"
    runs_many_points = True
    run_setting = "channels"

    def __init__(
        self,
        model: Model,
        *,
        layer: Layers = None,
        signed: bool = False,
        channels: int | None = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, layer=layer, signed=signed, output=output)
        self.check_settings(channels=channels)
        self.channels = channels
        self._passes = ForwardPasses()

    @staticmethod
    def check_settings(*, channels: int | None, **_: Any) -> None:
        """Raise an `InputError` if a setting is out of range."""
        if channels is not None:
            check_range("channels", channels, least=1, most=MAX_CHANNELS)

    @property
    def run_count(self) -> int:
        """The number of channels, by default about those of the model's last convolution."""
        model = self.linearizer.model
        modules = model.modules() if isinstance(model, nn.Module) else ()
        layers = [module for module in modules if isinstance(module, _CONVOLUTIONS)]
        own = layers[-1].out_channels if layers else 0
        return min(own, self.channels) if self.channels else own

    @torch.no_grad()
    def weighted(self, stage: Stage, question: Question) -> Tensor:
        """Return channels times the softmax of their scores; those left out become zero."""
        run = run_of(question, self._passes)
        activation, inputs, rows = stage.activation, question.inputs, question.rows
        weights = torch.zeros_like(activation.flatten(2)[..., 0])
        for own in rows_by_image(question):
            first = activation[own[0]]
            which = self._chosen(first)
            scores: list[Tensor] = []
            for part in which.split(question.batch_size):
                masks = _scaled(resized(first[part, None], inputs.shape[2:]), from_zero=True)
                outputs = run(masks * inputs[own[0]])
                scores.append(
                    torch.stack([rows.pick([row] * len(part)).scores(outputs) for row in own])
                )
            found = torch.cat(scores, 1).softmax(1).to(weights)
            for row, own_weights in zip(own, found, strict=True):
                weights[row, which] = own_weights
        return by_channel(weights, stage)

    def _chosen(self, activation: Tensor) -> Tensor:
        """Return the indices of the channels to run, of one image's activation."""
        count = len(activation)
        if self.channels is None or self.channels >= count:
            return torch.arange(count, device=activation.device)
        spread = activation.flatten(1).var(1)
        return spread.argsort(descending=True, stable=True)[: self.channels].sort().values


class FinerCAM(GradCAM):
    """GradCAM of the score minus those of its rivals: what tells the class from similar ones.

    The score is y − strength · Σ_k p_k y_k over the rivals, with weights p that add up to 1. With
    the target `dmbp.rather_than(…)`, every other method explains the same difference.

    Args:
        model: The model to explain.
        layer: The name of the module whose output's channels are weighted, such as "layer3" or
            "blocks.7", or several names; None takes the last stage.
        signed: Whether to keep regions that lower the score, as negative values.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
        rivals: "rivals" (the three most probable classes that the target has no weight for,
            weighted by their probabilities), a class, or several classes, by number or name, which
            count alike. On the command line: "dog" or "dog,12".
        strength: How much the rivals count; at 1, what the classes share cancels.
        activation: Turns outputs into probabilities: "softmax", "sigmoid", "none" or a function.
        classes: The names of the model's classes, for rivals that are given by name.

    Raises:
        InputError: If `strength` is out of range.
    """

    title = "Finer-CAM"

    def __init__(
        self,
        model: Model,
        *,
        layer: Layers = None,
        signed: bool = False,
        rivals: str | int | Sequence[str | int] = RIVALS,
        strength: float = 1.0,
        activation: Activation = "softmax",
        classes: tuple[str, ...] | None = None,
        output: Output = None,
    ) -> None:
        super().__init__(model, layer=layer, signed=signed, output=output)
        self.check_settings(strength=strength)
        check_activation(activation)
        self.rivals, self.strength, self.classes = rivals, strength, classes
        self._activation: Activation = activation

    @staticmethod
    def check_settings(*, strength: float, **_: Any) -> None:
        """Raise an `InputError` if a setting is out of range."""
        check_range("strength", strength, least=0, most=MAX_STRENGTH)

    def network(self, question: Question) -> LinearNetwork:
        """Return the network whose score is the target's minus those of the rivals."""
        net = question.network()
        own = net.weights
        if len(net.rows.shape) > 1:
            raise TargetError(
                "Finer-CAM needs a model with one output for each class, not outputs of shape "
                f"{net.rows.shape} for an image"
            )
        # As much as the target itself counts: twice the score has twice the map.
        total = own.clamp(min=0).sum(1, keepdim=True)
        total = torch.where(total > 0, total, own.abs().sum(1, keepdim=True))
        weights = own - self.strength * total * self._rival_weights(question, own)
        return LinearNetwork(net.frozen, net.inputs, net.rows, tangent=(weights, net.constant))

    def _rival_weights(self, question: Question, own: Tensor) -> Tensor:
        """Return how much each class counts as a rival, which adds up to 1, (rows, classes)."""
        is_free = own == 0
        names = _names(self.rivals) if isinstance(self.rivals, str) else self.rivals
        if names == [RIVALS]:
            probabilities = question.runner.activation(self._activation)(question.outputs)
            shares = probabilities.clamp(min=0).masked_fill(~is_free, -1)
            count = min(RIVAL_COUNT, own.shape[1])
            # Probabilities that were rounded to 0 or 1 are equal; outputs tell which is stronger.
            order = question.outputs.argsort(dim=1, descending=True, stable=True)
            most = shares.gather(1, order).argsort(dim=1, descending=True, stable=True)
            chosen = order.gather(1, most[:, :count])
            weights = torch.zeros_like(own).scatter_(1, chosen, 1.0) * is_free
            likely = weights * shares.to(own)
            weights = torch.where(likely.sum(1, keepdim=True) > 0, likely, weights)
        else:
            listed = [names] if isinstance(names, int) else names
            weights = torch.zeros_like(own)
            for row, outputs in enumerate(question.outputs):
                context = TargetContext(outputs, classes=self.classes)
                for name in listed or ():
                    weights[row, context.class_index(name, len(outputs), scores=outputs)] = 1.0
            weights = weights * is_free
        totals = weights.sum(1, keepdim=True)
        if not bool((totals > 0).all()):
            raise TargetError(
                "Finer-CAM needs a rival: a class that the target itself has no weight for"
            )
        return weights / totals


def by_channel(weights: Tensor, stage: Stage) -> Tensor:
    """Return a stage's activation times one weight for each channel, (rows, channels)."""
    return stage.activation * weights.view(*weights.shape, *(1,) * (stage.activation.dim() - 2))


def _names(text: str | Sequence[str] | None) -> list[str]:
    """Return names given as a list or separated by commas."""
    listed = text.split(",") if isinstance(text, str) else text or ()
    return [name.strip() for name in listed]


def _joined(layers: Sequence[Layer]) -> Layer:
    """Return several layers as one, with the size of the finest."""
    name = ", ".join(layer.name for layer in layers)
    return Layer(name, max((layer.size for layer in layers), key=prod))


def _scaled(maps: Tensor, *, from_zero: bool = False) -> Tensor:
    """Divide each map by its largest magnitude; if `from_zero`, subtract its lowest value before.

    A map that is the same everywhere becomes zero then.
    """
    flat = maps.flatten(1)
    lowest = flat.amin(1) if from_zero else torch.zeros_like(flat[:, 0])
    largest = (flat - lowest[:, None]).abs().amax(1).clamp(min=torch.finfo(maps.dtype).tiny)
    form = (-1, *(1,) * (maps.dim() - 1))
    return (maps - lowest.view(form)) / largest.view(form)


def _reason(stage: Stage) -> str:
    """Return why the map of a stage may be zero everywhere."""
    if stage.is_read:
        return "no region raises the score; signed=True shows those that lower it"
    return "the score does not depend on it; name an earlier layer"


def warn_if_zero(maps: Tensor, name: str, reason: str) -> None:
    """Warn if one of the maps is zero everywhere."""
    if not bool(maps.flatten(1).any(1).all()):
        warnings.warn(f"{name} is zero everywhere: {reason}", stacklevel=levels_to_caller())
