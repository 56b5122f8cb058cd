"""Draws a `Decomposition`, or any method's linear map.

    >>> gradient = dmbp.linearize(model, images, target=3).pullback()
    >>> positive, negative = split_by_sign(images, gradient)
    >>> torch.equal(positive + negative, gradient)
    True

`decomposition_figure` draws a panel for images, lines for signals and bars for features, with what
the model said when their colours were tested. DMBP has a linear map for each sign; for other
methods `plot_linear_map` splits the one they have "according to the sign of the obtained
pixel-level attributions", as the paper's supplement does.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from dmbp.baseline import Baseline, baseline_for, blur
from dmbp.decompose import Decomposition
from dmbp.decompose.details import expand_rows
from dmbp.decompose.tested import moved_elsewhere, strongest
from dmbp.display import write_figure
from dmbp.errors import InputError
from dmbp.linear.named_target import BoundTarget, NamedTarget
from dmbp.linear.targets import Index, OneTarget, function_name
from dmbp.probabilities import Activation
from dmbp.render.colour import Array
from dmbp.render.colour_test import (
    COLOUR_SIGNS,
    IMAGE_WORDS,
    PHOTO,
    VOLUME_WORDS,
    ColourTest,
    Sign,
    colour_tests,
)
from dmbp.render.panel import (
    PanelRow,
    PanelStyle,
    TermValues,
    draw_evidence,
    draw_panel,
)
from dmbp.render.pictures import (
    check_drawable,
    parse_photo,
    shown_bands,
    stretch_bands,
    stretch_contrast,
    to_picture,
)
from dmbp.render.series import CHARTS, SeriesRow, draw_charts
from dmbp.render.volume import Montage


def plot_linear_map(
    inputs: Tensor,
    linear_map: Tensor,
    path: str | Path,
    *,
    reference: Baseline = None,
    captions: Sequence[str] | None = None,
    style: PanelStyle | None = None,
) -> None:
    """Draw map ⊙ (x − reference) and both halves of the map, split by sign, for every image.

    Args:
        inputs: Images (batch, channels, height, width) or volumes.
        linear_map: A map of the same shape.
        path: The picture to write: .png, .svg or .pdf.
        reference: What pixels are compared with: None for zero, "blur", "mean" or a tensor.
        captions: A caption for each image.
        style: How the picture looks.

    Raises:
        InputError: If the inputs cannot be drawn, or the map has another shape.
        OutputError: If the picture cannot be written.
    """
    check_drawable(inputs)
    if linear_map.shape != inputs.shape:
        raise InputError(
            f"a linear map of shape {tuple(linear_map.shape)} does not fit inputs of shape "
            f"{tuple(inputs.shape)}"
        )
    positive, negative = split_by_sign(inputs, linear_map, reference)
    pixels = (linear_map * (inputs - baseline_for(inputs, reference))).sum(1)
    shown = list(shown_bands(inputs, None))
    rows = [
        PanelRow(
            photo=_stretched(inputs, k, shown),
            attribution=pixels[k].detach().cpu().double().numpy(),
            positive_map=to_picture(positive[k][shown]),
            negative_map=to_picture(negative[k][shown]),
            terms=None,
            photo_caption="input",
            target_caption=captions[k] if captions is not None else "for and against",
        )
        for k in range(len(inputs))
    ]
    rows = [_laid_out(row) if inputs.dim() == 5 else row for row in rows]
    write_figure(draw_panel(rows, style), path)


def split_by_sign(
    inputs: Tensor, linear_map: Tensor, reference: Baseline = None
) -> tuple[Tensor, Tensor]:
    """Return the map at pixels with a positive attribution, and at those with a negative one.

    Each is zero elsewhere, so that the two add up to the map.
    """
    pixels = (linear_map * (inputs - baseline_for(inputs, reference))).sum(1, keepdim=True)
    return linear_map * (pixels > 0), linear_map * (pixels < 0)


def decomposition_figure(
    decomposition: Decomposition,
    *,
    photos: Sequence[Any] | None = None,
    photo_captions: Sequence[str] | None = None,
    target_captions: Sequence[str] | None = None,
    target_names: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    activation: Activation | None = None,
    bands: Sequence[int] | None = None,
    style: PanelStyle | None = None,
) -> Figure:
    """Draw every row of a decomposition into one picture.

    Images are drawn as panels, volumes (batch, channels, depth, height, width) as panels of slices,
    signals (batch, channels, length) as lines and vectors (batch, features) as bars.

    Args:
        decomposition: What `DMBP.explain` returned.
        photos: What the model saw for every row: a Pillow image, an array (height, width, 3) in
            [0, 1] or a tensor. Without photos the inputs are shown, with their contrast stretched.
        photo_captions: A caption for each photo.
        target_captions: What each row is about, such as a class's name.
        target_names: What sentences call it, if that differs from the caption.
        names: Names of the channels or features.
        activation: Turns outputs into probabilities: "softmax", "sigmoid", "none" or a function.
            Without it, the picture says how scores change without the strongest pixels.
        bands: The channels to show of images or volumes with many: their numbers, from 1, one or
            three in the order red, green, blue. By default the first three of images.
        style: How the picture looks.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: If the inputs cannot be drawn, or photos, captions or names do not fit them.
    """
    rows = range(len(decomposition.inputs))
    check_labels(decomposition, photos, photo_captions, target_captions)
    captions = [_caption(decomposition, row, target_captions) for row in rows]
    called = captions if target_names is None else list(target_names)
    tests = colour_tests(decomposition, called, activation=activation)
    titles = [f"for and against: {caption}" for caption in captions]
    if decomposition.inputs.dim() - 1 in CHARTS:
        return draw_charts(series_rows(decomposition, titles, tests, names), style)
    if names is not None:
        raise InputError("names are for features or channels; name classes with target_captions")
    panel = panel_rows(decomposition, photos, photo_captions, titles, tests, bands=bands)
    tested = decomposition.tested
    several = tested is not None and tested.outputs.shape[1] > 1
    return draw_panel(panel, style, independent=activation == "sigmoid" and several)


def plot_decomposition(decomposition: Decomposition, path: str | Path, **options: Any) -> None:
    """Draw every row of a decomposition into a file.

    Args:
        decomposition: What `DMBP.explain` returned.
        path: The picture to write: .png, .svg or .pdf.
        **options: Those of `decomposition_figure`.

    Raises:
        InputError: If the inputs cannot be drawn, or the options do not fit them.
        OutputError: If the picture cannot be written.
    """
    write_figure(decomposition_figure(decomposition, **options), path)


def draw_row(
    decomposition: Decomposition,
    row: int,
    axes: Axes,
    *,
    photo: Any = None,
    caption: str | None = None,
    style: PanelStyle | None = None,
) -> None:
    """Draw the map of one row over its image into axes of matplotlib.

    Args:
        decomposition: What `DMBP.explain` returned.
        row: The number of the row.
        axes: The axes.
        photo: What the model saw, as in `decomposition_figure`.
        caption: The title; by default it says what is explained.
        style: The colours, and how far the map is smoothed.

    Raises:
        InputError: If there is no such row, or the inputs are not images.
    """
    rows = len(decomposition.targets)
    if not 0 <= row < rows:
        raise InputError(f"there is no row {row}: the rows are 0 to {rows - 1}")
    if decomposition.inputs.dim() != 4:
        raise InputError("axes show the map of an image: draw other inputs with figure()")
    labels = decomposition.labels
    if labels is not None:
        photo = labels.photo if photo is None else photo
        captions = labels.captions or labels.targets
        caption = captions[row] if caption is None and captions else caption
    drawn = panel_rows(decomposition, None if photo is None else [photo] * rows)[row]
    title = _caption(decomposition, row, None) if caption is None else caption
    draw_evidence(axes, drawn, f"for and against: {title}", style)


def series_rows(
    decomposition: Decomposition,
    captions: Sequence[str],
    tests: Sequence[ColourTest | None],
    names: Sequence[str] | None = None,
) -> list[SeriesRow]:
    """Return the charts' rows, one for each row of the decomposition of signals or vectors.

    `names` are those of the channels or features; by default they are numbered.
    """
    inputs = decomposition.inputs
    entry = CHARTS[inputs.dim() - 1].entry
    names = names or [f"{entry} {k}" for k in range(inputs.shape[1])]
    if len(names) != inputs.shape[1]:
        raise InputError(f"{len(names)} names were given for {inputs.shape[1]} {entry}s")
    return [
        SeriesRow(
            values=inputs[k].detach().cpu().double().numpy(),
            attribution=decomposition.attribution[k].detach().cpu().double().numpy(),
            terms=terms,
            caption=captions[k],
            names=names,
            test=tests[k],
        )
        for k, terms in enumerate(_terms(decomposition))
    ]


def panel_rows(
    decomposition: Decomposition,
    photos: Sequence[Any] | None = None,
    photo_captions: Sequence[str] | None = None,
    target_captions: Sequence[str] | None = None,
    tests: Sequence[ColourTest | None] | None = None,
    regions: Sequence[Tensor | None] | None = None,
    *,
    bands: Sequence[int] | None = None,
) -> list[PanelRow]:
    """Return the panel's rows, one for each row of the decomposition, with these `tests`.

    `regions` are where the targets look, by default what the targets themselves say. `bands` are as
    for `plot_decomposition`.
    """
    inputs = decomposition.inputs
    check_drawable(inputs)
    check_labels(decomposition, photos, photo_captions, target_captions)
    if photos is not None and inputs.dim() != 4:
        raise InputError("photos are for images: the slices of a volume show the input itself")
    size = (inputs.shape[-2], inputs.shape[-1])
    shown = list(shown_bands(inputs, bands))
    is_drawn = ~decomposition.is_blank  # rounding errors must not be drawn in full colours
    attributions = decomposition.attribution.sum(1)
    attributions = torch.where(expand_rows(is_drawn, attributions), attributions, 0)
    masks: dict[Sign, Tensor] = {sign: strongest(sign * attributions) for sign in COLOUR_SIGNS}
    masks[0] = moved_elsewhere(masks[1])
    removed: dict[Sign, Array] = {sign: mask.cpu().numpy() for sign, mask in masks.items()}
    rows: list[PanelRow] = []
    for k, terms in enumerate(_terms(decomposition)):
        photo = _stretched(inputs, k, shown)
        if photos is not None:
            photo = parse_photo(photos[k], size)
        test = None if tests is None else tests[k]
        row = PanelRow(
            photo=photo,
            attribution=attributions[k].detach().cpu().double().numpy(),
            positive_map=to_picture(decomposition.positive_map[k][shown]),
            negative_map=to_picture(decomposition.negative_map[k][shown]),
            terms=terms,
            photo_caption=(
                _input_caption(inputs, shown) if photo_captions is None else str(photo_captions[k])
            ),
            target_caption=_caption(decomposition, k, target_captions),
            test=test,
            removed={sign: mask[k] for sign, mask in removed.items()},
            replaced=None if test is None else _replaced(photo, test.by),
            words=PHOTO if inputs.shape[1] in (1, 3) else IMAGE_WORDS,
            region=_region(decomposition, k)
            if regions is None
            else _as_mask(regions[k], inputs.shape[2:]),
        )
        rows.append(_laid_out(row) if inputs.dim() == 5 else row)
    return rows


def _stretched(inputs: Tensor, row: int, shown: list[int]) -> Array:
    """Return a row's input as a picture (*size, 3) of some channels, with stretched contrast."""
    is_photo = inputs.dim() == 4 and inputs.shape[1] == len(shown)
    return (stretch_contrast if is_photo else stretch_bands)(inputs[row][shown])


def _input_caption(inputs: Tensor, shown: list[int]) -> str:
    """Return a caption for an input, with the bands that are shown if there are others."""
    numbers = ", ".join(str(k + 1) for k in shown)
    of = f"band{'s' * (len(shown) > 1)} {numbers} of {inputs.shape[1]}"
    return "input" if inputs.shape[1] == len(shown) else f"input, {of}"


def _laid_out(row: PanelRow) -> PanelRow:
    """Return a row whose arrays are volumes (depth, height, width, …) as slices side by side."""
    montage = Montage.of(row.attribution)
    removed = row.removed or {}
    photo = montage.lay_out(row.photo, fill=1.0)
    through = montage.views[-1].cut(photo)  # the brightest of many voxels are nearly all white
    through[...] = stretch_bands(torch.from_numpy(through).movedim(-1, 0))
    return replace(
        row,
        photo=photo,
        attribution=montage.lay_out(row.attribution),
        positive_map=montage.lay_out(row.positive_map),
        negative_map=montage.lay_out(row.negative_map),
        removed={sign: montage.lay_out(mask) for sign, mask in removed.items()},
        replaced=None if row.replaced is None else montage.lay_out(row.replaced, fill=1.0),
        region=None if row.region is None else montage.lay_out(row.region) > 0,
        views=montage.views,
        words=VOLUME_WORDS,
    )


def _region(decomposition: Decomposition, row: int) -> Array | None:
    """Return where a row's target looks, if it says so."""
    target = decomposition.targets[row]
    size = tuple(decomposition.inputs.shape[2:])
    return _as_mask(target.region, size) if isinstance(target, BoundTarget) else None


def _as_mask(region: Tensor | None, size: Sequence[int]) -> Array | None:
    """Return a region as an array, if it has the size of the picture."""
    if region is None or tuple(region.shape) != tuple(size):
        return None
    return region.cpu().numpy()


def check_labels(
    decomposition: Decomposition,
    photos: Sequence[Any] | None,
    photo_captions: Sequence[str] | None,
    target_captions: Sequence[str] | None,
) -> None:
    """Raise an `InputError` unless there is a photo and a caption for every row."""
    count = len(decomposition.inputs)
    for labels in (photos, photo_captions, target_captions):
        if labels is not None and len(labels) != count:
            what = "photos" if labels is photos else "captions"
            raise InputError(f"{len(labels)} {what} were given for {count} rows")


def _replaced(photo: Array, by: str) -> Array:
    """Return a photo (*size, 3) as it looks where pixels were replaced: blurred, or its mean."""
    mean = photo.mean(tuple(range(photo.ndim - 1)))
    if by != "blur":
        return numpy.broadcast_to(mean, photo.shape)
    if photo.shape[-1] > 1 and photo.strides[-1] == 0:  # three channels that are one
        return numpy.broadcast_to(_replaced(photo[..., :1], by), photo.shape)
    # Around its mean, so that the blur does not darken the borders, where it pads with zeros.
    image = torch.from_numpy(photo - mean).movedim(-1, 0)[None]
    replaced = blur(image)[0].movedim(0, -1).numpy()
    replaced += mean
    return replaced


def _terms(decomposition: Decomposition) -> list[TermValues]:
    return list(
        zip(
            decomposition.output.tolist(),
            decomposition.positive_output.tolist(),
            decomposition.negative_output.tolist(),
            decomposition.nuisance_output.tolist(),
            strict=True,
        )
    )


def _caption(decomposition: Decomposition, row: int, captions: Sequence[str] | None) -> str:
    return target_text(decomposition.targets[row]) if captions is None else str(captions[row])


def target_text(target: OneTarget | str) -> str:
    """Return a target as text: `class 282`, `class 285 − class 243`, or a function's name."""
    if isinstance(target, str):
        return target
    if isinstance(target, int | tuple):
        return _output_name(target)
    if callable(target) or isinstance(target, NamedTarget):
        return function_name(target)
    text = " ".join(_weighted(index, weight) for index, weight in target.items())
    return text.removeprefix("+ ") if text.startswith("+") else f"−{text.removeprefix('− ')}"


def _weighted(index: Index, weight: float) -> str:
    size = "" if abs(weight) == 1 else f"{abs(weight):g} · "
    return f"{'−' if weight < 0 else '+'} {size}{_output_name(index)}"


def _output_name(index: Index) -> str:
    return f"output {index}" if isinstance(index, tuple) else f"class {index}"
