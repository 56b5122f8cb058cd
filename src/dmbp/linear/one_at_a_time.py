"""A model that takes a single image, as one exported without a dynamic batch, for any number."""

import torch
from torch import Tensor, nn


class OneAtATime(nn.Module):
    """Runs a model on one image after the other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        settle(self)

    def forward(self, images: Tensor) -> Tensor:
        """The model's outputs, image after image."""
        return torch.cat([self.model(image) for image in images.split(1)])


def settle(module: nn.Module) -> None:
    """Put a module into evaluation mode, also one of an exported program, which has no other."""
    try:
        module.eval()
    except NotImplementedError:
        for part in module.modules():
            part.training = False
