"""`dmbp boxes`: list the boxes that a detector finds in a photo."""

from typing import TYPE_CHECKING

from dmbp.cli.options import (
    DEFAULT_OUT,
    ColoursOption,
    OutOption,
    PaletteName,
    PhotoArgument,
    PictureFormat,
    PictureOption,
    QuietOption,
    open_photo,
    report_errors,
    stdout,
    takes_model,
    write_result,
)

if TYPE_CHECKING:
    from dmbp.workflows.prediction import ModelSpec


@takes_model
def boxes(
    photo: PhotoArgument,
    spec: "ModelSpec",
    out: OutOption = DEFAULT_OUT,
    picture: PictureOption = PictureFormat.png,
    colours: ColoursOption = PaletteName.red_blue,
    quiet: QuietOption = False,
) -> None:
    """List the boxes that a detector finds in a photo, the strongest first.

    Explain one by its number with `dmbp explain PHOTO --target box:0`. Overlapping boxes of a class
    are left out but for the strongest. Writes a picture of the boxes and a JSON file.
    """
    from dmbp.workflows.boxes import list_boxes
    from dmbp.workflows.explain import result_stem

    with report_errors():
        image = open_photo(photo, out=out)
        listed = list_boxes(image, str(photo), spec.load())
        if not quiet:
            listed.show(stdout)
        write_result(listed, out / result_stem(photo), picture, colours, quiet)
