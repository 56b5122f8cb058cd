"""`dmbp demo`: explain the sample photos with the built-in model."""

from pathlib import Path

from dmbp.cli.options import OutOption, report_errors, stdout

NEXT = """
Try it on your own photos (after `make demo`, run `source .venv/bin/activate` first):
  dmbp explain PHOTO                                   with the same model
  dmbp explain FOLDER --report                         many photos on one page
  dmbp explain PHOTO --target person                   another class
  dmbp explain PHOTO --rather-than rivals              what separates it from other classes
  dmbp compare PHOTO                                   every method side by side
  dmbp sanity PHOTO                                    do the maps show what was learned?
  dmbp explain PHOTO --model resnet50                  torchvision's model and weights
  dmbp explain PHOTO --model resnet50 --weights FILE   your own weights
"""


COMPARED = "dmbp,gradcam,guided_gradcam,deeplift,integrated_gradients,smoothgrad,gradient,random"
"""The methods that the demo compares: DMBP, and others that take a second or two at most."""


def demo(out: OutOption = Path("dmbp-demo")) -> None:
    """Explain sample photos with the built-in model.

    Writes a picture for each, a report about all of them, and a comparison of methods on one.
    """
    with report_errors():
        _explain_samples(out)


def _explain_samples(out: Path) -> None:
    """Explain the sample photos, compare methods on one, and print where the pictures are."""
    from dmbp.attribution import DMBP, parse_method_names
    from dmbp.data import sample_photos
    from dmbp.models import DEFAULT, load_model
    from dmbp.render import REPORT_NAME, PanelStyle
    from dmbp.workflows.compare import compare
    from dmbp.workflows.explain import OutputOptions, check_folder, explain_all
    from dmbp.workflows.prediction import predict
    from dmbp.workflows.sources import Photo

    check_folder(out)
    classifier = load_model(DEFAULT)
    samples = sample_photos()
    explain_all(
        [Photo(name, name, image, classes) for name, (image, classes) in samples.items()],
        classifier,
        DMBP(classifier.module),
        OutputOptions(out, PanelStyle(), report=True),
        total=len(samples),
        console=stdout,
    )
    image, (first, *_) = samples["collage"]
    prediction = predict(image, "collage", classifier, [first])
    pictures = compare(prediction, parse_method_names(COMPARED)).write(out, "collage")
    stdout.print(f"methods compared on the collage for {first!r} → {pictures[0]}, {pictures[1]}")
    stdout.print(f"\nThe pictures are in {out.resolve()}; open {REPORT_NAME} there in a browser.")
    stdout.print(NEXT.rstrip())
