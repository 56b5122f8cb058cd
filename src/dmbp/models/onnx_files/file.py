"""Reads an ONNX file, and says in a sentence what is wrong with one that cannot be used."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dmbp.errors import ModelError
from dmbp.models.onnx_files.graph import operation_of
from dmbp.models.onnx_files.operations import OPERATIONS

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
            "dmbp.models.onnx_files.operations"
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
