"""Every attribution method by name: the table that the command line and the tests read.

    >>> "deeplift" in methods()
    True
    >>> methods()["gradcam"](model).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

To add one, write its file and one row here.

Our methods as Quantus calls them: `explain_func(model=, inputs=, targets=, **kwargs)`.

    >>> explain = explain_func("gradcam")
    >>> explain(model=model, inputs=images.numpy(), targets=[3]).shape
    (1, 1, 8, 8)

Hand it to a metric of Quantus as `explain_func=dmbp.explain_func("dmbp")`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import nn

from dmbp.attribution.base import Method
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
from dmbp.attribution.random_order import RandomOrder
from dmbp.attribution.rise import RISE
from dmbp.attribution.smoothgrad import SmoothGrad
from dmbp.errors import InputError, require_known
from dmbp.linear.model.wrappers import Model


@dataclass(frozen=True)
class MethodSpec:
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


METHODS: Mapping[str, MethodSpec] = {
    "gradient": MethodSpec(Gradient, "Gradient", "Grad"),
    "integrated_gradients": MethodSpec(IntegratedGradients, "Integrated gradients", "IG"),
    "smoothgrad": MethodSpec(SmoothGrad, "SmoothGrad", "SG"),
    "blur_ig": MethodSpec(BlurIG, "Blur integrated gradients", "BIG"),
    "deeplift": MethodSpec(DeepLift, "DeepLift", "DL"),
    "guided_backprop": MethodSpec(GuidedBackprop, "Guided backprop", "GBp"),
    "guided_gradcam": MethodSpec(GuidedGradCAM, "Guided GradCAM", "GGC"),
    "lpr": MethodSpec(LPR, "LPR (our reading)", "LPR"),
    "rise": MethodSpec(RISE, "RISE", "RISE", regions=True, probabilistic=True),
    "fullgrad": MethodSpec(FullGrad, "FullGrad", "FG", regions=True),
    "gradcam": MethodSpec(GradCAM, "GradCAM", "GC", regions=True),
    "dmbp": MethodSpec(DMBP, "DMBP", "DMBP"),
    "dmbp_paper": MethodSpec(DMBP, "DMBP, the paper's settings", "DMBP^All", {"preset": "paper"}),
    "dmbp_posneg": MethodSpec(DMBP, "DMBP, y⁺ and y⁻ only", "DMBP⁺⁻", {"objective": "posneg"}),
    "dmbp_pos": MethodSpec(DMBP, "DMBP, y⁺ only", "DMBP⁺", {"objective": "pos"}),
    "random": MethodSpec(RandomOrder, "Random order", "Random", regions=True),
}


def methods() -> Mapping[str, MethodSpec]:
    """Every method by name; call one with a model."""
    return MappingProxyType(dict(METHODS))


def parse_method_names(wanted: str) -> list[str]:
    """The methods meant by "all" or by names separated by commas."""
    if wanted == "all":
        return list(METHODS)
    names = [name.strip().lower().replace("-", "_") for name in wanted.split(",") if name.strip()]
    if not names:
        raise InputError(f"no method is named; there are {', '.join(METHODS)}, and all")
    for name in names:
        require_known("method", name, METHODS)
    return list(dict.fromkeys(names))


def explain_func(method: str = "dmbp", **settings: Any) -> Callable[..., NDArray[Any]]:
    """A function from (model, inputs, targets) to maps, as NumPy arrays.

    `settings` are the method's. What Quantus passes beside is ignored: the device is the model's.
    """
    require_known("method", method, METHODS)
    last: list[tuple[nn.Module, Method]] = []  # Quantus asks about one model many times

    def explain(model: nn.Module, inputs: Any, targets: Any = None, **_: object) -> NDArray[Any]:
        if not last or last[0][0] is not model:
            last[:] = [(model, METHODS[method](model, **settings))]
        like = next(model.parameters(), torch.empty(0))
        images = torch.as_tensor(inputs).to(like)
        classes = None if targets is None else numpy.asarray(targets).reshape(-1).tolist()
        return last[0][1].attribute(images, target=classes).cpu().numpy()

    return explain
