"""Loads an ONNX file as a classifier (the `onnx` extra).

    dmbp explain photo.jpg --model net.onnx

The weights are in the file or in files beside it. Images may have their channels first or last. A
file exported for one image is run on one image after the other; so is a file that claims to take
any number of images but computes with a batch size of one.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dmbp.errors import ModelError, first_line
from dmbp.files import check_file
from dmbp.models.classifier import MAX_SIDE, Classifier
from dmbp.models.exported_program import (
    ChannelsLast,
    InputShape,
    StatedInput,
    channels_first,
    check_input_shape,
    classifier_from_module,
)
from dmbp.models.onnx.graph import (
    OnnxGraph,
    OnnxModule,
    SizeLimit,
    TooLarge,
    operator_name,
    read_graph,
)
from dmbp.models.onnx.operators import OPERATORS
from dmbp.models.onnx.operators.call import FLOAT_TYPES
from dmbp.process import silence_output

SCORES = "logits"
"""The name of the output to explain if there are several."""

QUANTISED = ("Quantize", "Dequantize", "QLinear", "DynamicQuantize", "ConvInteger", "MatMulInteger")
"""Prefixes of the names of quantised operators."""

MAX_BYTES = 2**31
"""The largest ONNX file; the format itself allows no more, larger weights are in other files."""


def onnx_file_classifier(path: Path, stated: StatedInput | None = None) -> Classifier:
    """Return the classifier in an ONNX file, in single precision."""
    classifier = read_classifier(path, stated)
    classifier.module.float()
    return classifier


def read_classifier(path: Path, stated: StatedInput | None = None) -> Classifier:
    """Return the classifier in the file's precision, with half precision converted to single.

    Raises:
        ModelError: If the file is damaged or cannot be explained.
    """
    try:
        return _read_classifier(path, stated or StatedInput())
    except ModelError:
        raise
    except Exception as error:  # a damaged file may hold anything, such as names that are not text
        raise ModelError(f"{path} is damaged: {first_line(error)}") from error


def _read_classifier(path: Path, stated: StatedInput) -> Classifier:
    model = read_model(path)
    images, shape = find_input(model, str(path))
    graph = _read_graph(model, images, find_output(model, str(path)), path)
    module: nn.Module = OnnxModule(graph)
    if stated.layout == "nhwc" or (stated.layout is None and _has_channels_last(shape)):
        module, shape = ChannelsLast(module), channels_first(shape)
    expected = check_input_shape([shape], str(path))
    sized = expected.with_stated_size(stated, str(path))
    _check_sizes(module, sized, path)
    if expected.batch is None and not _takes_batches(module, sized):
        expected = replace(expected, batch=1)
    return classifier_from_module(module, expected, str(path), stated)


def _read_graph(model: Any, images: str, scores: str, path: Path) -> OnnxGraph:
    try:
        return read_graph(model, images, scores)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    except StopIteration as error:
        raise ModelError(f"{path} does not state a version of ONNX's operators") from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"constants of {path} cannot be computed: {reason}") from error


def _has_channels_last(shape: Sequence[int | None]) -> bool:
    return len(shape) == 4 and shape[3] == 3 and shape[1] != 3


def _check_sizes(module: nn.Module, expected: InputShape, path: Path) -> None:
    """Raise a `ModelError` if a tensor would be too large, by propagating shapes only."""
    try:
        with silence_output(), torch.no_grad(), _shapes_only(), SizeLimit():
            module(_fake_images(module, expected, count=expected.batch or 1))
    except TooLarge as error:
        raise ModelError(f"{path}: {error}") from error
    except Exception:  # whatever torch raises is said when the model is run
        return


def _shapes_only() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def _fake_images(module: nn.Module, expected: InputShape, *, count: int) -> Tensor:
    preprocessing = expected.preprocessing()
    dtype = next((weight.dtype for weight in module.parameters()), None)
    return torch.empty(count, len(preprocessing.mean), *preprocessing.size, dtype=dtype)


def _takes_batches(module: nn.Module, expected: InputShape) -> bool:
    """Return whether two images give two rows of scores, by propagating shapes only."""
    try:
        with silence_output(), torch.no_grad(), _shapes_only():
            return len(module(_fake_images(module, expected, count=2))) == 2
    except Exception:  # whatever torch raises about sizes that do not fit
        return False


def read_model(path: Path) -> Any:
    """Read the model in an ONNX file with all its weights.

    Raises:
        ModelError: If the file is damaged or quantised, if weights are missing, or if it has an
            operator that is not in `dmbp.models.onnx.operators`.
    """
    try:
        import onnx
    except ImportError as error:
        raise ModelError(f"{path} needs the extra onnx: pip install dmbp[onnx]") from error
    check_file(path, what="model file", error=ModelError, most_bytes=MAX_BYTES)
    try:
        model: Any = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf raises its own exceptions
        raise ModelError(f"{path} is damaged, or not an ONNX model") from error
    if not model.graph.node or not model.opset_import:
        raise ModelError(f"{path} is damaged, or not an ONNX model")
    model = _inline_functions(model)
    _check_operators(model, path)
    _load_weights(model, path)
    return model


def _inline_functions(model: Any) -> Any:
    """Replace calls of functions that the file defines by the functions' nodes."""
    if not model.functions:
        return model
    from onnx import inliner

    return inliner.inline_local_functions(model)


def _check_operators(model: Any, path: Path) -> None:
    nodes = {operator_name(node): node for node in model.graph.node}
    unknown = [name for name in nodes if name not in OPERATORS and name != "Constant"]
    if any(name.rpartition(".")[2].startswith(QUANTISED) for name in unknown):
        raise ModelError(f"{path} is quantised: give the floating-point file it was made from")
    if unknown:
        where = ", ".join(f"{name} at {nodes[name].name!r}" for name in unknown[:3])
        raise ModelError(
            f"{path} has operators that are not supported: {where}; the supported ones are in "
            "dmbp.models.onnx.operators"
        )


def _load_weights(model: Any, path: Path) -> None:
    """Load the weights that are kept in files beside the model."""
    from onnx import external_data_helper

    external = [tensor for tensor in model.graph.initializer if tensor.external_data]
    missing = [name for name in _file_names(external) if not (path.parent / name).is_file()]
    if missing:
        raise ModelError(f"{path} has weights in {missing[0]}, which is not beside it")
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # a file that is too short, or a path outside the folder
        raise ModelError(f"the weights beside {path} are damaged") from error


def _file_names(tensors: Sequence[Any]) -> list[str]:
    entries = [entry for tensor in tensors for entry in tensor.external_data]
    return sorted({entry.value for entry in entries if entry.key == "location"})


def find_input(model: Any, source: str) -> tuple[str, list[int | None]]:
    """Return the name and shape of the model's only input, which must be floating point."""
    weights = {initializer.name for initializer in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise ModelError(
            f"{source} takes {len(inputs)} inputs ({names}); dmbp explains files with one"
        )
    (images,) = inputs
    kind = images.type.tensor_type
    if kind.elem_type not in FLOAT_TYPES:
        raise ModelError(
            f"{source} takes {_type_name(kind.elem_type)} at {images.name!r}, not floating point: "
            "export the network without its preprocessing"
        )
    shape = [d.dim_value or None for d in kind.shape.dim]
    if any(size is not None and not 1 <= size <= MAX_SIDE for size in shape):
        sizes = "×".join("any" if size is None else str(size) for size in shape)
        raise ModelError(
            f"{source} takes inputs of {sizes}; dmbp explains models of images up to "
            f"{MAX_SIDE}×{MAX_SIDE} pixels"
        )
    return images.name, shape


def find_output(model: Any, source: str) -> str:
    """Return the name of the scores: the only output, `logits`, or the only one of rank two."""
    outputs = list(model.graph.output)
    for candidates in (
        outputs,
        [output for output in outputs if output.name == SCORES],
        [output for output in outputs if len(output.type.tensor_type.shape.dim) == 2],
    ):
        if len(candidates) == 1:
            return str(candidates[0].name)
    names = ", ".join(output.name for output in outputs)
    raise ModelError(
        f"{source} gives {len(outputs)} outputs ({names}): export the network with its scores as "
        f"the only output, or name them {SCORES!r}"
    )


def _type_name(kind: int) -> str:
    from onnx import TensorProto

    return TensorProto.DataType.Name(kind).lower() if kind else "no tensor"
