"""A moving picture of the insertion metric: pixels go in, the probability beside them rises."""

from collections.abc import Sequence
from io import BytesIO

import numpy
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from dmbp.render.colour import Array

MILLISECONDS = 120
PAUSE_AT_THE_END = 1500


def insertion_gif(frames: Sequence[Array], curve: Sequence[float], title: str) -> bytes:
    """A GIF with a frame for every step: the photo so far (RGB in [0, 1]) beside the curve."""
    pictures = [_frame(frame, curve[: k + 1], len(frames), title) for k, frame in enumerate(frames)]
    durations = [MILLISECONDS] * (len(pictures) - 1) + [PAUSE_AT_THE_END]
    buffer = BytesIO()
    pictures[0].save(
        buffer, "GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0
    )
    return buffer.getvalue()


def _frame(photo: Array, so_far: Sequence[float], count: int, title: str) -> Image.Image:
    figure = Figure(figsize=(7.2, 3.6), dpi=80, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.imshow(numpy.clip(photo, 0, 1))
    left.set_axis_off()
    left.set_title(f"{(len(so_far) - 1) / (count - 1):.0%} of the pixels put in", fontsize=10)
    fractions = numpy.linspace(0, 1, count)[: len(so_far)]
    right.plot(fractions, so_far, color="#222222")
    right.plot(fractions[-1:], so_far[-1:], "o", color="#b2182b")
    right.set(xlim=(-0.02, 1.02), ylim=(0, 1.02), xlabel="fraction of pixels")
    right.set_title(f"probability of {title}: {so_far[-1]:.0%}", fontsize=10)
    right.spines[["top", "right"]].set_visible(False)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(numpy.asarray(canvas.buffer_rgba())).convert("RGB")
