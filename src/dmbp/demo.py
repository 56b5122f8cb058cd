"""What `dmbp demo` does: the sample photos, explained with the model in the box."""

from pathlib import Path

from rich.console import Console

from dmbp.attribution import DMBP, method_names
from dmbp.compare import compare
from dmbp.data import sample_photos
from dmbp.explain import REPORT, Outputs, check_folder, explain_all
from dmbp.models import DEFAULT, load_model
from dmbp.photo_question import ask
from dmbp.render import PanelStyle

NEXT = """
Try next, on a photo of yours (after `source .venv/bin/activate`, if you came by `make demo`):
  dmbp explain PHOTO                                   the same model
  dmbp explain FOLDER --report                         many photos on one page
  dmbp explain PHOTO --target person                   another question
  dmbp compare PHOTO                                   every method side by side
  dmbp sanity PHOTO                                    do the maps show what was learned?
  dmbp explain PHOTO --model resnet50                  torchvision's, with its own weights
  dmbp explain PHOTO --model resnet50 --weights FILE   your own
"""


COMPARED = "dmbp,gradcam,guided_gradcam,deeplift,integrated_gradients,smoothgrad,gradient,random"
"""Methods of a second or two."""


def run_demo(out: Path, *, console: Console) -> None:
    """Explain every sample photo, compare methods on one, and say where the pictures are."""
    check_folder(out)
    classifier = load_model(DEFAULT)
    samples = sample_photos()
    explain_all(
        [(name, photo, classes) for name, (photo, classes) in samples.items()],
        classifier,
        DMBP(classifier.module),
        Outputs(out, PanelStyle(), report=True),
        console=console,
    )
    photo, (first, *_) = samples["collage"]
    question = ask(photo, "collage", classifier, [first])
    pictures = compare(question, method_names(COMPARED)).write(out, "collage")
    console.print(f"methods compared on the collage for {first!r} → {pictures[0]}, {pictures[1]}")
    console.print(f"\nThe pictures are in {out.resolve()}; open {REPORT} there in a browser.")
    console.print(NEXT.rstrip())
