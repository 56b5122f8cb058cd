"""A model that takes a single image, as one exported without a dynamic batch, for any number."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


class OneAtATime(nn.Module):
    """Runs a model on one image after the other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        settle(self)

    def forward(self, images: Tensor) -> Any:
        """The model's outputs, image after image; of several things that it returns, each."""
        found = [self.model(image) for image in images.split(1)]
        return tree_map(lambda *parts: _joined(parts), found[0], *found[1:])


def _joined(parts: tuple[Any, ...]) -> Any:
    """Every image's part together; what is no tensor is the first one's."""
    return torch.cat(parts) if isinstance(parts[0], Tensor) and parts[0].dim() else parts[0]


def settle(module: nn.Module) -> None:
    """Put a module into evaluation mode, also one of an exported program, which has no other."""
    try:
        module.eval()
    except NotImplementedError:
        for part in module.modules():
            part.training = False
