"""Pictures of attributions."""

from dmbp.render.decomposition import panel_rows, plot_decomposition
from dmbp.render.files import figure_bytes, write_whole
from dmbp.render.panel import PanelRow, PanelStyle, draw_panel

__all__ = [
    "PanelRow",
    "PanelStyle",
    "draw_panel",
    "figure_bytes",
    "panel_rows",
    "plot_decomposition",
    "write_whole",
]
