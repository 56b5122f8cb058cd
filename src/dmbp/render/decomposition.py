"""A decomposition as a panel."""

from collections.abc import Sequence
from pathlib import Path

import numpy
from torch import Tensor

from dmbp.decompose import Decomposition
from dmbp.errors import InputError
from dmbp.linear.targets import OneTarget
from dmbp.render.colour import Array
from dmbp.render.files import figure_bytes, write_whole
from dmbp.render.panel import PanelRow, PanelStyle, draw_panel


def plot_decomposition(
    decomposition: Decomposition,
    path: str | Path,
    *,
    photos: Sequence[Array] | None = None,
    photo_captions: Sequence[str] | None = None,
    target_captions: Sequence[str] | None = None,
    style: PanelStyle | None = None,
) -> None:
    """Draw every row of a decomposition into a picture at `path` (.png, .svg or .pdf).

    `photos` holds an array (height, width, 3) in [0, 1] for every row; without it the inputs are
    shown, stretched to their own range.
    """
    rows = panel_rows(decomposition, photos, photo_captions, target_captions)
    path = Path(path)
    write_whole({path: figure_bytes(draw_panel(rows, style), path.suffix)})


def panel_rows(
    decomposition: Decomposition,
    photos: Sequence[Array] | None = None,
    photo_captions: Sequence[str] | None = None,
    target_captions: Sequence[str] | None = None,
) -> list[PanelRow]:
    """The panel's rows, one for each row of the decomposition."""
    inputs = decomposition.inputs
    if inputs.dim() != 4 or inputs.shape[1] not in (1, 3):
        raise InputError(
            f"only images of one or three channels can be drawn, not inputs of shape "
            f"{tuple(inputs.shape)}"
        )
    terms = zip(
        decomposition.output.tolist(),
        decomposition.positive_output.tolist(),
        decomposition.negative_output.tolist(),
        decomposition.nuisance_output.tolist(),
        strict=True,
    )
    attributions = decomposition.attribution.sum(1)
    return [
        PanelRow(
            photo=photos[k] if photos is not None else _stretched(inputs[k]),
            attribution=attributions[k].detach().cpu().double().numpy(),
            positive_map=_channels_last(decomposition.positive_map[k]),
            negative_map=_channels_last(decomposition.negative_map[k]),
            terms=term,
            photo_caption=photo_captions[k] if photo_captions is not None else "input",
            target_caption=(
                target_captions[k]
                if target_captions is not None
                else target_text(decomposition.targets[k])
            ),
        )
        for k, term in enumerate(terms)
    ]


def target_text(target: OneTarget) -> str:
    """A target by its numbers: `class 282`, `+1·285 −1·243`."""
    if isinstance(target, int):
        return f"class {target}"
    return " ".join(f"{weight:+g}·{index}" for index, weight in target.items())


def _channels_last(image: Tensor) -> Array:
    array = image.detach().cpu().double().permute(1, 2, 0).numpy()
    return numpy.repeat(array, 3, axis=2) if array.shape[2] == 1 else array


def _stretched(image: Tensor) -> Array:
    array = _channels_last(image)
    low, high = array.min(), array.max()
    return (array - low) / max(high - low, 1e-12)
