"""A vector of features: a bar for each, as long as what it adds to the score."""

from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from dmbp.render.series import Scale, SeriesRow, shown

MOST_FEATURES = 30
BAR_HEIGHT = 0.24
"""In inches."""


def features_height(row: SeriesRow) -> float:
    """In inches; no less than the bars beside it need."""
    return max(2.6, 0.7 + BAR_HEIGHT * min(len(row.values), MOST_FEATURES))


def draw_features(figure: Figure, place: SubplotSpec, row: SeriesRow, scale: Scale) -> None:
    """Bars in the features' order, the strongest where there are many, values beside the names."""
    axis = figure.add_subplot(place)
    features, left_out = shown(row.names, row.attribution, most=MOST_FEATURES)
    lengths = [float(row.attribution[k]) for k in features]
    toward, against = scale.palette.positive, scale.palette.negative
    colours = [toward if length > 0 else against for length in lengths]
    axis.barh(range(len(features)), lengths, color=colours, height=0.65)
    axis.axvline(0, color="#888888", linewidth=0.8)
    names = [f"{row.names[k]} = {row.values[k]:.3g}" for k in features]
    axis.set_yticks(range(len(features)), labels=names)
    axis.invert_yaxis()
    axis.tick_params(labelsize=8)
    axis.set_xlabel("attribution", fontsize=9)
    axis.set_title(f"{row.caption}{left_out}", fontsize=11)
    axis.spines[["top", "right", "left"]].set_visible(False)
