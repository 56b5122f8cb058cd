"""A small line chart as SVG text, for pages that must not load anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 300, 170
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 34


@dataclass(frozen=True)
class Line:
    """One curve: evenly spaced values, left to right."""

    name: str
    colour: str
    values: Sequence[float]


def line_chart(
    lines: Sequence[Line], *, across: str, last: str, limits: tuple[float, float] | None = None
) -> str:
    """An SVG element; `across` names the horizontal axis and `last` labels its right end."""
    low, high = limits or _limits(lines)
    parts = [_axis(low, high, across, last), *(_polyline(line, low, high) for line in lines)]
    names = ", ".join(line.name for line in lines)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(names)}">'
        + "".join(parts)
        + "</svg>"
    )


def _limits(lines: Sequence[Line]) -> tuple[float, float]:
    values = [value for line in lines for value in line.values] or [0.0]
    low, high = min(0.0, *values), max(0.0, *values)
    return (low, high) if high > low else (low, low + 1.0)


def _y(value: float, low: float, high: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)


def _axis(low: float, high: float, across: str, last: str) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    lines = [f'<line x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{bottom}" class="axis"/>']
    ticks = {low, high, 0.0} if low < 0 < high else {low, high}
    for value in sorted(ticks):
        y = _y(value, low, high)
        lines.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" class="grid"/>')
        label = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        lines.append(f'<text x="{LEFT - 5}" y="{y + 4:.1f}" class="end">{label}</text>')
    lines.append(f'<text x="{LEFT}" y="{bottom + 14}">0</text>')
    lines.append(f'<text x="{right}" y="{bottom + 14}" class="end">{escape(last)}</text>')
    middle = (LEFT + right) / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 4}" class="middle">{escape(across)}</text>')
    return "".join(lines)


def _polyline(line: Line, low: float, high: float) -> str:
    steps = max(len(line.values) - 1, 1)
    points = " ".join(
        f"{LEFT + (WIDTH - LEFT - RIGHT) * k / steps:.1f},{_y(value, low, high):.1f}"
        for k, value in enumerate(line.values)
    )
    return f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="2"/>'
