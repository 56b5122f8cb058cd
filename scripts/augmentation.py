"""Random crops, colours and mixtures of images, computed on the device for a whole batch at once.

Nothing here touches labels: in distillation the teacher labels the augmented image itself.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Area of a crop relative to the image. Above 1 the image is zoomed out and its border filled by
# reflection, so that objects also appear smaller than in the photo.
LARGEST_AREA = 1.2
SMALLEST_AREA = 0.25
LOG_ASPECT = 0.25
ROTATION = 0.15
BRIGHTNESS, CONTRAST, SATURATION = 0.3, 0.3, 0.5
BLENDED, PASTED = 0.25, 0.35


def augment(images: Tensor, generator: torch.Generator, *, strength: float) -> Tensor:
    """Return augmented copies of uint8 images (batch, channel, height, width), also uint8.

    `strength` in 0..1 scales how small crops get, how far colours move and how many are mixed.
    """
    crops = _crop(images.float(), generator, strength=strength)
    coloured = _recolour(crops, generator, strength=strength)
    mixed = _mix(coloured, generator, strength=strength)
    return mixed.round().clamp(0, 255).to(torch.uint8)


def _uniform(like: Tensor, generator: torch.Generator, low: float, high: float) -> Tensor:
    """Draw one number for each image, (batch,)."""
    numbers = torch.rand(len(like), generator=generator, device=like.device)
    return low + (high - low) * numbers


def _crop(images: Tensor, generator: torch.Generator, *, strength: float) -> Tensor:
    smallest = 1 - strength * (1 - SMALLEST_AREA)
    scale = _uniform(images, generator, smallest, LARGEST_AREA).sqrt()
    aspect = _uniform(images, generator, -LOG_ASPECT, LOG_ASPECT).mul(strength).exp()
    angle = _uniform(images, generator, -ROTATION, ROTATION) * strength
    mirror = _uniform(images, generator, -1, 1).sign()
    width, height = scale * aspect, scale / aspect
    shift_x = _uniform(images, generator, -1, 1) * (1 - width).clamp(min=0)
    shift_y = _uniform(images, generator, -1, 1) * (1 - height).clamp(min=0)

    first_row = torch.stack([angle.cos() * width * mirror, -angle.sin() * height, shift_x], 1)
    second_row = torch.stack([angle.sin() * width * mirror, angle.cos() * height, shift_y], 1)
    transform = torch.stack([first_row, second_row], 1)
    grid = F.affine_grid(transform, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def _recolour(images: Tensor, generator: torch.Generator, *, strength: float) -> Tensor:
    def factor(spread: float) -> Tensor:
        spread *= strength
        return _uniform(images, generator, 1 - spread, 1 + spread).view(-1, 1, 1, 1)

    images = (images * factor(BRIGHTNESS)).clamp(0, 255)
    level = images.mean((1, 2, 3), keepdim=True)
    images = level + (images - level) * factor(CONTRAST)
    grey = images.mean(1, keepdim=True)
    images = grey + (images - grey) * factor(SATURATION)
    return images.clamp(0, 255)


def _mix(images: Tensor, generator: torch.Generator, *, strength: float) -> Tensor:
    """Blend some images with another of the batch, and paste a part of another into some."""
    blend = _uniform(images, generator, 0, 1).view(-1, 1, 1, 1).expand(-1, 1, *images.shape[2:])
    paste = _random_box(images, generator).float()
    choice = _uniform(images, generator, 0, 1).view(-1, 1, 1, 1)
    share = torch.where(choice < BLENDED * strength, blend, torch.zeros_like(blend))
    share = torch.where(choice > 1 - PASTED * strength, paste, share)
    return torch.lerp(images, images.roll(1, 0), share)


def _random_box(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return masks that are true inside a random rectangle, (batch, 1, height, width)."""
    height, width = images.shape[2:]
    vertical = _random_interval(images, generator, length=height)
    horizontal = _random_interval(images, generator, length=width)
    return (vertical[:, :, None] & horizontal[:, None, :])[:, None]


def _random_interval(images: Tensor, generator: torch.Generator, *, length: int) -> Tensor:
    position = (torch.arange(length, device=images.device) + 0.5) / length
    centre = _uniform(images, generator, 0, 1)[:, None]
    half = _uniform(images, generator, 0.15, 0.75)[:, None]
    return (position - centre).abs() < half
