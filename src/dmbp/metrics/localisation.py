"""Localisation: how much of a map lies on the object, given as boxes or as masks.

    mass accuracy           Σ_object s⁺ / Σ s⁺
    rank accuracy           the share of the K strongest pixels that lie on the object of K pixels
    energy pointing game    mass accuracy on boxes; of a mask, on the box around it

s is a map, summed over channels, and s⁺ its positive part. All three are between 0 and 1, and
higher is better if the network uses the object and nothing else; noise has the object's share of
the image's area. A network that uses the background is told so by a low score, which is no fault
of the method.

    >>> maps = torch.zeros(1, 1, 8, 8)
    >>> maps[0, 0, 2, 4:8] = 1.0
    >>> mass_accuracy(maps, [[(4, 1, 5, 3)]]).tolist()         # two of four pixels
    [0.5]

Arras, Osman and Samek, "CLEVR-XAI", Information Fusion 2022 (mass and rank accuracy, with relevance
pooled as the positive part of the channels' sum); Wang et al., "Score-CAM", CVPR Workshops 2020
(energy pointing game).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dmbp.devices import in_float64
from dmbp.errors import InputError
from dmbp.metrics.insertion import as_floating, pixel_ranks, sum_of_channels
from dmbp.metrics.pointing_game import Box, parse_box

Regions = Tensor | Sequence[Sequence[Box]]
"""Where the objects are: masks (images, *size) or (images, 1, *size), or boxes for each image."""


def mass_accuracy(attribution: Tensor, regions: Regions) -> Tensor:
    """Return the share of each map's positive mass that lies on the object.

    Args:
        attribution: Maps (images, channels, height, width), or those of signals or volumes.
        regions: Masks that are true on the object, (images, height, width) or with one channel, or
            for each image its boxes: (left, top, right, bottom) in pixels of the map.

    Returns:
        The shares (images,), from 0 to 1; 0 for a map without positive pixels.

    Raises:
        InputError: If the regions do not fit the maps, or an image has none.
    """
    inside = region_masks(regions, attribution)
    mass = in_float64(sum_of_channels(as_floating(attribution)).flatten(1)).clamp(min=0)
    return _share((mass * inside.flatten(1).to(mass)).sum(1), mass.sum(1))


def rank_accuracy(attribution: Tensor, regions: Regions) -> Tensor:
    """Return the share of the strongest pixels, as many as the object has, that lie on it.

    Args:
        attribution: Maps (images, channels, height, width), or those of signals or volumes.
        regions: Masks or boxes, as for `mass_accuracy`.

    Returns:
        The shares (images,), from 0 to 1.

    Raises:
        InputError: If the regions do not fit the maps, or an image has none.
    """
    inside = region_masks(regions, attribution).flatten(1)
    size = inside.sum(1)
    strongest = pixel_ranks(attribution, attribution).flatten(1) < size.view(-1, 1)
    hits = (strongest & inside).sum(1)
    return _share(in_float64(hits), in_float64(size))


def energy_pointing_game(attribution: Tensor, regions: Regions) -> Tensor:
    """Return the share of each map's positive mass that lies in the object's boxes.

    Args:
        attribution: Maps (images, channels, height, width), or those of signals or volumes.
        regions: Masks or boxes, as for `mass_accuracy`; of a mask, the box around it counts.

    Returns:
        The shares (images,), from 0 to 1; 0 for a map without positive pixels.

    Raises:
        InputError: If the regions do not fit the maps, or an image has none.
    """
    if isinstance(regions, Tensor):
        regions = _boxes_around(region_masks(regions, attribution))
    return mass_accuracy(attribution, regions)


def region_masks(regions: Regions, attribution: Tensor) -> Tensor:
    """Return regions as masks (images, 1, *size) on the device of the maps.

    A pixel is inside a box if its index is between the edges, both included, as in the pointing
    game.

    Raises:
        InputError: If the regions do not fit the maps, or an image has none.
    """
    if attribution.dim() < 3:
        raise InputError(
            "localisation needs maps with places (images, channels, height, width), not "
            f"attributions of shape {tuple(attribution.shape)}"
        )
    size = tuple(attribution.shape[2:])
    if isinstance(regions, Tensor):
        masks = regions.bool()
        if tuple(masks.shape) not in [(len(attribution), *size), (len(attribution), 1, *size)]:
            raise InputError(
                f"masks of shape {tuple(regions.shape)} do not fit maps of shape "
                f"{tuple(attribution.shape)}"
            )
        masks = masks.view(len(attribution), 1, *size)
    else:
        if len(regions) != len(attribution):
            raise InputError(
                f"boxes were given for {len(regions)} images, maps for {len(attribution)}"
            )
        masks = torch.stack([_in_boxes(own, size) for own in regions])
    if not masks.flatten(1).any(1).all():
        raise InputError("every image needs a region of the class that its map explains")
    return masks.to(attribution.device)


def _in_boxes(boxes: Sequence[Box], size: tuple[int, ...]) -> Tensor:
    """Return which pixels are in any of an image's boxes, (1, *size)."""
    found = torch.zeros(size, dtype=torch.bool)
    for box in boxes:
        edges = parse_box(box, len(size))
        inside = torch.ones(size, dtype=torch.bool)
        for axis, length in enumerate(size):
            k = len(size) - 1 - axis  # boxes name the last dimension first
            place = torch.arange(length)
            along = (place >= edges[k]) & (place <= edges[k + len(size)])
            inside &= along.view([-1 if other == axis else 1 for other in range(len(size))])
        found |= inside
    return found[None]


def _boxes_around(masks: Tensor) -> list[list[Box]]:
    """Return the box around each mask."""
    boxes: list[list[Box]] = []
    for mask in masks[:, 0]:
        places = mask.nonzero().flip(1)
        boxes.append([[*places.amin(0).tolist(), *places.amax(0).tolist()]])
    return boxes


def _share(part: Tensor, whole: Tensor) -> Tensor:
    return torch.where(whole > 0, part / whole, 0.0)
