"""A decomposition as a panel."""

from collections.abc import Sequence
from pathlib import Path

from dmbp.decompose import Decomposition
from dmbp.linear.targets import OneTarget, function_name
from dmbp.render.colour import Array
from dmbp.render.files import figure_bytes, write_whole
from dmbp.render.panel import PanelRow, PanelStyle, draw_panel
from dmbp.render.pictures import check_drawable, picture, stretched


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
    check_drawable(inputs)
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
            photo=photos[k] if photos is not None else stretched(inputs[k]),
            attribution=attributions[k].detach().cpu().double().numpy(),
            positive_map=picture(decomposition.positive_map[k]),
            negative_map=picture(decomposition.negative_map[k]),
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


def target_text(target: OneTarget | str) -> str:
    """A target by its numbers: `class 282`, `+1·285 −1·243`; a function by its name."""
    if isinstance(target, str):
        return target
    if isinstance(target, int):
        return f"class {target}"
    if callable(target):
        return function_name(target)
    return " ".join(f"{weight:+g}·{index}" for index, weight in target.items())
