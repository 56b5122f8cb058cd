"""A signal (channels, length): a line for each channel, on colours of what each moment says."""

import numpy
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from dmbp.render.colour import Array
from dmbp.render.series import Scale, SeriesRow, shown

MOST_CHANNELS = 8
CHANNEL_HEIGHT = 1.3
"""In inches."""

BAND, LINE = 7.0, 0.8
"""Widths in points: colours are a band behind a thin line, or white would hide it."""


def signal_height(row: SeriesRow) -> float:
    """In inches; no less than the bars beside it need."""
    return max(2.6, CHANNEL_HEIGHT * min(len(row.values), MOST_CHANNELS))


def draw_signal(figure: Figure, place: SubplotSpec, row: SeriesRow, scale: Scale) -> None:
    """Lines one above the other, those of the strongest channels where there are many."""
    strength = numpy.abs(row.attribution).sum(1)
    channels, left_out = shown(row.names, strength, most=MOST_CHANNELS)
    grid = place.subgridspec(len(channels), 1)
    for line, channel in enumerate(channels):
        axis = figure.add_subplot(grid[line, 0])
        _draw_channel(axis, row.values[channel], row.attribution[channel], scale)
        axis.set_ylabel(row.names[channel], fontsize=9)
        axis.tick_params(labelsize=8, labelbottom=line == len(channels) - 1)
        if line == 0:
            axis.set_title(f"{row.caption}{left_out}", fontsize=11)


def _draw_channel(axis: Axes, values: Array, attribution: Array, scale: Scale) -> None:
    moments = numpy.arange(len(values))
    # A moment's colour reaches from half-way before it to half-way after it.
    middle = (values[1:] + values[:-1]) / 2
    along = numpy.concatenate([moments[:1], moments[:-1] + 0.5, moments[-1:]])
    across = numpy.concatenate([values[:1], middle, values[-1:]])
    ends = numpy.stack([along, across], 1)
    at = numpy.stack([moments, values], 1)
    strokes = numpy.stack([ends[:-1], at, ends[1:]], 1)
    strength = numpy.clip(attribution / scale.darkest, -1, 1)
    colours = scale.palette.scale(0.5 + 0.5 * strength)
    axis.add_collection(LineCollection(list(strokes), colors=colours, linewidths=BAND))
    axis.plot(moments, values, color="#444444", linewidth=LINE)
    axis.margins(x=0.01, y=0.15)
    axis.spines[["top", "right"]].set_visible(False)
