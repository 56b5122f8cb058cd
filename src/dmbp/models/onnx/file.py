"""Which input of an ONNX file takes the images, and which output has the scores.

Reads an ONNX file, and says in a sentence what is wrong with one that cannot be used.

A model in an ONNX file, the extra `onnx`.

    dmbp explain photo.jpg --model net.onnx

Its weights are inside, or in a file beside it. A file for a single image, also one that says
otherwise but computes with sizes of one, is run on one image after the other. Images may have their
channels first or last.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dmbp.errors import ModelError
from dmbp.models.classifier import Classifier
from dmbp.models.onnx.graph import OPERATIONS, Graph, OnnxModule, operation_of, read_graph
from dmbp.models.program_file import ChannelsLast, InputForm, classifier_of, read_form

FLOATS = (1, 10, 11, 16)
"""ONNX's numbers for float32, float16, float64 and bfloat16."""

SCORES = "logits"
"""What the output of scores is called where there are several."""


def input_of(model: Any, source: str) -> tuple[str, list[int | None]]:
    """The name and shape of the one input, which is of floats."""
    weights = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in weights]
    if len(inputs) != 1:
        names = ", ".join(one.name for one in inputs)
        raise ModelError(
            f"{source} takes {len(inputs)} inputs ({names}); dmbp explains files of one"
        )
    (images,) = inputs
    kind = images.type.tensor_type
    if kind.elem_type not in FLOATS:
        raise ModelError(
            f"{source} takes {_type_name(kind.elem_type)} at {images.name!r}, not floating point: "
            "export the network without its own preparation of images"
        )
    return images.name, [d.dim_value or None for d in kind.shape.dim]


def output_of(model: Any, source: str) -> str:
    """The output of scores: the only one, `logits`, or the only one of two dimensions."""
    outputs = list(model.graph.output)
    for found in (
        outputs,
        [one for one in outputs if one.name == SCORES],
        [one for one in outputs if len(one.type.tensor_type.shape.dim) == 2],
    ):
        if len(found) == 1:
            return str(found[0].name)
    names = ", ".join(one.name for one in outputs)
    raise ModelError(
        f"{source} gives {len(outputs)} outputs ({names}): export the network with its scores "
        f"alone, or call them {SCORES!r}"
    )


def _type_name(kind: int) -> str:
    from onnx import TensorProto

    return TensorProto.DataType.Name(kind).lower() if kind else "no tensor"


QUANTISED = ("Quantize", "Dequantize", "QLinear", "DynamicQuantize", "ConvInteger", "MatMulInteger")
"""How the names of operations on quantised weights begin."""


def read_model(path: Path) -> Any:
    """The model in an ONNX file, with all its weights and of operations that are known."""
    try:
        import onnx
    except ImportError as error:
        raise ModelError(f"{path} needs the extra onnx: pip install dmbp[onnx]") from error
    try:
        model: Any = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's own
        raise ModelError(f"{path} is damaged, or no ONNX model") from error
    if not model.graph.node or not model.opset_import:
        raise ModelError(f"{path} is damaged, or no ONNX model")
    model = _with_functions(model)
    _check_operations(model, path)
    _load_weights(model, path)
    return model


def _with_functions(model: Any) -> Any:
    """The model with functions of its own written out."""
    if not model.functions:
        return model
    from onnx import inliner

    return inliner.inline_local_functions(model)


def _check_operations(model: Any, path: Path) -> None:
    found = {operation_of(node): node for node in model.graph.node}
    unknown = [name for name in found if name not in OPERATIONS and name != "Constant"]
    if any(name.rpartition(".")[2].startswith(QUANTISED) for name in unknown):
        raise ModelError(f"{path} is quantised: give the file it was made of, in floating point")
    if unknown:
        where = ", ".join(f"{name} at {found[name].name!r}" for name in unknown[:3])
        raise ModelError(
            f"{path} has operations that dmbp does not know: {where}; those it knows are in "
            "dmbp.models.onnx.graph"
        )


def _load_weights(model: Any, path: Path) -> None:
    """Weights that are kept in files beside the model."""
    from onnx import external_data_helper

    external = [one for one in model.graph.initializer if one.external_data]
    missing = [name for name in _files(external) if not (path.parent / name).is_file()]
    if missing:
        raise ModelError(f"{path} has weights in {missing[0]}, which is not beside it")
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # a file that is too short, or points elsewhere
        raise ModelError(f"the weights beside {path} are damaged") from error


def _files(tensors: Sequence[Any]) -> list[str]:
    entries = [entry for tensor in tensors for entry in tensor.external_data]
    return sorted({entry.value for entry in entries if entry.key == "location"})


def onnx_file_classifier(path: Path) -> Classifier:
    """The classifier in an ONNX file, in single precision as photos are."""
    classifier = read_classifier(path)
    classifier.module.float()
    return classifier


def read_classifier(path: Path) -> Classifier:
    """The same in the file's own precision; half precision is made single."""
    model = read_model(path)
    images, shape = input_of(model, str(path))
    graph = _graph(model, images, output_of(model, str(path)), path)
    module: nn.Module = OnnxModule(graph)
    if _has_channels_last(shape):
        module, shape = ChannelsLast(module), [shape[0], shape[3], *shape[1:3]]
    form = read_form([shape], str(path))
    if form.batch is None and not _takes_several(module, form):
        form = replace(form, batch=1)
    return classifier_of(module, form, str(path))


def _graph(model: Any, images: str, scores: str, path: Path) -> Graph:
    try:
        return read_graph(model, images, scores)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise ModelError(f"constants of {path} cannot be computed: {said}") from error


def _has_channels_last(shape: Sequence[int | None]) -> bool:
    return len(shape) == 4 and shape[3] == 3 and shape[1] != 3


def _takes_several(module: nn.Module, form: InputForm) -> bool:
    """Whether two images give two rows of scores, found out by shapes alone."""
    side = form.preprocessing().crop
    dtype = next((weight.dtype for weight in module.parameters()), None)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            return len(module(torch.empty(2, 3, side, side, dtype=dtype))) == 2
    except Exception:  # whatever torch says of sizes that do not fit
        return False
