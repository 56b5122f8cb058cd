"""Every attribution method by name: the table that the command line and the tests read.

    >>> "deeplift" in methods()
    True
    >>> methods()["gradcam"](model).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

To add one, write its file and one row here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from dmbp.attribution.blur_ig import BlurIG
from dmbp.attribution.deeplift import DeepLift
from dmbp.attribution.dmbp import DMBP
from dmbp.attribution.fullgrad import FullGrad
from dmbp.attribution.gradcam import GradCAM
from dmbp.attribution.gradient import Gradient
from dmbp.attribution.guided_backprop import GuidedBackprop
from dmbp.attribution.guided_gradcam import GuidedGradCAM
from dmbp.attribution.integrated_gradients import IntegratedGradients
from dmbp.attribution.lpr import LPR
from dmbp.attribution.method import Method
from dmbp.attribution.random_order import RandomOrder
from dmbp.attribution.rise import RISE
from dmbp.attribution.smoothgrad import SmoothGrad
from dmbp.errors import InputError
from dmbp.linear.model import Model
from dmbp.names import known


@dataclass(frozen=True)
class Row:
    """A method with its settings: call it with a model, and with settings that override.

    `short` is what the paper's tables call it. Methods of regions give one channel; those that are
    `probabilistic` take the model's activation.
    """

    method: type[Method]
    title: str
    short: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    regions: bool = False
    probabilistic: bool = False

    def __call__(self, model: Model, **settings: Any) -> Method:
        """The method on a model."""
        make: Any = self.method
        return make(model, **{**self.settings, **settings})


METHODS: Mapping[str, Row] = {
    "gradient": Row(Gradient, "Gradient", "Grad"),
    "integrated_gradients": Row(IntegratedGradients, "Integrated gradients", "IG"),
    "smoothgrad": Row(SmoothGrad, "SmoothGrad", "SG"),
    "blur_ig": Row(BlurIG, "Blur integrated gradients", "BIG"),
    "deeplift": Row(DeepLift, "DeepLift", "DL"),
    "guided_backprop": Row(GuidedBackprop, "Guided backprop", "GBp"),
    "guided_gradcam": Row(GuidedGradCAM, "Guided GradCAM", "GGC"),
    "lpr": Row(LPR, "LPR (our reading)", "LPR"),
    "rise": Row(RISE, "RISE", "RISE", regions=True, probabilistic=True),
    "fullgrad": Row(FullGrad, "FullGrad", "FG", regions=True),
    "gradcam": Row(GradCAM, "GradCAM", "GC", regions=True),
    "dmbp": Row(DMBP, "DMBP", "DMBP"),
    "dmbp_paper": Row(DMBP, "DMBP, the paper's settings", "DMBP^All", {"preset": "paper"}),
    "dmbp_posneg": Row(DMBP, "DMBP, y⁺ and y⁻ only", "DMBP⁺⁻", {"objective": "posneg"}),
    "dmbp_pos": Row(DMBP, "DMBP, y⁺ only", "DMBP⁺", {"objective": "pos"}),
    "random": Row(RandomOrder, "Random order", "Random", regions=True),
}


def methods() -> Mapping[str, Row]:
    """Every method by name; call one with a model."""
    return MappingProxyType(dict(METHODS))


def method_names(wanted: str) -> list[str]:
    """The methods meant by "all" or by names separated by commas."""
    if wanted == "all":
        return list(METHODS)
    names = [name.strip().lower().replace("-", "_") for name in wanted.split(",") if name.strip()]
    if not names:
        raise InputError(f"no method is named; there are {', '.join(METHODS)}, and all")
    for name in names:
        known("method", name, METHODS)
    return list(dict.fromkeys(names))
