"""Pictures of attributions."""

from dmbp.render.animation import insertion_gif
from dmbp.render.colour import PALETTES, Palette
from dmbp.render.comparison import ComparedMap, draw_comparison, duration
from dmbp.render.decomposition import panel_rows, plot_decomposition
from dmbp.render.files import figure_bytes, write_whole
from dmbp.render.insertion import draw_insertion
from dmbp.render.linear_map import plot_linear_map, split_by_sign
from dmbp.render.panel import PanelRow, PanelStyle, draw_panel
from dmbp.render.report import ReportPhoto, ReportTarget, report_html
from dmbp.render.sanity import SanityRow, draw_sanity

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
