"""Every attribution method by name: the table that the command line, the benchmark and tests read.

    >>> "deeplift" in methods()
    True
    >>> methods()["gradcam"](model).attribute(images, target=3).shape
    torch.Size([1, 1, 8, 8])

To add a method, write its file and add a row to `METHODS`. `explain_func` returns a method as a
function that Quantus can call:

    >>> explain = explain_func("gradient")
    >>> explain(model=model, inputs=images.numpy(), targets=[3]).shape
    (1, 1, 8, 8)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dmbp.attribution.attention import AttentionGradient, AttentionRollout
from dmbp.attribution.base import Method
from dmbp.attribution.blur_ig import BlurIG
from dmbp.attribution.deeplift import DeepLift
from dmbp.attribution.dmbp import DMBP
from dmbp.attribution.fullgrad import FullGrad
from dmbp.attribution.gradcam import (
    FinerCAM,
    GradCAM,
    GradCAMPlusPlus,
    HiResCAM,
    LayerCAM,
    ScoreCAM,
)
from dmbp.attribution.gradient import Gradient
from dmbp.attribution.guided_backprop import GuidedBackprop, GuidedGradCAM
from dmbp.attribution.integrated_gradients import IntegratedGradients
from dmbp.attribution.kernel_shap import KernelSHAP
from dmbp.attribution.lpr import LPR
from dmbp.attribution.lrp import LRP
from dmbp.attribution.occlusion import Occlusion, WindowWorth
from dmbp.attribution.rise import RISE
from dmbp.attribution.smoothgrad import SmoothGrad
from dmbp.errors import InputError, UnknownMethod, require_known, suggestion
from dmbp.linear import Question
from dmbp.linear.model.wrappers import Model


class RandomOrder(Method):
    """Pixels in random order, the same for every image; every other method should do better.

    Args:
        model: The model to explain.
        generator: Draws a new seed at every call; without one, all calls use the same numbers.
        output: Which of the model's outputs is explained: a name, a position or a function of
            what the model returns. None finds it automatically.
    """

    def answer(self, question: Question) -> Tensor:
        """Return the same normal noise for each row."""
        inputs = question.inputs
        shape = (1, *inputs.shape[2:]) if inputs.dim() > 2 else inputs.shape[1:]
        noise = torch.randn(shape, generator=question.generator()).to(inputs)
        return noise.expand(len(inputs), *shape).clone()


@dataclass(frozen=True)
class MethodSpec:
    """A row of the method table: a method's class and the settings that this row gives it.

    Args:
        method: The class.
        title: The name in tables and figures.
        short: The label in compact tables: the paper's abbreviation, or any short name that no
            other row has if the method is not in the paper.
        settings: Keyword arguments of the class that this row sets.
        regions: Whether the method attributes regions, so that its maps have one channel.
        probabilistic: Whether the class takes the model's `activation`.
        named: Whether the class takes the names of the model's `classes`.
    """

    method: type[Method]
    title: str
    short: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    regions: bool = False
    probabilistic: bool = False
    named: bool = False

    def __call__(self, model: Model, **settings: Any) -> Method:
        """Return the method for a model.

        Args:
            model: The model to explain.
            **settings: Keyword arguments of the class, which override the row's.

        Returns:
            The method, ready for `attribute`.
        """
        make: Any = self.method
        return make(model, **{**self.settings, **settings})


MethodName = Literal[
    "gradient",
    "integrated_gradients",
    "smoothgrad",
    "blur_ig",
    "deeplift",
    "guided_backprop",
    "guided_gradcam",
    "lpr",
    "rise",
    "fullgrad",
    "gradcam",
    "gradcam_plus_plus",
    "hirescam",
    "layercam",
    "scorecam",
    "finercam",
    "lrp_epsilon",
    "lrp_gamma",
    "cp_lrp",
    "attn_lrp",
    "occlusion",
    "windows",
    "kernel_shap",
    "attention_rollout",
    "attention_gradient",
    "dmbp",
    "dmbp_fast",
    "dmbp_paper",
    "dmbp_posneg",
    "dmbp_pos",
    "random",
]
"""The names of `METHODS`, for editors that complete them."""


class MethodTable(Mapping[str, MethodSpec]):
    """Methods by name; a name that does not exist is an error that suggests one that does.

    Args:
        rows: A row for each name.
    """

    def __init__(self, rows: Mapping[str, MethodSpec]) -> None:
        self._rows = dict(rows)

    @overload
    def __getitem__(self, name: MethodName) -> MethodSpec: ...
    @overload
    def __getitem__(self, name: str) -> MethodSpec: ...
    def __getitem__(self, name: str) -> MethodSpec:
        """Return a row, or raise an `UnknownMethod` that suggests similar names."""
        if name not in self._rows:
            raise UnknownMethod(f"there is no method {name!r}; {suggestion(name, [*self._rows])}")
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __repr__(self) -> str:
        return f"<methods: {', '.join(self._rows)}>"


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
    "gradcam_plus_plus": MethodSpec(GradCAMPlusPlus, "GradCAM++", "GC++", regions=True),
    "hirescam": MethodSpec(HiResCAM, "HiResCAM", "HRC", regions=True),
    "layercam": MethodSpec(LayerCAM, "LayerCAM", "LC", regions=True),
    "scorecam": MethodSpec(ScoreCAM, "Score-CAM", "SC", regions=True),
    "finercam": MethodSpec(
        FinerCAM, "Finer-CAM", "FC", regions=True, probabilistic=True, named=True
    ),
    "lrp_epsilon": MethodSpec(LRP, "LRP-ε", "LRP-ε", {"rules": "epsilon"}),
    "lrp_gamma": MethodSpec(LRP, "LRP-γ", "LRP-γ", {"rules": "gamma"}),
    "cp_lrp": MethodSpec(LRP, "CP-LRP", "CP-LRP", {"rules": "cp"}),
    "attn_lrp": MethodSpec(LRP, "AttnLRP", "AttnLRP", {"rules": "attn"}),
    "occlusion": MethodSpec(Occlusion, "Occlusion", "Occ", regions=True),
    "windows": MethodSpec(WindowWorth, "Tested windows", "TW", regions=True),
    "kernel_shap": MethodSpec(KernelSHAP, "KernelSHAP", "KS", regions=True),
    "attention_rollout": MethodSpec(AttentionRollout, "Attention rollout", "AR", regions=True),
    "attention_gradient": MethodSpec(
        AttentionGradient, "Gradient-weighted attention", "GA", regions=True
    ),
    "dmbp": MethodSpec(DMBP, "DMBP", "DMBP"),
    "dmbp_fast": MethodSpec(DMBP, "DMBP, not tested", "DMBP^Fast", {"preset": "fast"}),
    "dmbp_paper": MethodSpec(DMBP, "DMBP, the paper's settings", "DMBP^All", {"preset": "paper"}),
    "dmbp_posneg": MethodSpec(
        DMBP, "DMBP, y⁺ and y⁻ only", "DMBP⁺⁻", {"preset": "fast", "objective": "posneg"}
    ),
    "dmbp_pos": MethodSpec(DMBP, "DMBP, y⁺ only", "DMBP⁺", {"preset": "fast", "objective": "pos"}),
    "random": MethodSpec(RandomOrder, "Random order", "Random", regions=True),
}


COMPARED: tuple[MethodName, ...] = (
    "gradient",
    "integrated_gradients",
    "smoothgrad",
    "blur_ig",
    "deeplift",
    "guided_backprop",
    "guided_gradcam",
    "lpr",
    "rise",
    "fullgrad",
    "gradcam",
    "layercam",
    "lrp_gamma",
    "occlusion",
    "dmbp",
    "dmbp_fast",
    "dmbp_paper",
    "random",
)
"""The methods that `dmbp compare` runs unless others are named: the paper's, and one each of the
families that came later."""


SEVERAL: Mapping[str, Iterable[str]] = {"all": METHODS, "default": COMPARED}
"""Words for several methods."""


def methods() -> MethodTable:
    """Return every attribution method by name.

    Returns:
        A read-only mapping to `MethodSpec`. Calling one with a model returns a method, whose
        `attribute` returns maps: `dmbp.methods()["gradcam"](model).attribute(images, target=3)`.
    """
    return MethodTable(METHODS)


def parse_method_names(text: str) -> list[str]:
    """Return the methods named by "all", "default" or names separated by commas, each once.

    "default" are those that `dmbp compare` runs, `COMPARED`.

    Raises:
        InputError: If a name is unknown, or no method is named.
    """
    if text in SEVERAL:
        return list(SEVERAL[text])
    names = [name.strip().lower().replace("-", "_") for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"no method is named; choose from {', '.join(METHODS)}, or all")
    for name in names:
        require_known("method", name, METHODS)
    return list(dict.fromkeys(names))


def explain_func(
    method: str = "dmbp", *, keep_channels: bool = False, **settings: Any
) -> Callable[..., NDArray[Any]]:
    """Return a method as a function for the `explain_func` argument of Quantus' metrics.

    Args:
        method: A name from `dmbp.methods()`.
        keep_channels: Whether maps keep the channels of the inputs. By default, channels are added
            up to one, because Quantus' localisation metrics compare maps with masks of one channel.
        **settings: The method's settings.

    Returns:
        A function `(model, inputs, targets) -> maps` on NumPy arrays or tensors, whose maps are
        NumPy arrays. Maps of images are (batch, 1, height, width), those of signals and volumes
        have one channel as well, and those of vectors are (batch, features). It ignores further
        keywords, such as Quantus' `device`: inputs are moved to the model's device.

    Raises:
        InputError: If the method is unknown.
    """
    require_known("method", method, METHODS)
    last: list[tuple[nn.Module, Method]] = []  # Quantus explains one model many times

    def explain(model: nn.Module, inputs: Any, targets: Any = None, **_: object) -> NDArray[Any]:
        if not last or last[0][0] is not model:
            last[:] = [(model, METHODS[method](model, **settings))]
        like = next(model.parameters(), torch.empty(0))
        images = torch.as_tensor(inputs).to(like)
        classes = None if targets is None else numpy.asarray(targets).reshape(-1).tolist()
        maps = last[0][1].attribute(images, target=classes)
        if maps.dim() > 2 and not keep_channels:
            maps = maps.sum(1, keepdim=True)
        return maps.cpu().numpy()

    return explain
