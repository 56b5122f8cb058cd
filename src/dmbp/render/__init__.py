"""Draw attributions.

    colour.py         the palettes, other colours, and how strength becomes colour
    colour_test.py    what a score becomes without each colour, and in a control, in words
    panel.py          the picture of `dmbp explain`: photo, evidence, the photo without each colour
    series.py         the same for inputs that are not images: lines for signals, bars for features
    volume.py         the slices of a volume, laid out as one picture
    decomposition.py  from a `Decomposition`, or any linear map, to one of the two above
    maps.py           `show` and `grid`: the maps of any method over a photo
    comparison.py     the pictures of `dmbp compare` and `dmbp sanity`; insertion curves and GIFs
    boxes.py          the picture of `dmbp boxes`
    whole_photo.py    the evidence over the whole photo, at the photo's own size
    benchmark.py      the figure of `dmbp bench plot`
    report.py         the HTML pages of `dmbp explain --report`, from `templates/report.html`
    pictures.py       tensors to pictures

To change how blue is drawn, edit `PALETTES` in `colour.py`: every map, bar and legend of evidence
takes its colours from there. The curves of a benchmark and the greys of the HTML page have their
colours in `benchmark.py` and in `templates/report.css`. To use your own palette, pass
`style=PanelStyle(palette=Palette(...))` to `Decomposition.plot`.
"""

from dmbp.display import encode_figure
from dmbp.files import write_all_or_none
from dmbp.render.boxes import DrawnBox, draw_boxes
from dmbp.render.colour import PALETTES, Palette
from dmbp.render.colour_test import ColourTest, Outcome
from dmbp.render.comparison import (
    ComparedMap,
    CurveSubject,
    InsertedPhoto,
    SanityRow,
    draw_comparison,
    draw_insertion,
    draw_sanity,
    format_duration,
    insertion_gif,
)
from dmbp.render.decomposition import (
    decomposition_figure,
    draw_row,
    panel_rows,
    plot_decomposition,
    plot_linear_map,
    series_rows,
    split_by_sign,
)
from dmbp.render.maps import grid, show
from dmbp.render.panel import PanelRow, PanelStyle, draw_panel
from dmbp.render.report import (
    REPORT_NAME,
    DrawnPhoto,
    ReportHeading,
    ReportPhoto,
    ReportTarget,
    ReportWriter,
    framed,
    report_page,
)
from dmbp.render.series import SeriesRow, draw_charts
from dmbp.render.whole_photo import draw_whole_photo, spread_over_photo

__all__ = [
    "PALETTES",
    "REPORT_NAME",
    "ColourTest",
    "ComparedMap",
    "CurveSubject",
    "DrawnBox",
    "DrawnPhoto",
    "InsertedPhoto",
    "Outcome",
    "Palette",
    "PanelRow",
    "PanelStyle",
    "ReportHeading",
    "ReportPhoto",
    "ReportTarget",
    "ReportWriter",
    "SanityRow",
    "SeriesRow",
    "decomposition_figure",
    "draw_boxes",
    "draw_charts",
    "draw_comparison",
    "draw_insertion",
    "draw_panel",
    "draw_row",
    "draw_sanity",
    "draw_whole_photo",
    "encode_figure",
    "format_duration",
    "framed",
    "grid",
    "insertion_gif",
    "panel_rows",
    "plot_decomposition",
    "plot_linear_map",
    "report_page",
    "series_rows",
    "show",
    "split_by_sign",
    "spread_over_photo",
    "write_all_or_none",
]
