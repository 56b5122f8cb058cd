"""A program of `torch.export`, in a `.pt2` file or in memory, as a classifier.

    torch.export.save(torch.export.export(model.eval(), (images,)), "net.pt2")
    dmbp explain photo.jpg --model net.pt2

Its weights are inside and it runs as it was exported: on the side of its example images, and on any
number of images if the batch was a dynamic dimension (`dynamic_shapes=({0: Dim.AUTO},)`), else on
one after the other.
"""

from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from dmbp.errors import ModelError
from dmbp.linear.quiet import quietly
from dmbp.models.classifier import Classifier
from dmbp.models.input_form import classifier_of, read_form


def program_file_classifier(path: Path) -> Classifier:
    """The classifier in a `.pt2` file."""
    return program_classifier(_loaded(path), str(path))


def program_classifier(program: ExportedProgram, source: str) -> Classifier:
    """The classifier that a program is; `source` is what to call it."""
    wanted = program.graph_signature.user_inputs
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    shapes = [_shape(node.meta.get("val")) for node in nodes if node.name in wanted]
    return classifier_of(program.module(), read_form(shapes, source), source)


def _loaded(path: Path) -> ExportedProgram:
    try:
        with quietly():  # torch's remarks about its own format
            return torch.export.load(path)
    except Exception as error:  # a foreign file makes the reader raise almost anything
        raise ModelError(
            f"{path} is damaged, or no program that torch.export.save wrote"
        ) from error


def _shape(value: Any) -> list[int | None]:
    """The sizes of an example input, None where they are dynamic."""
    sizes: Any = getattr(value, "shape", ())
    return [size if isinstance(size, int) else size.node.maybe_as_int() for size in sizes]
