"""A model in an ONNX file, converted by onnx2torch: the extra `onnx`.

    dmbp explain photo.jpg --model net.onnx

Its weights are inside. A file for a single image, or one that computes with the shapes of its
tensors, is run on one image after the other.
"""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dmbp.errors import ModelError
from dmbp.models.classifier import Classifier
from dmbp.models.input_form import classifier_of, read_form
from dmbp.models.onnx_spelling import know_newer_versions, respell
from dmbp.models.torchvision_import import import_torchvision


def onnx_file_classifier(path: Path) -> Classifier:
    """The classifier in an ONNX file."""
    model = _loaded(path)
    form = read_form(_shapes(model), str(path))
    if any(node.op_type == "Shape" for node in model.graph.node):
        form = replace(form, batch=form.batch or 1)
    respell(model)
    return classifier_of(_converted(model, path), form, str(path))


class Reshape(nn.Module):
    """A reshape whose sizes are known: as a tensor they would be traced, and a graph needs numbers.

    A size of zero is that of the input.
    """

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, activation: Tensor) -> Tensor:
        """The activation in another shape."""
        return activation.reshape([n or activation.shape[k] for k, n in enumerate(self.sizes)])


def _loaded(path: Path) -> Any:
    try:
        import onnx
        import onnx.checker
    except ImportError as error:
        raise ModelError(f"{path} needs the extra onnx: pip install dmbp[onnx]") from error
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf, files of weights beside it, onnx's own
        raise ModelError(f"{path} is damaged, or no ONNX model with all its weights") from error
    return model


def _shapes(model: Any) -> list[list[int | None]]:
    """The shapes of the inputs, without those that are weights."""
    weights = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in weights]
    return [[d.dim_value or None for d in one.type.tensor_type.shape.dim] for one in inputs]


def _converted(model: Any, path: Path) -> nn.Module:
    import_torchvision()  # onnx2torch imports it, which fails beside a CPU build of torch
    try:
        import onnx2torch
    except ImportError as error:
        raise ModelError(f"{path} needs the extra onnx: pip install dmbp[onnx]") from error
    know_newer_versions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module: Any = onnx2torch.convert(model)
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            raise ModelError(f"onnx2torch cannot convert {path}: {said}") from error
    _know_sizes(module)
    return module


def _know_sizes(module: Any) -> None:
    """Replace reshapes to sizes that are constants of the file."""
    from onnx2torch.node_converters.reshape import OnnxReshape

    for node in module.graph.nodes:
        operation = module.get_submodule(node.target) if node.op == "call_module" else None
        if isinstance(operation, OnnxReshape) and node.args[1].op == "get_attr":
            sizes = module.get_buffer(node.args[1].target).tolist()
            module.add_submodule(node.target, Reshape(sizes))
            node.args = node.args[:1]
    module.recompile()
