"""The terminal as commands use it: where to print, and how errors are said.

What several commands are told: their options, each with its help, written once.
"""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dmbp.errors import DMBPError, PhotoError, TargetError, one_line

if TYPE_CHECKING:
    from dmbp.workflows.compare import Comparison
    from dmbp.workflows.prediction import ModelChoice, Prediction
    from dmbp.workflows.sanity import SanityCheck

stderr = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
stdout = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


@contextmanager
def report_errors(*, interrupted: str = "interrupted") -> Generator[None]:
    """Turn an error the user can put right into one line and exit code 2; warnings too.

    `interrupted` is said where the user interrupts; the exit code is then a shell's, 130.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.simplefilter("ignore", FutureWarning)  # what libraries say to one another
            warnings.showwarning = _note
            yield
    except DMBPError as error:
        stderr.print(Text("dmbp: ", "red") + Text(one_line(error)))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        stderr.print(Text("dmbp: ", "red") + Text(interrupted))
        raise typer.Exit(130) from None


def _note(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as a line of its own, without the place in the code that it came from."""
    stderr.print(Text("note: ", "yellow") + Text(" ".join(str(message).split())))


class Preset(StrEnum):
    """The presets of DMBP."""

    fast = "fast"
    paper = "paper"


class Objective(StrEnum):
    """The objectives of DMBP."""

    all = "all"
    posneg = "posneg"
    pos = "pos"


class Picture(StrEnum):
    """File formats of pictures."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


class Colours(StrEnum):
    """The colour scales."""

    red_blue = "red-blue"
    purple_orange = "purple-orange"


ModelName = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A name from `dmbp models`, timm:NAME, a .pt2 or .onnx file, or "
        "package.module:factory.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="A .safetensors or .pth file for the model, or torchvision's IMAGENET1K_V1."),
]
Classes = Annotated[Path | None, typer.Option(help="A text file with a class name a line.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1…")]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
SmoothOption = Annotated[
    str | None,
    typer.Option(
        "--smooth",
        metavar="LINE",
        help="How DMBP freezes smooth activations: tangent (the default), secant, or pieces:16, "
        "with their reach pieces:16:8.",
    ),
]
Sites = Annotated[
    list[str] | None,
    typer.Option(
        "--sites",
        metavar="PATTERN",
        help="Activations that DMBP learns masks for, as layer4*; may be repeated. Default: all.",
    ),
]
PictureFormat = Annotated[Picture, typer.Option(help="Format of the picture.")]
ColourScale = Annotated[Colours, typer.Option(help="Colours for and against.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
OnePhoto = Annotated[Path, typer.Argument(help="A photograph.")]
OneTargetOption = Annotated[
    list[str] | None, typer.Option(help="Class to explain, by number or name. Default: the top.")
]
OUT = Path("dmbp-out")


def given(**options: Any) -> dict[str, Any]:
    """The options that were given; of an option that may be repeated, one was."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def predict_photo(
    photo: Path, choice: "ModelChoice", targets: list[str] | None, out: Path, quiet: bool
) -> "Prediction":
    """The photo as the chosen model sees it; everything that may be wrong is met first."""
    from dmbp.data import read_photo
    from dmbp.workflows.explain import check_folder
    from dmbp.workflows.prediction import predict

    if photo.is_dir():
        raise PhotoError(f"{photo} is a folder; this command takes one photo")
    if len(targets or []) > 1:
        raise TargetError("this command is about one class: give --target once")
    picture = read_photo(photo)
    check_folder(out)
    say_default(choice.model, quiet)
    return predict(picture, str(photo), choice.load(), targets or [])


def say_default(model: str | None, quiet: bool) -> None:
    """Say that the model in the box is used, if no other was asked for."""
    from dmbp.models import DEFAULT

    if model is None and not quiet:
        stdout.print(f"no --model given: using {DEFAULT}, the model in the box (20 VOC classes)")


def write_result(
    found: "Comparison | SanityCheck", stem: Path, picture: Picture, colours: Colours, quiet: bool
) -> None:
    """Write what was found beside `stem`, and say where."""
    from dmbp.render import PALETTES, PanelStyle

    style = PanelStyle(palette=PALETTES[colours.value])
    paths = found.write(stem.parent, stem.name, style, suffix=f".{picture.value}")
    if not quiet:
        stdout.print("→ " + ", ".join(str(path) for path in paths))
