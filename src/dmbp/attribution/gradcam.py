"""GradCAM: the channels of the last stage, weighted by how much the score rises with each.

    a = relu(Σ_c mean(∂y/∂A_c) A_c)        resized to the image by linear interpolation

The last stage A is found in the linear network (`stage.py`): `layer4` of a ResNet, `features.29` of
VGG16, the concatenated branches of an Inception network, the last tokens of a transformer whose
patches the score depends on. `used_layer` says which layer it was.

    >>> cam = GradCAM(model)
    >>> cam.attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])
    >>> print(cam.used_layer)
    1 (6×6)

Selvaraju et al., "Grad-CAM", ICCV 2017.
"""

from __future__ import annotations

import warnings

from torch import Tensor

from dmbp.attribution.base import Method
from dmbp.attribution.stage import Stage, Stages, resized
from dmbp.linear import Question
from dmbp.linear.model.signature import Output
from dmbp.linear.model.wrappers import Model, levels_to_caller


class GradCAM(Method):
    """Regions that raise the score, at the resolution of a convolutional stage or of tokens.

    Args:
        model: The model to explain.
        layer: The name of the module whose output's channels are weighted, such as "layer3" or
            "blocks.7"; None takes the last stage.
        signed: Whether to keep regions that lower the score, as negative values.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.

    Attributes:
        used_layer: The layer of the last call, with the size of its map; None before the first.
    """

    def __init__(
        self,
        model: Model,
        *,
        layer: str | None = None,
        signed: bool = False,
        output: Output = None,
    ) -> None:
        super().__init__(model, output=output)
        self.layer = layer
        self.signed = signed

    def answer(self, question: Question) -> Tensor:
        """Return the weighted sum of channels for each row, resized to the image."""
        stages = Stages(question.network(), question.linearizer.positions(question.inputs))
        stage = stages.last() if self.layer is None else stages.named(self.layer)
        self.used_layer = stage.layer
        weights = stage.gradient.flatten(2).mean(2)
        weights = weights.view(*weights.shape, *(1,) * (stage.gradient.dim() - 2))
        regions = (weights * stage.activation).sum(1, keepdim=True)
        regions = regions if self.signed else regions.relu()
        warn_if_zero(regions, f"GradCAM's map at {stage.layer.name}", _reason(stage))
        return resized(regions, question.inputs.shape[2:])


def _reason(stage: Stage) -> str:
    """Return why the map of a stage may be zero everywhere."""
    if stage.is_read:
        return "no region raises the score; signed=True shows those that lower it"
    return "the score does not depend on it; name an earlier layer"


def warn_if_zero(maps: Tensor, name: str, reason: str) -> None:
    """Warn if one of the maps is zero everywhere."""
    if not bool(maps.flatten(1).any(1).all()):
        warnings.warn(f"{name} is zero everywhere: {reason}", stacklevel=levels_to_caller())
