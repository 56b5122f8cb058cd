"""`Shown`: results that show themselves in a notebook, in a window and in a file.

    class Explanation(Shown):
        def figure(self, style=None):
            return draw_panel(self.rows(), style)

    explanation.show()                   # below the cell of a notebook, or in a window
    explanation.plot("cat.png")          # or .svg, .pdf, an open file, or axes of matplotlib

matplotlib is imported when something is drawn, not before.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeAlias, Union

from PIL import Image

from dmbp.errors import InputError, OutputError
from dmbp.files import write_all_or_none

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Where: TypeAlias = Union[str, Path, BinaryIO, "Axes", None]
"""Where a picture is drawn: a file's path, an open binary file, or axes of matplotlib."""

FORMATS = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
DOTS_PER_INCH = 110

COMPRESSION = 3
"""How hard zlib tries to make a PNG small, from 0 to 9. Above 3 a panel becomes hardly smaller, and
takes longer to write than its text to draw."""


class Shown(ABC):
    """A result that shows itself; subclasses say how it is drawn."""

    @abstractmethod
    def figure(self) -> Figure:
        """Return the picture as a matplotlib figure."""

    def draw_on(self, axes: Axes, **options: Any) -> None:  # noqa: ARG002
        """Draw the map alone into axes of matplotlib.

        Raises:
            InputError: If the result has several pictures, which need a figure of their own.
        """
        raise InputError(f"a {type(self).__name__} has several pictures: draw it with figure()")

    def plot(self, path: Where = None, **options: Any) -> Figure:
        """Draw the picture, and return it as a matplotlib figure.

        Args:
            path: A path that ends in .png, .svg or .pdf; an open binary file, which gets a PNG; or
                axes of matplotlib, which get the map alone. None writes nothing.
            **options: Those of `figure`, such as `style=dmbp.render.PanelStyle(smoothing=0)`.

        Returns:
            The figure, or that of the axes.

        Raises:
            InputError: If `path` is something else.
            OutputError: If the file cannot be written.
        """
        if path is not None and hasattr(path, "transAxes"):
            axes: Any = path
            self.draw_on(axes, **options)
            return axes.get_figure(root=True)
        figure = self.figure(**options)
        write_figure(figure, path)
        return figure

    def show(self) -> Self:
        """Show the picture below the cell of a notebook, or else in a window.

        Returns:
            The result itself.

        Raises:
            OutputError: If there is no screen.
        """
        if _is_notebook():
            from IPython.display import display

            display(self)
        else:
            if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}:
                raise OutputError(
                    "there is no screen to show the picture on: use plot('picture.png')"
                )
            with Image.open(BytesIO(self._repr_png_())) as picture:
                picture.show()
        return self

    def _repr_png_(self) -> bytes:
        return encode_figure(self.figure(), ".png")


def encode_figure(figure: Figure, suffix: str) -> bytes:
    """Return a figure as the content of a file with the ending `suffix`."""
    if suffix not in FORMATS:
        raise OutputError(f"pictures are written as {', '.join(FORMATS)}, not {suffix!r}")
    draw_names_literally(figure)
    buffer = BytesIO()
    options: dict[str, Any] = {"dpi": DOTS_PER_INCH, "facecolor": "white"}
    if suffix != ".png":
        figure.savefig(buffer, format=FORMATS[suffix], **options)
        return buffer.getvalue()
    with _laid_out_once(figure):
        compression = {"compress_level": COMPRESSION}
        figure.savefig(buffer, format="png", pil_kwargs=compression, **options)
    return buffer.getvalue()


@contextmanager
def _laid_out_once(figure: Figure) -> Generator[None]:
    """Lay a figure out for its pixels, and keep that inside; `savefig` draws it twice otherwise."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    dpi, engine, canvas = figure.dpi, figure.get_layout_engine(), figure.canvas
    if engine is None:
        yield
        return
    try:
        FigureCanvasAgg(figure)
        figure.dpi = DOTS_PER_INCH
        engine.execute(figure)
        figure.set_layout_engine("none")
        yield
    finally:
        figure.dpi = dpi
        figure.set_canvas(canvas)
        figure.set_layout_engine(engine)


def draw_names_literally(figure: Figure) -> None:
    """Keep a figure's texts from being read as formulas: a class may be called `$x$`."""
    from matplotlib.text import Text

    axes: list[Any] = [axis for part in figure.axes for axis in (part.xaxis, part.yaxis)]
    powers = {  # matplotlib writes the powers of ten along a logarithmic axis as formulas
        label
        for axis in axes
        if axis.get_scale() == "log"
        for label in axis.get_ticklabels(which="both")
    }
    texts: list[Any] = figure.findobj(Text)
    for text in texts:
        if text not in powers:
            text.set_parse_math(False)


def write_figure(figure: Figure, where: Any) -> None:
    """Write a figure into a file, by path or open; None writes nothing.

    Raises:
        InputError: If `where` is something else.
        OutputError: If the file cannot be written.
    """
    if where is None:
        return
    if isinstance(where, str | Path):
        path = Path(where)
        write_all_or_none({path: encode_figure(figure, path.suffix)})
        return
    write: Any = getattr(where, "write", None)
    if write is None:
        raise InputError(
            "a picture is drawn to a path, an open binary file or axes of matplotlib, not to a "
            f"{type(where).__name__}"
        )
    content = encode_figure(figure, ".png")
    try:
        write(content)
    except TypeError as error:
        raise InputError("the file is open for text: open it with mode 'wb'") from error
    except (OSError, ValueError) as error:  # it is closed, or open for reading
        raise OutputError(f"the open file cannot be written: {error}") from error


def _is_notebook() -> bool:
    """Return whether the code runs in a notebook, which displays results itself."""
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        return False
    shell: Any = get_ipython()
    return shell is not None and shell.__class__.__name__ == "ZMQInteractiveShell"
