"""A model in an ONNX file, the extra `onnx`.

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
from dmbp.models.input_form import ChannelsLast, InputForm, classifier_of, read_form
from dmbp.models.onnx_files.file import read_model
from dmbp.models.onnx_files.graph import Graph, read_graph
from dmbp.models.onnx_files.module import OnnxModule
from dmbp.models.onnx_files.signature import input_of, output_of


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
