"""Which input of an ONNX file takes the images, and which output has the scores."""

from typing import Any

from dmbp.errors import ModelError

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
