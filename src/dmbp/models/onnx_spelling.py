"""Newer spellings of ONNX operations in those that onnx2torch knows.

Current exporters write operation sets 18 to 23. Most operations differ from their older versions in
the types they allow alone; a mean has its axes as an input instead of an attribute; a reshape says
what a size of zero means, where there is none. Weights used twice may come by way of an identity.
"""

from typing import Any

from dmbp.errors import ModelError

LAST_KNOWN = 23
"""The newest operation set whose inputs and attributes were compared, by onnx's own schemas.

`Cast` alone has an attribute more, for types of 8 bits, and `Pad`, `Split`, `Resize` and
`AveragePool` have changed: those are left out.
"""

_UNCHANGED = (
    *(
        "Identity",
        "Reshape",
        "Constant",
        "ConstantOfShape",
        "Flatten",
        "Shape",
        "Transpose",
        "Cast",
    ),
    *("Squeeze", "Unsqueeze", "Equal", "GreaterOrEqual", "LessOrEqual", "Conv", "ConvTranspose"),
    *("Dropout", "Elu", "GlobalAveragePool", "HardSigmoid", "HardSwish", "InstanceNormalization"),
    *("MaxPool", "Selu", "Softplus", "Softsign", "Sin", "Cos", "IsNaN", "IsInf", "Round"),
)

_REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"),
    *("ReduceMin", "ReduceProd", "ReduceSumSquare"),
)


def know_newer_versions() -> None:
    """Let onnx2torch take newer versions of operations for the last it knows."""
    from onnx import defs
    from onnx2torch.node_converters.registry import add_converter

    for name in (*_UNCHANGED, *_REDUCTIONS):
        schemas = [schema for schema in _history(defs) if schema.name == name]
        for version in sorted(schema.since_version for schema in schemas):
            converter = _converter(name, version)
            known = converter if converter is not None else _converter(name, version - 1)
            if converter is None and known is not None and version <= LAST_KNOWN:
                add_converter(operation_type=name, version=version)(known)


def respell(model: Any) -> None:
    """Write reductions and reshapes of a model as older operation sets did."""
    _share_weights(model.graph)
    constants = _constants(model)
    for node in model.graph.node:
        given = constants.get(node.input[1]) if len(node.input) == 2 else None
        if node.op_type in _REDUCTIONS:
            _give_axes(node, given)
        if node.op_type == "Reshape" and given is not None and 0 not in given:
            _drop(node, "allowzero")


def _give_axes(node: Any, axes: list[int] | None) -> None:
    """Turn the axes of a reduction from an input into an attribute."""
    passes = any(one.name == "noop_with_empty_axes" and one.i for one in node.attribute)
    if (passes or len(node.input) == 2) and not axes:
        raise ModelError(
            f"{node.op_type} {node.name!r} of the ONNX file cannot be converted: its axes are "
            "computed, or there are none"
        )
    if axes:
        del node.input[1]
        _drop(node, "noop_with_empty_axes")
        node.attribute.append(_attribute("axes", axes))


def _drop(node: Any, name: str) -> None:
    kept = [one for one in node.attribute if one.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)


def _share_weights(graph: Any) -> None:
    """Let every reader of a weight's identity read the weight."""
    weights = {one.name for one in graph.initializer}
    copies = [n for n in graph.node if n.op_type == "Identity" and n.input[0] in weights]
    names = {node.output[0]: node.input[0] for node in copies}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for node in copies:
        graph.node.remove(node)


def _constants(model: Any) -> dict[str, list[int]]:
    """The short lists of integers in a model, by name."""
    from onnx import TensorProto, numpy_helper

    tensors = {one.name: one for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            tensors[node.output[0]] = node.attribute[0].t
    return {
        name: numpy_helper.to_array(tensor).tolist()
        for name, tensor in tensors.items()
        if tensor.data_type == TensorProto.INT64 and len(tensor.dims) == 1
    }


def _attribute(name: str, value: Any) -> Any:
    from onnx import helper

    return helper.make_attribute(name, value)


def _history(defs: Any) -> list[Any]:
    return [one for one in defs.get_all_schemas_with_history() if one.domain == ""]


def _converter(name: str, version: int) -> Any:
    """onnx2torch's converter of an operation in an operation set, if it has one."""
    from onnx2torch.node_converters import get_converter

    try:
        return get_converter(operation_type=name, version=version)
    except NotImplementedError:
        return None
