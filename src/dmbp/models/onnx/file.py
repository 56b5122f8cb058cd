"""Loads an ONNX file as a classifier (the `onnx` extra).

    dmbp explain photo.jpg --model net.onnx

The weights are in the file or in files beside it. Images may have their channels first or last. A
file exported for one image is run on one image after the other; so is a file that claims to take
any number of images but computes with a batch size of one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dmbp.errors import ModelError, first_line
from dmbp.files import check_file
from dmbp.models.classifier import MAX_NUMBERS, Classifier, InputSize
from dmbp.models.exported_program import (
    MAX_SIDE,
    ChannelsLast,
    InputShape,
    StatedInput,
    any_batch,
    channels_first,
    check_input_shape,
    classifier_from_module,
)
from dmbp.models.onnx.branches import CONTROL_FLOW
from dmbp.models.onnx.graph import OnnxGraph, OnnxModule, SizeLimit, TooLarge, read_graph
from dmbp.models.onnx.metadata import read_notes, with_notes
from dmbp.models.onnx.operators import OPERATORS
from dmbp.models.onnx.operators.call import FLOAT_TYPES, OnnxValue, as_numbers_if_shape
from dmbp.process import silence_output

SCORES = "logits"
"""The name of the output to explain if there are several."""

QUANTISED = ("Quantize", "Dequantize", "QLinear", "DynamicQuantize", "ConvInteger", "MatMulInteger")
"""Prefixes of the names of quantised operators."""

MAX_BYTES = 2**31
"""The largest ONNX file; the format itself allows no more, larger weights are in other files."""


PHOTO_SIZES: tuple[tuple[int, int], ...] = (
    *((side, side) for side in (224, 256, 299, 320, 384, 416, 448, 512, 640, 192, 160, 128)),
    *((48, 320), (32, 320), (64, 320), (32, 100), (64, 256)),
    *((side, side) for side in (112, 96, 64, 48, 32, 28)),
)
"""The sizes at which a network is tried if its file does not state one; the first is ImageNet's."""


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
    explained, shape, others = find_input(model, str(path), name=stated.ends.input)
    held = held_values(others, stated.ends.hold, str(path))
    scores = find_output(model, str(path), name=stated.ends.output, states=others)
    is_last = stated.layout == "nhwc" or (stated.layout is None and _has_channels_last(shape))
    shape = channels_first(shape) if is_last else shape
    # An input that is held may have one entry for each image, and a branch may depend on their
    # number: such a file is run on one image after the other.
    has_branches = any(node.op_type in CONTROL_FLOW for node in model.graph.node)
    if shape[:1] == [None] and (held or has_branches):
        shape[0] = 1

    def build(shape: Sequence[int | None]) -> nn.Module:
        """Return the module for inputs of this shape."""
        sizes = [1 if size is None else size for size in shape]
        sizes = [sizes[0], *sizes[2:], sizes[1]] if is_last else sizes
        graph = _read_graph(model, explained, scores, held, torch.empty(sizes), path)
        module = OnnxModule(graph)
        return ChannelsLast(module) if is_last else module

    if len(shape) != 4 or shape[1] not in (None, 1, 3):
        return _classifier_without_photos(build, shape, stated, path)
    expected = check_input_shape([shape], str(path))
    notes = read_notes(model)
    is_open = stated.size is None and stated.default_size is None
    if is_open and notes.size is not None and max(notes.size) <= MAX_SIDE:
        expected = expected.with_stated_size(StatedInput(default_size=notes.size), str(path))
    sized, module = _first_size_that_runs(build, expected.with_stated_size(stated, str(path)), path)
    if expected.batch is None and not _takes_batches(module, _sizes_of(sized)):
        expected = replace(expected, batch=1)
    if expected.batch not in (None, 1):
        # The size of the batch is often that of an example, and nothing depends on it.
        of_any_batch = build(_as_list(replace(sized, batch=None)))
        if _takes_batches(of_any_batch, _sizes_of(sized)):
            expected, module = replace(expected, batch=None), of_any_batch
    if None in (expected.height, expected.width) and stated.size is None:
        stated = replace(stated, default_size=sized.preprocessing().size)
    classifier = classifier_from_module(module, expected, str(path), stated)
    return with_notes(classifier, notes, _output_shape(module, sized))


def _output_shape(module: nn.Module, expected: InputShape) -> tuple[int, ...]:
    """Return the shape of an image's outputs, by propagating shapes; empty if that fails."""
    shape = [1, *_sizes_of(expected)]
    try:
        with silence_output(), torch.no_grad(), _shapes_only():
            return tuple(module(_fake_inputs(module, shape)).shape[1:])
    except Exception:  # whatever torch raises is said when the model is run
        return ()


def _first_size_that_runs(
    build: Callable[[Sequence[int | None]], nn.Module], images: InputShape, path: Path
) -> tuple[InputShape, nn.Module]:
    """Return the shape of photos, and the module; a size that is not stated is tried out.

    Raises:
        ModelError: If the file does not state a size, and runs at none that is common.
    """
    if None not in (images.height, images.width):
        module = build(_as_list(images))
        _check_sizes(module, images, path)
        return images, module
    tried = dict.fromkeys(
        replace(images, height=images.height or height, width=images.width or width)
        for height, width in PHOTO_SIZES
    )
    for sized in tried:
        try:
            module = build(_as_list(sized))
        except ModelError:
            if sized == next(iter(tried)):  # an operator is missing, for example
                raise
            continue
        if _check_sizes(module, sized, path):
            return sized, module
    raise ModelError(
        f"{path} does not say how large its images are, and runs at none of the usual sizes: give "
        "--size HEIGHTxWIDTH"
    )


def _as_list(images: InputShape) -> list[int | None]:
    return [images.batch, images.channels, images.height, images.width]


def _classifier_without_photos(
    build: Callable[[Sequence[int | None]], nn.Module],
    shape: Sequence[int | None],
    stated: StatedInput,
    path: Path,
) -> Classifier:
    """Return a model whose inputs are not photos, such as sounds."""
    own = _open_sizes_filled(shape[1:], stated.size, path)
    if not own or None in own:
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise ModelError(
            f"{path} takes inputs of shape ({sizes}), which are not photos: give the open sizes "
            "with --size, such as --size 512"
        )
    sizes = tuple(int(size) for size in own if size is not None)
    batch, module = shape[0], build([shape[0], *sizes])
    _check_result_sizes(module, [batch or 1, *sizes], path)
    if batch not in (None, 1) and _takes_batches(any_module := build([None, *sizes]), sizes):
        batch, module = None, any_module
    return Classifier(str(path), any_batch(module, batch, sizes, str(path)), input_shape=sizes)


def _open_sizes_filled(
    own: Sequence[int | None], size: InputSize | None, path: Path
) -> list[int | None]:
    """Return the sizes of an input, with those that a user gave where the file leaves them open."""
    if size is None:
        return list(own)
    given = list(size) if isinstance(size, tuple) else [size] * own.count(None)
    if len(given) != own.count(None):
        sizes = ", ".join("any" if n is None else str(n) for n in own)
        raise ModelError(
            f"{path} takes inputs of {sizes} numbers, of which {own.count(None)} are open, and "
            f"--size gives {len(given)}"
        )
    left = iter(given)
    return [next(left) if n is None else n for n in own]


def _read_graph(
    model: Any,
    explained: str,
    scores: str,
    held: Mapping[str, OnnxValue],
    example: Tensor,
    path: Path,
) -> OnnxGraph:
    try:
        graph = read_graph(model, explained, scores, held=held, example=example)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error
    except StopIteration as error:
        raise ModelError(f"{path} does not state a version of ONNX's operators") from error
    except Exception as error:
        if held:
            names = ", ".join(map(repr, held))
            raise ModelError(
                f"{path} cannot compute with the values of its other inputs, {names}: give values "
                "of another shape with --hold"
            ) from error
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"constants of {path} cannot be computed: {reason}") from error
    _check_operators(graph, path)
    return graph


def _has_channels_last(shape: Sequence[int | None]) -> bool:
    return len(shape) == 4 and shape[3] in (1, 3) and shape[1] not in (1, 3)


def _check_sizes(module: nn.Module, expected: InputShape, path: Path) -> bool:
    """Return whether the module runs at this size, by propagating shapes only."""
    return _check_result_sizes(module, [expected.batch or 1, *_sizes_of(expected)], path)


def _check_result_sizes(module: nn.Module, shape: Sequence[int], path: Path) -> bool:
    """Raise a `ModelError` if a tensor would be too large; return whether the module runs."""
    try:
        with silence_output(), torch.no_grad(), _shapes_only(), SizeLimit():
            module(_fake_inputs(module, shape))
    except TooLarge as error:
        raise ModelError(f"{path}: {error}") from error
    except Exception:  # whatever torch raises is said when the model is run
        return False
    return True


def _shapes_only() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def _fake_inputs(module: nn.Module, shape: Sequence[int]) -> Tensor:
    dtype = next((weight.dtype for weight in module.parameters()), None)
    return torch.empty(*shape, dtype=dtype)


def _takes_batches(module: nn.Module, sizes: Sequence[int]) -> bool:
    """Return whether two inputs give two rows of scores, by propagating shapes only."""
    try:
        with silence_output(), torch.no_grad(), _shapes_only():
            return len(module(_fake_inputs(module, [2, *sizes]))) == 2
    except Exception:  # whatever torch raises about sizes that do not fit
        return False


def _sizes_of(images: InputShape) -> tuple[int, ...]:
    """Return the shape of one image."""
    preprocessing = images.preprocessing()
    return (len(preprocessing.mean), *preprocessing.size)


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
    _load_weights(model, path)
    return model


def _inline_functions(model: Any) -> Any:
    """Replace calls of functions that the file defines by the functions' nodes."""
    if not model.functions:
        return model
    from onnx import inliner

    return inliner.inline_local_functions(model)


def _check_operators(graph: OnnxGraph, path: Path) -> None:
    """Raise a `ModelError` for operators that cannot be run, after constants were computed."""
    nodes = {node.operator: node for node in graph.nodes}
    unknown = [name for name in nodes if name not in OPERATORS]
    if any(name.rpartition(".")[2].startswith(QUANTISED) for name in unknown):
        raise ModelError(
            f"{path} computes with integers (quantised): give the floating-point file it was made "
            "from"
        )
    if branches := [name for name in unknown if name in CONTROL_FLOW]:
        raise ModelError(
            f"{path} has a branch or a loop, {branches[0]} at {nodes[branches[0]].name!r}, that "
            "depends on more than sizes and settings, so that no single network stands for it"
        )
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


def find_input(
    model: Any, source: str, *, name: str | None = None
) -> tuple[str, list[int | None], list[Any]]:
    """Return the name and shape of the input to explain, and all other inputs.

    Raises:
        ModelError: If there is no input of that name, or none of floating point.
    """
    weights = {initializer.name for initializer in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    if not inputs:
        raise ModelError(f"{source} takes no input")
    floats = [value for value in inputs if _kind(value) in FLOAT_TYPES]
    if name is not None:
        chosen = next((value for value in inputs if value.name == name), None)
        if chosen is None:
            names = ", ".join(value.name for value in inputs)
            raise ModelError(f"{source} has no input {name!r}: it has {names}")
    else:
        photos = [value for value in floats if len(_sizes(value)) == 4]
        chosen = (photos if len(photos) == 1 else floats or inputs)[0]
    if chosen not in floats:
        raise ModelError(
            f"{source} takes {_type_name(_kind(chosen))} at {chosen.name!r}, not floating point: "
            "export the network without its preprocessing"
        )
    shape = _sizes(chosen)
    most = MAX_SIDE if len(shape) == 4 else MAX_NUMBERS
    if any(size is not None and size > most for size in shape):
        sizes = "×".join("any" if size is None else str(size) for size in shape)
        raise ModelError(
            f"{source} takes inputs of {sizes}; dmbp explains model files for images up to "
            f"{MAX_SIDE}×{MAX_SIDE} pixels, and other inputs of up to {MAX_NUMBERS:,} numbers"
        )
    return chosen.name, shape, [value for value in inputs if value is not chosen]


def _kind(value: Any) -> int:
    return value.type.tensor_type.elem_type


def _sizes(value: Any) -> list[int | None]:
    """Return an input's sizes; Paddle writes a size that is open as −1, others as a name."""
    dimensions = value.type.tensor_type.shape.dim
    return [d.dim_value if d.dim_value > 0 else None for d in dimensions]


def held_values(inputs: Sequence[Any], given: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the values of the inputs that are not explained.

    Args:
        inputs: The inputs of the file.
        given: Values by name, numbers or tensors. Where there is none, an input of floating point,
            such as the state of a recurrent network, is zero; open sizes are then 1.
        source: The file's name.

    Raises:
        ModelError: If an input of whole numbers has no value, or a value does not fit.
    """
    names = [value.name for value in inputs]
    if unknown := sorted(set(given) - set(names)):
        known = f"it has {', '.join(names)}" if names else "it has one input, which is explained"
        raise ModelError(f"{source} has no other input {unknown[0]!r}: {known}")
    return {value.name: _held_value(value, given.get(value.name), source) for value in inputs}


def _held_value(value: Any, given: Any, source: str) -> OnnxValue:
    kind, shape = _kind(value), _sizes(value)
    is_float = kind in FLOAT_TYPES
    sizes = [size or 1 for size in shape]
    if given is None:
        if not is_float:
            shown = " × ".join(map(str, sizes)) or "a number"
            raise ModelError(
                f"{source} also takes {value.name!r} ({_type_name(kind)}, {shown}): give it with "
                f"--hold {value.name}={'NUMBER' if math.prod(sizes) == 1 else 'NUMBERS'}"
            )
        if math.prod(sizes) > MAX_NUMBERS:
            raise ModelError(f"{source} also takes {value.name!r}, which is too large to hold")
        return as_numbers_if_shape(torch.zeros(sizes))
    tensor = torch.as_tensor(given)
    tensor = tensor.float() if is_float else tensor.to(torch.bool if kind == 9 else torch.int64)
    tensor = tensor.expand(sizes) if tensor.dim() == 0 else tensor
    fits = tensor.dim() == len(shape) and all(
        size in (None, own) for size, own in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        raise ModelError(
            f"{source} takes {value.name!r} of shape {tuple(sizes)}, not {tuple(tensor.shape)}"
        )
    return as_numbers_if_shape(tensor.clone())


def find_output(
    model: Any, source: str, *, name: str | None = None, states: Sequence[Any] = ()
) -> str:
    """Return the name of the scores.

    That is the only output of floating point, `logits`, or the only one of rank two or else three:
    detectors give (batch, numbers, candidates) beside maps for masks. Outputs that are shaped like
    an input among `states` are the next state of a recurrent network.
    """
    outputs = list(model.graph.output)
    names = ", ".join(output.name for output in outputs)
    if name is not None:
        if name not in [output.name for output in outputs]:
            raise ModelError(f"{source} has no output {name!r}: it has {names}")
        return name
    shapes = [_sizes(state) for state in states]
    numbers = [output for output in outputs if _kind(output) in FLOAT_TYPES] or outputs
    for candidates in (
        numbers,
        [output for output in numbers if output.name == SCORES],
        [output for output in numbers if len(_sizes(output)) == 2],
        [output for output in numbers if len(_sizes(output)) == 3],
        [output for output in numbers if not any(_may_equal(_sizes(output), s) for s in shapes)],
    ):
        if len(candidates) == 1:
            return str(candidates[0].name)
    described = ", ".join(f"{output.name} ({_format(_sizes(output))})" for output in outputs)
    raise ModelError(
        f"{source} gives {len(outputs)} outputs: {described}; say which one to explain with "
        f"--output-name, such as --output-name {numbers[0].name}"
    )


def _format(sizes: Sequence[int | None]) -> str:
    return "×".join("any" if size is None else str(size) for size in sizes) or "a number"


def _may_equal(first: Sequence[int | None], second: Sequence[int | None]) -> bool:
    return len(first) == len(second) and all(
        None in pair or pair[0] == pair[1] for pair in zip(first, second, strict=True)
    )


def _type_name(kind: int) -> str:
    from onnx import TensorProto

    return TensorProto.DataType.Name(kind).lower() if kind else "no tensor"
