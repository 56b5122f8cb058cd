"""Pictures of attributions: what is drawn, in which file.

    colour.py         every colour: the palettes, and how strength becomes colour
    panel.py          the picture of `dmbp explain`: photo, evidence, linear maps, bars of the terms
    series.py         the same for inputs that are not images: lines for signals, bars for features
    decomposition.py  from a `Decomposition`, or any linear map, to one of the two above
    comparison.py     the pictures of `dmbp compare` and `dmbp sanity`; insertion curves and GIFs
    benchmark.py      the figure of `dmbp bench plot`
    report.py         the HTML page of `dmbp explain --report`, from `templates/report.html`
    pictures.py       tensors to pictures, and files that are written whole or not at all

To change how blue is drawn, edit `PALETTES` in `colour.py`: every map, bar, legend and page takes
its colours from there; only the curves of a benchmark have a set of their own. To use a palette of
your own, pass `style=PanelStyle(palette=Palette(...))` to `Decomposition.plot`.
"""

from dmbp.render.colour import PALETTES, Palette
from dmbp.render.comparison import (
    ComparedMap,
    SanityRow,
    draw_comparison,
    draw_insertion,
    draw_sanity,
    format_duration,
    insertion_gif,
)
from dmbp.render.decomposition import panel_rows, plot_decomposition, plot_linear_map, split_by_sign
from dmbp.render.panel import PanelRow, PanelStyle, draw_panel
from dmbp.render.pictures import encode_figure, write_all_or_none
from dmbp.render.report import ReportPhoto, ReportTarget, report_html

__all__ = [
    "PALETTES",
    "ComparedMap",
    "Palette",
    "PanelRow",
    "PanelStyle",
    "ReportPhoto",
    "ReportTarget",
    "SanityRow",
    "draw_comparison",
    "draw_insertion",
    "draw_panel",
    "draw_sanity",
    "encode_figure",
    "format_duration",
    "insertion_gif",
    "panel_rows",
    "plot_decomposition",
    "plot_linear_map",
    "report_html",
    "split_by_sign",
    "write_all_or_none",
]
