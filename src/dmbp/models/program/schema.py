"""The fields of the JSON files in a `.pt2` file: torch's schema 8, less what is not plain data.

The tables below follow `torch/_export/serde/schema.py` from torch 2.6 to 2.13. What they leave out
is refused: custom objects, operations as arguments, graphs with effect tokens, and whatever a later
release adds. Stack traces and other remarks are dropped.

    PROGRAM(json.loads(content))             # the network, rebuilt from checked values
    payloads("weight_[0-9]+")(config)        # the list of the weights
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from dmbp.models.program.values import (
    Refused,
    argument_name,
    boolean,
    expect,
    guard,
    integer,
    module_path,
    name,
    operation,
    printable,
    quote,
    real,
    release,
    symbol_with_range,
    symbolic_size,
    text,
    tree,
)

Check = Callable[[Any], Any]
"""Returns the value that torch may read in place of a JSON value, or raises `Refused`."""


def _inside(place: str, check: Check, value: Any) -> Any:
    try:
        return check(value)
    except Refused as refused:
        refused.place = place + refused.place
        raise


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """Return the check of an object that has these fields and no others."""
    fields = {**required, **(optional or {})}

    def check(value: Any) -> Any:
        content = expect(dict, value)
        for key in content:
            if key not in fields:
                raise Refused(f"has the field {quote(key)}, which dmbp does not read")
        for key in required:
            if key not in content:
                raise Refused(f"lacks the field {quote(key)}")
        return {key: _inside(f".{key}", fields[key], part) for key, part in content.items()}

    return check


def one_field(options: Mapping[str, Check]) -> Check:
    """Return the check of an object that has exactly one of these fields."""
    check_fields = record({}, options)

    def check(value: Any) -> Any:
        if len(expect(dict, value)) != 1:
            raise Refused(f"has {len(value)} fields, not one")
        return check_fields(value)

    return check


def list_of(item: Check) -> Check:
    """Return the check of a list."""

    def check(value: Any) -> Any:
        items = enumerate(expect(list, value))
        return [_inside(f"[{index}]", item, part) for index, part in items]

    return check


def mapping(key: Check, item: Check) -> Check:
    """Return the check of an object with any number of fields."""

    def check(value: Any) -> Any:
        content = expect(dict, value).items()
        return {key(name): _inside(f"[{quote(name)}]", item, part) for name, part in content}

    return check


def optional(check: Check) -> Check:
    """Return a check that also passes null."""
    return lambda value: None if value is None else check(value)


def one_of(*values: Any) -> Check:
    """Return the check of a value out of a few."""

    def check(value: Any) -> Any:
        if not any(type(value) is type(known) and value == known for known in values):
            raise Refused(f"is {quote(value)}, which dmbp does not read")
        return value

    return check


def dropped(replacement: Any) -> Check:
    """Return a check of what a network does not need: torch gets the replacement instead."""
    return lambda _: replacement


def calls(value: Any) -> Any:
    """Check the list of modules, and keep the signature of the whole network only."""
    first, *rest = list_of(_CALL)(value) or [{}]
    if first.get("fqn") != "" or not first.get("signature"):
        raise Refused("does not begin with the signature of the network")
    return [first, *({**call, "signature": None} for call in rest)]


_NUMBERED_DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.bfloat16),
)
DTYPES: Mapping[int, torch.dtype] = {
    **dict(enumerate(_NUMBERED_DTYPES, start=1)),
    28: torch.uint16,
    29: torch.float8_e4m3fn,
    30: torch.float8_e5m2,
}
"""The numbers that the schema gives to dtypes."""

_DEVICE = record(
    {"type": one_of("cpu", "cuda", "mps", "xpu", "meta")}, {"index": optional(integer)}
)
_HINT = one_field({"as_int": integer, "as_bool": boolean, "as_float": real})
_EXPRESSION = record({"expr_str": symbolic_size}, {"hint": optional(_HINT)})
_SYM_INT = one_field({"as_expr": _EXPRESSION, "as_int": integer})
_SYM_FLOAT = one_field({"as_expr": _EXPRESSION, "as_float": real})
_SYM_BOOL = one_field({"as_expr": _EXPRESSION, "as_bool": boolean})


def _tensor_meta(size: Check) -> Check:
    return record(
        {
            "dtype": one_of(*DTYPES),
            "sizes": list_of(size),
            "requires_grad": boolean,
            "device": _DEVICE,
            "strides": list_of(size),
            "storage_offset": size,
            "layout": one_of(7),  # strided
        }
    )


_TENSOR = record({"name": name})
_OPTIONAL_TENSOR = one_field({"as_tensor": _TENSOR, "as_none": boolean})
_SYM_INT_ARGUMENT = one_field({"as_name": name, "as_int": integer})
_SYM_FLOAT_ARGUMENT = one_field({"as_name": name, "as_float": real})
_SYM_BOOL_ARGUMENT = one_field({"as_name": name, "as_bool": boolean})

_CONSTANTS: Mapping[str, Check] = {
    "as_none": boolean,
    "as_int": integer,
    "as_float": real,
    "as_bool": boolean,
}
_VALUES: Mapping[str, Check] = {
    **_CONSTANTS,
    "as_tensor": _TENSOR,
    "as_sym_int": _SYM_INT_ARGUMENT,
    "as_sym_float": _SYM_FLOAT_ARGUMENT,
    "as_sym_bool": _SYM_BOOL_ARGUMENT,
}
_INPUT = one_field(_VALUES)
"""An input or output. Texts are no inputs: torch pastes them into the code of a guard."""

_ARGUMENT = one_field(
    {
        **_VALUES,
        "as_tensors": list_of(_TENSOR),
        "as_optional_tensor": _OPTIONAL_TENSOR,
        "as_optional_tensors": list_of(_OPTIONAL_TENSOR),
        "as_ints": list_of(integer),
        "as_floats": list_of(real),
        "as_bools": list_of(boolean),
        "as_string": text,
        "as_strings": list_of(text),
        "as_complex": record({"real": real, "imag": real}),
        "as_sym_ints": list_of(_SYM_INT_ARGUMENT),
        "as_sym_floats": list_of(_SYM_FLOAT_ARGUMENT),
        "as_sym_bools": list_of(_SYM_BOOL_ARGUMENT),
        "as_scalar_type": one_of(*DTYPES),
        "as_memory_format": one_of(1, 2, 3, 4),
        "as_layout": one_of(7),
        "as_device": _DEVICE,
        "as_graph": record({"name": name, "graph": lambda value: _GRAPH(value)}),
    }
)
_NODE = record(
    {
        "target": operation,
        "inputs": list_of(
            record({"name": argument_name, "arg": _ARGUMENT}, {"kind": optional(one_of(0, 1, 2))})
        ),
        "outputs": list_of(_ARGUMENT),
        "metadata": lambda value: {
            key: printable(part)
            for key, part in expect(dict, value).items()
            if key == "nn_module_stack"  # the modules' paths, which messages name
        },
    },
    {"is_hop_single_tensor_return": optional(boolean), "name": optional(name)},
)
_GRAPH = record(
    {
        "inputs": list_of(_INPUT),
        "outputs": list_of(_INPUT),
        "nodes": list_of(_NODE),
        "tensor_values": mapping(name, _tensor_meta(_SYM_INT)),
        "sym_int_values": mapping(name, _SYM_INT),
        "sym_bool_values": mapping(name, _SYM_BOOL),
    },
    {
        "is_single_tensor_return": boolean,
        "custom_obj_values": one_of({}),
        "sym_float_values": mapping(name, _SYM_FLOAT),
    },
)
_SIGNATURE = record(
    {
        "input_specs": list_of(
            one_field(
                {
                    "user_input": record({"arg": _INPUT}),
                    "parameter": record({"arg": _TENSOR, "parameter_name": module_path}),
                    "buffer": record(
                        {"arg": _TENSOR, "buffer_name": module_path, "persistent": boolean}
                    ),
                    "tensor_constant": record(
                        {"arg": _TENSOR, "tensor_constant_name": module_path}
                    ),
                    "constant_input": record({"name": name, "value": one_field(_CONSTANTS)}),
                }
            )
        ),
        "output_specs": list_of(
            one_field(
                {
                    "user_output": record({"arg": _INPUT}),
                    "buffer_mutation": record({"arg": _TENSOR, "buffer_name": module_path}),
                    "user_input_mutation": record({"arg": _TENSOR, "user_input_name": name}),
                }
            )
        ),
    }
)
_CALL = record(
    {"fqn": lambda value: value if value == "" else module_path(value)},
    {
        "signature": optional(
            record(
                {
                    "inputs": dropped([]),
                    "outputs": dropped([]),
                    "in_spec": tree,
                    "out_spec": tree,
                },
                {"forward_arg_names": optional(list_of(name))},
            )
        )
    },
)

PROGRAM = record(
    {
        "graph_module": record(
            {"graph": _GRAPH, "signature": _SIGNATURE, "module_call_graph": calls},
            {"metadata": dropped({}), "treespec_namedtuple_fields": dropped({})},
        ),
        "opset_version": mapping(name, integer),
        "range_constraints": mapping(
            symbol_with_range, record({"min_val": optional(integer), "max_val": optional(integer)})
        ),
        "schema_version": record({"major": one_of(8), "minor": integer}),
    },
    {
        "verifiers": list_of(one_of("", "ATEN", "TRAINING")),
        "torch_version": release,
        "guards_code": list_of(guard),
    },
)
"""The network: `models/model.json`, and `serialized_exported_program.json` before torch 2.8."""


def payloads(file_name: str) -> Check:
    """Return the check of a list of tensors that are stored in files with such names."""

    def stored_name(value: Any) -> str:
        if not re.fullmatch(file_name, expect(str, value)):
            raise Refused(f"is {quote(value)}, which is not a file of raw numbers")
        return value

    def not_pickled(value: Any) -> bool:
        if boolean(value):
            raise Refused("is true, so that loading the file would run what was pickled in it")
        return value

    payload = record(
        {
            "path_name": stored_name,
            "is_param": boolean,
            "use_pickle": not_pickled,
            "tensor_meta": _tensor_meta(one_field({"as_int": integer})),
        }
    )
    return record({"config": mapping(module_path, payload)})
