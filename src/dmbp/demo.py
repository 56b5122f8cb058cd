"""What `dmbp demo` does: the sample photos, explained with the model in the box."""

from pathlib import Path

from rich.console import Console

from dmbp.attribution import DMBP
from dmbp.data import sample_photos
from dmbp.explain import REPORT, Outputs, check_folder, explain_all
from dmbp.models import DEFAULT, load_model
from dmbp.render import PanelStyle

NEXT = """
Try next, on a photo of yours (after `source .venv/bin/activate`, if you came by `make demo`):
  dmbp explain PHOTO                                   the same model
  dmbp explain FOLDER --report                         many photos on one page
  dmbp explain PHOTO --target person                   another question
  dmbp explain PHOTO --model resnet50                  torchvision's, with its own weights
  dmbp explain PHOTO --model resnet50 --weights FILE   your own
"""


def run_demo(out: Path, *, console: Console) -> None:
    """Explain every sample photo, and say where the pictures are."""
    check_folder(out)
    classifier = load_model(DEFAULT)
    explain_all(
        [(name, photo, classes) for name, (photo, classes) in sample_photos().items()],
        classifier,
        DMBP(classifier.module),
        Outputs(out, PanelStyle(), report=True),
        console=console,
    )
    console.print(f"\nThe pictures are in {out.resolve()}; open {REPORT} there in a browser.")
    console.print(NEXT.rstrip())
