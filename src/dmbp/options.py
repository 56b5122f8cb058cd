"""What several commands are told: their options, each with its help, written once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


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
Smooth = Annotated[
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
OneTarget = Annotated[
    list[str] | None, typer.Option(help="Class to explain, by number or name. Default: the top.")
]
OUT = Path("dmbp-out")


def given(**options: Any) -> dict[str, Any]:
    """The options that were given; of an option that may be repeated, one was."""
    return {name: value for name, value in options.items() if value not in (None, [])}
