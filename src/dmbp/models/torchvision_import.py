"""Imports torchvision, also beside a CPU build of torch.

torchvision's wheel is built against CUDA torch. Beside a CPU build its import stops at "operator
torchvision::nms does not exist". Declaring the two operators lets models and weights import; only
its own image reader and NMS, which dmbp does not use, stay unavailable.
"""

import warnings
from importlib import import_module
from typing import Any

import torch

_libraries: list[torch.library.Library] = []


def import_torchvision() -> Any:
    """The torchvision package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks about its missing image extension
        try:
            return import_module("torchvision")
        except RuntimeError as error:
            if "torchvision::nms" not in str(error):
                raise
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)  # an operator lives as long as its library
        _forget("torchvision")
        return import_module("torchvision")


def _forget(package: str) -> None:
    """Drop a half-imported package, so that the next import starts over."""
    import sys

    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        del sys.modules[name]
