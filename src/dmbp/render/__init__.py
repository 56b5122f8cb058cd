"""Pictures of attributions."""

from dmbp.render.colour import PALETTES, Palette
from dmbp.render.comparison import ComparedMap, SanityRow, draw_comparison, draw_sanity, duration
from dmbp.render.decomposition import panel_rows, plot_decomposition, plot_linear_map, split_by_sign
from dmbp.render.insertion import draw_insertion, insertion_gif
from dmbp.render.panel import PanelRow, PanelStyle, draw_panel
from dmbp.render.pictures import figure_bytes, write_whole
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
    "duration",
    "figure_bytes",
    "insertion_gif",
    "panel_rows",
    "plot_decomposition",
    "plot_linear_map",
    "report_html",
    "split_by_sign",
    "write_whole",
]
