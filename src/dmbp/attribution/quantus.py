"""Our methods as Quantus calls them: `explain_func(model=, inputs=, targets=, **kwargs)`.

    >>> explain = explain_func("gradcam")
    >>> explain(model=model, inputs=images.numpy(), targets=[3]).shape
    (1, 1, 8, 8)

Hand it to a metric of Quantus as `explain_func=dmbp.explain_func("dmbp")`.
"""

from collections.abc import Callable
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import nn

from dmbp.attribution.method import Method
from dmbp.attribution.table import METHODS
from dmbp.names import known


def explain_func(method: str = "dmbp", **settings: Any) -> Callable[..., NDArray[Any]]:
    """A function from (model, inputs, targets) to maps, as NumPy arrays.

    `settings` are the method's. What Quantus passes beside is ignored: the device is the model's.
    """
    known("method", method, METHODS)
    last: list[tuple[nn.Module, Method]] = []  # Quantus asks about one model many times

    def explain(model: nn.Module, inputs: Any, targets: Any = None, **_: object) -> NDArray[Any]:
        if not last or last[0][0] is not model:
            last[:] = [(model, METHODS[method](model, **settings))]
        like = next(model.parameters(), torch.empty(0))
        images = torch.as_tensor(inputs).to(like)
        classes = None if targets is None else numpy.asarray(targets).reshape(-1).tolist()
        return last[0][1].attribute(images, target=classes).cpu().numpy()

    return explain
