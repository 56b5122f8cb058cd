"""How a window is tested: a photo without it, the window alone, what all are worth, and the map.

python docs/figures/windows.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import dmbp
from dmbp.data import sample_photos
from dmbp.metrics import remove_pixels
from dmbp.models import load_model

IMAGES = Path(__file__).parent.parent / "images"
CLASS = "cat"
WINDOW = (slice(60, 100), slice(20, 60))
"""Rows and columns of the window that is shown."""


def draw() -> None:
    model = load_model("voc160")
    photo, _ = sample_photos()["collage"]
    images = model.preprocessing.tensor(model.preprocessing.view(photo))
    target = model.classes.index(CLASS)
    window = torch.zeros(1, 1, *images.shape[2:], dtype=torch.bool)
    window[..., WINDOW[0], WINDOW[1]] = True
    shown = {
        "the photo": images,
        "without a window": remove_pixels(images, window, "blur"),
        "the window alone": remove_pixels(images, ~window, "blur"),
    }
    worth = dmbp.methods()["windows"](model.module).attribute(images, target=target)
    tested = dmbp.DMBP(model.module).attribute(images, target=target)
    figure, axes = plt.subplots(1, 5, figsize=(12, 2.9), layout="constrained")
    for axis, (title, image) in zip(axes, shown.items(), strict=False):
        with torch.no_grad():
            score = float(model.module(image)[0, target])
        axis.imshow(as_pixels(image, images))
        axis.set_title(f"{title}\nscore of {CLASS}: {score:+.1f}", fontsize=10)
    grey = as_pixels(images, images).mean(2)
    for axis, title, maps in (
        (axes[3], "what windows are worth", worth),
        (axes[4], "the map", tested),
    ):
        total = avg_pool2d(maps.sum(1), 5, 1, 2)[0]  # single pixels would hardly be seen
        most = float(total.abs().max())
        axis.imshow(grey, cmap="gray", vmin=-1.5, vmax=1)
        axis.imshow(total, cmap="RdBu_r", vmin=-most, vmax=most, alpha=0.7)
        axis.set_title(f"{title}\nred: for {CLASS}", fontsize=10)
    for axis in axes:
        axis.set_axis_off()
    figure.savefig(IMAGES / "windows.png", dpi=110, bbox_inches="tight")


def as_pixels(image: Tensor, like: Tensor) -> Tensor:
    """Normalised images as pixels from 0 to 1, on one scale."""
    low, high = like.min(), like.max()
    return ((image[0] - low) / (high - low)).clamp(0, 1).permute(1, 2, 0)


if __name__ == "__main__":
    draw()
