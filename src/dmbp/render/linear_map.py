"""Any other method's linear map as a panel, split by the sign of what each pixel contributes.

    >>> gradient = dmbp.linearize(model, images, target=3).pullback()
    >>> positive, negative = split_by_sign(images, gradient)
    >>> torch.equal(positive + negative, gradient)
    True

DMBP has a map for each sign. For other methods the paper's supplement decomposes the one they have
"according to the sign of the obtained pixel-level attributions".
"""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from dmbp.decompose.reference import Reference, reference_for
from dmbp.errors import InputError
from dmbp.render.files import figure_bytes, write_whole
from dmbp.render.panel import PanelRow, PanelStyle, draw_panel
from dmbp.render.pictures import check_drawable, picture, stretched


def plot_linear_map(
    inputs: Tensor,
    linear_map: Tensor,
    path: str | Path,
    *,
    reference: Reference = None,
    captions: Sequence[str] | None = None,
    style: PanelStyle | None = None,
) -> None:
    """Draw map ⊙ (x − reference) and both halves of the map for every image."""
    check_drawable(inputs)
    if linear_map.shape != inputs.shape:
        raise InputError(
            f"a linear map of shape {tuple(linear_map.shape)} does not fit inputs of shape "
            f"{tuple(inputs.shape)}"
        )
    positive, negative = split_by_sign(inputs, linear_map, reference)
    pixels = (linear_map * (inputs - reference_for(inputs, reference))).sum(1)
    rows = [
        PanelRow(
            photo=stretched(inputs[k]),
            attribution=pixels[k].detach().cpu().double().numpy(),
            positive_map=picture(positive[k]),
            negative_map=picture(negative[k]),
            terms=None,
            photo_caption="input",
            target_caption=captions[k] if captions is not None else "for and against",
        )
        for k in range(len(inputs))
    ]
    path = Path(path)
    write_whole({path: figure_bytes(draw_panel(rows, style), path.suffix)})


def split_by_sign(
    inputs: Tensor, linear_map: Tensor, reference: Reference = None
) -> tuple[Tensor, Tensor]:
    """The map where pixels contribute positively, and where negatively; zero elsewhere."""
    pixels = (linear_map * (inputs - reference_for(inputs, reference))).sum(1, keepdim=True)
    return linear_map * (pixels > 0), linear_map * (pixels < 0)
