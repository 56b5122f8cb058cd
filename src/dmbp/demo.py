"""What `dmbp demo` does: the sample photos, explained with the model in the box."""

from pathlib import Path

from rich.console import Console

from dmbp.attribution import DMBP
from dmbp.data import sample_photos
from dmbp.explain import check_folder, explain_photo, progress
from dmbp.models import DEFAULT, load_model

NEXT = """
Try next, on a photo of yours:
  dmbp explain PHOTO                                   the same model
  dmbp explain PHOTO --target person                   another question
  dmbp explain PHOTO --model resnet50                  torchvision's, with its own weights
  dmbp explain PHOTO --model resnet50 --weights FILE   your own
"""


def run_demo(out: Path, *, console: Console) -> None:
    """Explain every sample photo, and say where the pictures are."""
    check_folder(out)
    samples = sample_photos()
    classifier = load_model(DEFAULT)
    explainer = DMBP(classifier.module)
    with progress(console, len(samples) * explainer.settings.iterations) as advance:
        for name, (photo, classes) in samples.items():
            explanation = explain_photo(photo, name, classifier, explainer, [*classes], advance)
            picture = explanation.write(out, name)
            console.print(f"{explanation.sentence()} → {picture}")
    console.print(f"\nThe pictures are in {out.resolve()}")
    console.print(NEXT.rstrip())
