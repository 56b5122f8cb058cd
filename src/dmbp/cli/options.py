"""What the commands share: the terminal, options with their help, and common steps.

Commands print to `stdout`, and run inside `report_errors`, which turns an error that the user can
correct into one sentence on `stderr`. `CommandGroup` runs every command inside `report_bugs`, which
does the same with any other exception. An option that several commands take is defined here once.
"""

import errno
import inspect
import os
import traceback
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import wraps
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from dmbp.errors import DMBPError, PhotoError, TargetError, first_line, one_line
from dmbp.files import is_folder, printable, reason, shown

if TYPE_CHECKING:
    from PIL import Image

    from dmbp.workflows.boxes import BoxList
    from dmbp.workflows.compare import Comparison
    from dmbp.workflows.prediction import ModelSpec
    from dmbp.workflows.sanity import SanityCheck

stderr = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
stdout = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)


_USAGE_ERROR: Any = typer.BadParameter.__base__
"""Typer's exception for a command line that it cannot parse, which it reports itself."""

_debugging = False


def set_debugging(on: bool) -> None:
    """Say whether errors also print their traceback."""
    global _debugging
    _debugging = on


@contextmanager
def report_errors(*, interrupted: str = "interrupted") -> Generator[None]:
    """Print errors and warnings as single lines, and exit with code 2 after an error.

    An interrupt prints `interrupted` and exits with the code that shells use, 130.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.simplefilter("ignore", FutureWarning)  # for developers of libraries
            warnings.showwarning = _print_warning
            yield
    except DMBPError as error:
        raise _exit_with(one_line(error), 2) from None
    except KeyboardInterrupt:
        raise _exit_with(interrupted, 130) from None


class CommandGroup(TyperGroup):
    """A group of commands that never end with a traceback, unless `--debug` asks for it."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the user named."""
        with report_errors(), report_bugs():
            return super().invoke(ctx)


@contextmanager
def report_bugs() -> Generator[None]:
    """Print one sentence about an exception that is not dmbp's own, and exit.

    Lack of memory or a file that cannot be used (exit code 2) is nobody's bug; anything else is
    dmbp's (exit code 1).
    """
    try:
        yield
    except (DMBPError, typer.Exit, typer.Abort, _USAGE_ERROR):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # the program that reads the output has ended
        if _is_out_of_memory(error):
            raise _exit_with(OUT_OF_MEMORY, 2) from None
        if isinstance(error, OSError) and error.filename is not None:
            path = os.fsdecode(error.filename)
            raise _exit_with(f"{shown(path)} cannot be used: {reason(error)}", 2) from None
        what = f"{type(error).__name__}: {printable(first_line(error))}"
        raise _exit_with(
            f"this is a bug in dmbp, please report it{_issue_tracker()} with the output of "
            f"`dmbp --debug …`: {what}",
            1,
        ) from None


OUT_OF_MEMORY = (
    "there is not enough memory: use a smaller photo, model or batch, or a machine with more memory"
)


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out: PyTorch raises a plain `RuntimeError` for that on a CPU."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and any(
            words in str(error) for words in ("not enough memory", "out of memory", "alloc_cpu")
        )
    )


def _issue_tracker() -> str:
    """Return the address of the project's issues as part of a sentence, if the package has one."""
    with suppress(PackageNotFoundError):
        for url in metadata("dmbp").get_all("Project-URL") or []:
            name, _, address = url.partition(", ")
            if name == "Issues":
                return f" at {address}"
    return ""


LONGEST_SENTENCE = 2000
"""The most characters of an error."""


def _exit_with(sentence: str, code: int) -> typer.Exit:
    """Print a sentence, after the traceback if the user asked for it, and return an exit."""
    if _debugging:
        traceback.print_exc()
    sentence = printable(sentence)
    if len(sentence) > LONGEST_SENTENCE:  # it quotes what the user gave, which may be anything
        half = LONGEST_SENTENCE // 2
        sentence = f"{sentence[:half]}…{sentence[-half:]}"
    stderr.print(Text("dmbp: ", "red") + Text(sentence))
    return typer.Exit(code)


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one line, without its location in the code."""
    stderr.print(Text("note: ", "yellow") + Text(printable(" ".join(str(message).split()))))


class Preset(StrEnum):
    """Presets of DMBP's settings."""

    tested = "tested"
    fast = "fast"
    paper = "paper"


class Objective(StrEnum):
    """Objectives that DMBP's masks are learned with."""

    all = "all"
    posneg = "posneg"
    pos = "pos"


class RemovalName(StrEnum):
    """What windows may be replaced by when they are tested."""

    blur = "blur"
    mean = "mean"
    zero = "zero"
    noise = "noise"


class PictureFormat(StrEnum):
    """File formats of pictures."""

    png = "png"
    svg = "svg"
    pdf = "pdf"


class PaletteName(StrEnum):
    """Names of the palettes in `dmbp.render.PALETTES`."""

    red_blue = "red-blue"
    purple_orange = "purple-orange"


class FitName(StrEnum):
    """Which part of a photo a model sees, as in `dmbp.models.Preprocessing`."""

    crop = "crop"
    squeeze = "squeeze"
    squeeze_crop = "squeeze-crop"
    whole = "whole"
    letterbox = "letterbox"
    letterbox_corner = "letterbox-corner"


class ChannelOrderName(StrEnum):
    """Orders of an image's channels."""

    rgb = "rgb"
    bgr = "bgr"


class LayoutName(StrEnum):
    """Layouts of a batch of images."""

    nchw = "nchw"
    nhwc = "nhwc"


MODEL_HELP = (
    "a name from `dmbp models`, timm:NAME, hf:NAME or a folder for a model of Hugging Face, a .pt2 "
    "or .onnx file, or package.module:factory for your own."
)
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help=f"The model: {MODEL_HELP} Default: the built-in model, voc160."),
]
SizeOption = Annotated[
    str | None,
    typer.Option(
        "--size",
        metavar="PIXELS",
        help="Size of the model's input in pixels: 224, or 48x192 for height and width; or the "
        "sizes that an ONNX file leaves open. Default, here and for the next six: what the model "
        "or a file beside it says, else ImageNet's.",
    ),
]
FitOption = Annotated[
    FitName | None,
    typer.Option(
        "--fit",
        help="Which part of a photo the model sees: its centre, all of it squeezed, the centre of "
        "the squeezed photo, all of it in its own shape, or that with grey padding (letterbox).",
    ),
]
PaddingOption = Annotated[
    int | None,
    typer.Option("--padding", metavar="GREY", help="The grey of a letterbox, from 0 to 255."),
]
MeanOption = Annotated[
    str | None,
    typer.Option(
        "--mean",
        metavar="NUMBERS",
        help="What is subtracted from each channel, such as 0.5,0.5,0.5, in the order of "
        "--channels and the range of --scale.",
    ),
]
StdOption = Annotated[
    str | None,
    typer.Option(
        "--std", metavar="NUMBERS", help="What each channel is then divided by, likewise."
    ),
]
ScaleOption = Annotated[
    float | None,
    typer.Option(
        "--scale",
        help="The value of white before --mean is subtracted: 1, or 255 for pixels from 0 to 255. "
        "If given, --mean is 0 and --std is 1 unless they are given, too.",
    ),
]
ChannelsOption = Annotated[
    ChannelOrderName | None,
    typer.Option("--channels", help="The order of the input's channels."),
]
LayoutOption = Annotated[
    LayoutName | None,
    typer.Option(
        "--layout",
        help="nhwc if the model takes images with their channels last, as TensorFlow's do.",
    ),
]
WeightsOption = Annotated[
    Path | None,
    typer.Option(
        readable=False,  # dmbp has its own words for a file that cannot be read
        help="The model's weights: a .safetensors or .pth file, or the name of weights that "
        "torchvision publishes, such as IMAGENET1K_V1.",
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-model-file",
        help="Open a TorchScript file, or a .pt2 file that dmbp cannot read as plain data. Such a "
        "file may run any code, so use this only for files of people you trust.",
    ),
]
NoCacheOption = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Capture the model again, and keep nothing for later runs; see DMBP_CACHE in the "
        "documentation of the commands.",
    ),
]
HoldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hold",
        metavar="NAME=VALUE",
        help="Value of another input of an ONNX file: a number, numbers such as 48,192, or an .npy "
        "file; may be repeated. Default: zero, if it is of floating point.",
    ),
]
InputNameOption = Annotated[
    str | None,
    typer.Option("--input-name", help="Input of an ONNX file to explain, if it has several."),
]
OutputNameOption = Annotated[
    str | None,
    typer.Option("--output-name", help="Output of an ONNX file to explain, if it has several."),
]
PromptOption = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt",
        metavar="TEXT",
        help="A text to compare photos with, such as 'a photo of a cat', for models such as CLIP "
        "and SigLIP; may be repeated. Each prompt is a class.",
    ),
]
ClassesOption = Annotated[
    Path | None,
    typer.Option(readable=False, help="A text file with the names of the classes, one per line."),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        help="Where to compute: cpu, cuda, cuda:1, mps, or auto for the best that there is."
    ),
]
OutOption = Annotated[Path, typer.Option(help="Folder for the results.")]
SmoothOption = Annotated[
    str | None,
    typer.Option(
        "--smooth",
        metavar="LINE",
        help="How DMBP makes the model's smooth activations linear (it does not smooth the map): "
        "tangent (the default), secant, pieces:16 for 16 linear pieces, or pieces:16:8 for pieces "
        "that reach from -8 to 8.",
    ),
]
SitesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--sites",
        metavar="PATTERN",
        help="Which activations DMBP learns masks for, such as layer4*; may be repeated. "
        "Default: all.",
    ),
]
PictureOption = Annotated[PictureFormat, typer.Option(help="File format of the pictures.")]
ColoursOption = Annotated[
    PaletteName, typer.Option(help="Colours of evidence for the class and against it.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
PhotoArgument = Annotated[Path, typer.Argument(readable=False, help="A photo.")]
TargetOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="WHAT",
        help="The one thing to explain: a class, by number or name, or any target that `dmbp "
        "explain` takes, such as box:0. Default: the predicted class.",
    ),
]
"""A list, so that a second `--target` is an error and does not silently replace the first."""
RatherThanOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rather-than",
        metavar="CLASS",
        help="Explain what speaks for the target rather than for this class, by number or name; "
        "may be repeated. rivals stands for the three strongest other classes.",
    ),
]
METHODS_HELP = "Names from `dmbp methods`, separated by commas, or all."
DEFAULT_OUT = Path("dmbp-out")


def takes_model(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `model_spec` in place of its parameter `spec`.

    An option that the command declares itself is left out.
    """
    own = inspect.signature(command).parameters
    declared = inspect.signature(model_spec).parameters
    options = {name: option for name, option in declared.items() if name not in own}
    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        parameters.extend(options.values() if name == "spec" else [parameter])

    @wraps(command)
    def run(**values: Any) -> None:
        spec = model_spec(**{name: values.pop(name) for name in options})
        command(**values, spec=spec)

    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def model_spec(
    model: ModelOption = None,
    weights: WeightsOption = None,
    classes: ClassesOption = None,
    trust_model_file: TrustOption = False,
    size: SizeOption = None,
    fit: FitOption = None,
    mean: MeanOption = None,
    std: StdOption = None,
    scale: ScaleOption = None,
    channels: ChannelsOption = None,
    layout: LayoutOption = None,
    padding: PaddingOption = None,
    hold: HoldOption = None,
    input_name: InputNameOption = None,
    output_name: OutputNameOption = None,
    prompt: PromptOption = None,
    device: DeviceOption = "cpu",
    no_cache: NoCacheOption = False,
) -> "ModelSpec":
    """Return the model that the options describe.

    `--no-cache` switches the cache of captured graphs off for the whole process.

    Raises:
        InputError: If an option is not of its form.
    """
    from dmbp.models.exported_program import Ends
    from dmbp.models.input_settings import InputSettings
    from dmbp.validation import ErrorContext, parse
    from dmbp.workflows.prediction import ModelSpec

    if no_cache:
        from dmbp.linear.capture import cache

        cache.switch_off()
    values = given_options(
        size=size,
        fit=None if fit is None else fit.value,
        mean=_parse_numbers(mean),
        std=_parse_numbers(std),
        scale=scale,
        channels=None if channels is None else channels.value,
        layout=None if layout is None else layout.value,
        padding=padding,
    )
    context = ErrorContext("the options", key_name=lambda key: f"--{key}")
    return ModelSpec(
        model,
        weights,
        classes,
        device,
        trust_model_file=trust_model_file,
        inputs=parse(InputSettings, values, lambda _: context),
        ends=Ends(input_name, output_name, dict(_parse_held(text) for text in hold or [])),
        prompts=tuple(prompt or ()),
    )


def _parse_held(text: str) -> tuple[str, Any]:
    from dmbp.errors import InputError

    name, _, value = text.rpartition("=")
    if not name or not value:
        raise InputError(f"--hold takes NAME=VALUE, such as --hold sr=16000, not {text!r}")
    if value.endswith(".npy"):
        return name, _read_array(Path(value))
    try:
        numbers = [float(number) for number in value.split(",")]
    except ValueError as error:
        raise InputError(
            f"--hold {name} takes a number, numbers such as 48,192, or an .npy file, not {value!r}"
        ) from error
    given = [int(number) if number.is_integer() else number for number in numbers]
    return name, given if "," in value else given[0]


def _read_array(path: Path) -> Any:
    import numpy

    from dmbp.errors import InputError
    from dmbp.files import check_file, shown

    check_file(path, what="file of numbers", error=InputError, most_bytes=2**28)
    try:
        with path.open("rb") as file:
            found: Any = numpy.load(file, allow_pickle=False)
    except Exception as error:  # numpy raises almost anything for a damaged file
        raise InputError(f"{shown(path)} is not an array that numpy saved") from error
    if not isinstance(found, numpy.ndarray):
        raise InputError(f"{shown(path)} has several arrays: save one with numpy.save")
    if found.dtype.kind not in "fiub":
        raise InputError(f"{shown(path)} has {found.dtype}, not numbers")
    return found


def _parse_numbers(text: str | None) -> Any:
    """Return numbers that are separated by commas, or the text if it has anything else."""
    if text is None:
        return None
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        return text


def given_options(**options: Any) -> dict[str, Any]:
    """Return the options that are neither None nor an empty list: those that the user gave."""
    return {name: value for name, value in options.items() if value not in (None, [])}


def open_photo(photo: Path, targets: list[str] | None = None, *, out: Path) -> "Image.Image":
    """Read the one photo of a command, and check its one target and the folder for its results."""
    from dmbp.data import is_array_file, read_photo
    from dmbp.workflows.explain import check_folder

    if len(targets or []) > 1:
        raise TargetError("this command is about one target: give --target once")
    if is_folder(photo):
        raise PhotoError(f"{shown(photo)} is a folder; this command takes one photo")
    if is_array_file(photo):
        raise PhotoError(
            f"{shown(photo)} is no photo, and this command takes one: `dmbp explain` takes other "
            "inputs, as do the methods and metrics in Python"
        )
    image = read_photo(photo)
    check_folder(out)
    return image


def announced(spec: "ModelSpec", quiet: bool) -> "ModelSpec":
    """Return the model of a command, after printing which it is if the user did not say."""
    print_default_model(spec.model, quiet)
    return spec


def print_default_model(model: str | None, quiet: bool) -> None:
    """Print which model is used if the user did not give one."""
    from dmbp.models import DEFAULT

    if model is None and not quiet:
        stdout.print(f"no --model given: using {DEFAULT}, the built-in model (20 VOC classes)")


def write_result(
    result: "Comparison | SanityCheck | BoxList",
    path: Path,
    picture: PictureFormat,
    colours: PaletteName,
    quiet: bool,
) -> None:
    """Write a result to files whose names start with `path`, and print their paths."""
    from dmbp.render import PALETTES, PanelStyle

    style = PanelStyle(palette=PALETTES[colours.value])
    paths = result.write(path.parent, path.name, style, suffix=f".{picture.value}")
    if not quiet:
        stdout.print("→ " + ", ".join(shown(path) for path in paths))
