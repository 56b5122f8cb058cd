"""Files of models and weights: damaged, tampered with, huge on paper, or with code inside."""

import inspect
import json
import pickle
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from dmbp.models.onnx.operators import OPERATORS
from tests.fuzz.case import FAST, MARK, MODEL, Case, Stock
from tests.fuzz.damage import (
    INTEGERS,
    TEXTS,
    damaged_bytes,
    damaged_tree,
    odd_value,
    with_nested_lists,
)
from tests.models.program import tampering
from tests.models.program.tampering import CONSTANTS, PROGRAM, WEIGHTS, Members, Payload

ROUTES = {
    name: function
    for name, function in vars(tampering).items()
    if inspect.isfunction(function)
    and list(inspect.signature(function).parameters) == ["members", "mark"]
}
"""The ways in which a `.pt2` file runs code if torch loads it."""


def make_model_case(rng: Random, folder: Path, stock: Stock) -> Case:
    """Return a command that opens a file with a whole model."""
    suffix = rng.choice((".pt2", ".onnx"))
    path = folder / f"model{suffix}"
    ways = PROGRAMS if suffix == ".pt2" else ONNX
    way = rng.choice(list(ways))
    note = ways[way](rng, path, stock)
    return Case(_model_command(rng, path.name, stock), f"{suffix} {way} {note}".strip())


def _model_command(rng: Random, model: str, stock: Stock) -> list[str]:
    photo = str(stock.path("photo.png"))
    return rng.choice(
        (
            ["doctor", model],
            ["doctor", model, "--json"],
            ["explain", photo, "--model", model, *FAST],
            ["compare", photo, "--model", model, "--methods", "gradient"],
        )
    )


def _program_members(rng: Random, stock: Stock) -> Members:
    name = rng.choice(("net.pt2", "dynamic.pt2"))
    with zipfile.ZipFile(stock.path(name)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def _write_members(path: Path, members: Members, packing: int = zipfile.ZIP_STORED) -> None:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(f"net/{name}", content)


def _damaged_program(rng: Random, path: Path, stock: Stock) -> str:
    content, damage = damaged_bytes(rng, stock.read(rng.choice(("net.pt2", "dynamic.pt2"))))
    path.write_bytes(content)
    return damage


def _changed_json(rng: Random, path: Path, stock: Stock) -> str:
    members = _program_members(rng, stock)
    name = rng.choice((PROGRAM, PROGRAM, PROGRAM, WEIGHTS, CONSTANTS))
    members[name] = _json(damaged_tree(rng, json.loads(members[name])))
    _write_members(path, members)
    return name


def _json(tree: Any) -> bytes:
    return with_nested_lists(json.dumps(tree)).encode()


def _declared_input(rng: Random, path: Path, stock: Stock) -> str:
    """Larger images than memory holds, or none."""
    sizes = (0, -1, 1, 31, 4096, 4097, 10**6, 2**31, 2**62, 10**20)
    height, width = rng.choice(sizes), rng.choice(sizes)
    members = _program_members(rng, stock)

    def change(program: Any) -> None:
        for values in program["graph_module"]["graph"]["tensor_values"].values():
            shape = values["sizes"]
            if len(shape) == 4 and shape[1] == {"as_int": 3}:
                shape[2:] = [{"as_int": height}, {"as_int": width}]

    tampering.edit_program(members, change)
    _write_members(path, members)
    return f"{height}×{width}"


def _changed_members(rng: Random, path: Path, stock: Stock) -> str:
    members = _program_members(rng, stock)
    name = rng.choice(list(members))
    draw = rng.randrange(4)
    if draw == 0:
        del members[name]
    elif draw == 1:
        members[rng.choice(("../x", "extra/x", "data/weights/weight_99", "models/other.json"))] = (
            members[name]
        )
    elif draw == 2:
        members[name], _ = damaged_bytes(rng, members[name])
    packing = zipfile.ZIP_DEFLATED if draw == 3 else zipfile.ZIP_STORED
    _write_members(path, members, packing)
    return f"{draw} {name}"


def _route(rng: Random, path: Path, stock: Stock) -> str:
    """Code in the file, by one of the routes that torch would take."""
    name = rng.choice(list(ROUTES))
    members = _program_members(rng, stock)
    try:
        ROUTES[name](members, path.parent / MARK)
    except (AssertionError, KeyError, IndexError):  # this file lacks what the route changes
        members["data/sample_inputs/model.pt"] = tampering.torch_saved(Payload(path.parent / MARK))
    _write_members(path, members)
    return name


def _other_content(rng: Random, path: Path, stock: Stock) -> str:
    name = rng.choice(("net.pth", "net.onnx", "net.pt2", "net.safetensors", "photo.png"))
    path.write_bytes(stock.read(name))
    return name


Way = Callable[[Random, Path, Stock], str]

PROGRAMS: Mapping[str, Way] = {
    "damaged": _damaged_program,
    "changed JSON": _changed_json,
    "changed JSON again": _changed_json,
    "declared input": _declared_input,
    "changed members": _changed_members,
    "code": _route,
    "other content": _other_content,
}
"""Ways to write a `.pt2` file; each returns what it drew."""


def _onnx_model(rng: Random, stock: Stock) -> Any:
    import onnx

    return onnx.load(stock.path(rng.choice(("net.onnx", "dynamic.onnx"))))


def _damaged_onnx(rng: Random, path: Path, stock: Stock) -> str:
    content, damage = damaged_bytes(rng, stock.read(rng.choice(("net.onnx", "dynamic.onnx"))))
    path.write_bytes(content)
    return damage


def _changed_fields(rng: Random, path: Path, stock: Stock) -> str:
    model = _onnx_model(rng, stock)
    notes = [_change_field(rng, model) for _ in range(rng.choice((1, 1, 2, 3)))]
    path.write_bytes(model.SerializeToString())
    return ", ".join(notes)


def _messages(message: Any) -> Any:
    """Yield a protobuf message and all messages inside it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            is_list = not hasattr(value, "ListFields")
            for item in value if is_list else [value]:
                yield from _messages(item)


def _change_field(rng: Random, model: Any) -> str:
    """Change one field of one message: to an odd value, or an entry removed or repeated."""
    message = rng.choice(list(_messages(model)))
    field = rng.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    where = f"{message.DESCRIPTOR.name}.{field.name}"
    if hasattr(value, "append") or hasattr(value, "add"):
        if len(value) and rng.random() < 0.5:
            del value[rng.randrange(len(value))]
        elif field.message_type is not None:
            added = value.add()
            if len(value) > 1:
                added.CopyFrom(rng.choice(list(value)[:-1]))
        else:
            value.extend([_odd_scalar(rng, field)] * rng.choice((1, 3)))
        return where
    if field.message_type is not None:
        message.ClearField(field.name)
        return where
    try:
        setattr(message, field.name, _odd_scalar(rng, field))
    except (ValueError, TypeError):  # an enumeration that is closed, or text that is not UTF-8
        message.ClearField(field.name)
    return where


def _odd_scalar(rng: Random, field: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_STRING:
        text = rng.choice([text for text in TEXTS if "\udce9" not in text])
        return text.encode() if field.type == field.TYPE_BYTES else text
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    small = field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32, field.CPPTYPE_ENUM)
    return rng.choice((0, 1, 2, 7, 13, 16, 99, 2**31 - 1 if small else 2**62, 10**6))


def _declared_onnx_input(rng: Random, path: Path, stock: Stock) -> str:
    model = _onnx_model(rng, stock)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    sizes = [rng.choice((0, -1, 1, 3, 31, 4096, 4097, 10**6, 2**62)) for _ in range(4)]
    for dim, size in zip(dims, sizes, strict=True):
        if rng.random() < 0.7:
            dim.dim_value = size
    path.write_bytes(model.SerializeToString())
    return "×".join(str(dim.dim_value) for dim in dims)


def _added_node(rng: Random, path: Path, stock: Stock) -> str:
    """A random operator with random attributes in the middle of the network."""
    from onnx import defs, helper

    model = _onnx_model(rng, stock)
    operator = rng.choice([name for name in OPERATORS if "." not in name])
    nodes = model.graph.node
    position = rng.randrange(len(nodes))
    before = nodes[position].input[0] if nodes[position].input else "images"
    names = [item.name for item in model.graph.initializer] + [before]
    attributes: dict[str, Any] = {}
    if defs.has(operator):
        for name in defs.get_schema(operator).attributes:
            if rng.random() < 0.4:
                numbers = [rng.choice((0, 1, -1, 2, 3, 10**6, 2**40)) for _ in range(4)]
                choices = (numbers[0], numbers, numbers[:2], 0.5, "linear", float("nan"))
                attributes[name] = rng.choice(choices)
    inputs = [before, *rng.choices([*names, ""], k=rng.randrange(4))]
    node = helper.make_node(operator, inputs, ["added"], **attributes)
    if nodes[position].input:
        nodes[position].input[0] = "added"
    nodes.insert(position, node)
    constant = helper.make_tensor("numbers", 7, [4], [rng.choice((1, 2, 10**6)) for _ in range(4)])
    model.graph.initializer.append(constant)
    if rng.random() < 0.5:
        node.input[1:] = ["numbers"]
    path.write_bytes(model.SerializeToString())
    return operator


def _external(rng: Random, path: Path, stock: Stock) -> str:
    """Weights in another file, which may be anything."""
    import onnx

    model = _onnx_model(rng, stock)
    onnx.save(model, path, save_as_external_data=True, location="beside.bin", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    draw = rng.choice(("ordinary", "entry", "content", "gone"))
    if draw == "entry":
        tensor = rng.choice([item for item in model.graph.initializer if item.external_data])
        entry = rng.choice(list(tensor.external_data))
        odd = [text for text in TEXTS if "\udce9" not in text]
        entry.value = rng.choice((*odd, "-5", "99999999999", "../photo.png", "/etc/passwd"))
        path.write_bytes(model.SerializeToString())
    elif draw == "content":
        beside = path.parent / "beside.bin"
        beside.write_bytes(damaged_bytes(rng, beside.read_bytes())[0])
    elif draw == "gone":
        (path.parent / "beside.bin").unlink()
    return draw


ONNX: Mapping[str, Way] = {
    "damaged": _damaged_onnx,
    "changed fields": _changed_fields,
    "changed fields again": _changed_fields,
    "declared input": _declared_onnx_input,
    "added node": _added_node,
    "added node again": _added_node,
    "external": _external,
    "other content": _other_content,
}
"""Ways to write an ONNX file; each returns what it drew."""


def make_weights_case(rng: Random, folder: Path, stock: Stock) -> Case:
    """Return a command that reads a file of weights."""
    suffix = rng.choice((".pth", ".pt", ".ckpt", ".bin", ".safetensors", ".safetensors"))
    path = folder / f"weights{suffix}"
    ways = SAFETENSORS if suffix == ".safetensors" else PICKLES
    way = rng.choice(list(ways))
    note = ways[way](rng, path, stock)
    photo = str(stock.path("photo.png"))
    command = rng.choice((["explain", photo, *FAST, "--model", MODEL], ["doctor", MODEL]))
    return Case([*command, "--weights", path.name], f"{suffix} {way} {note}".strip())


def _damaged_pickle(rng: Random, path: Path, stock: Stock) -> str:
    content, damage = damaged_bytes(rng, stock.read("net.pth"))
    path.write_bytes(content)
    return damage


def _odd_tensors(rng: Random, path: Path, stock: Stock) -> str:
    """Tensors that are no weights, or weights of another shape, type or number."""
    state = torch.load(stock.path("net.pth"))
    kind = rng.choice(list(TENSORS))
    key = rng.choice(list(state))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse and quantised tensors are announced to go
        state[key] = TENSORS[kind](rng, state[key])
        content = rng.choice((state, {"state_dict": state}, {"model": state}))
        torch.save(content, path, _use_new_zipfile_serialization=rng.random() < 0.7)
    return kind


TENSORS: Mapping[str, Callable[[Random, Tensor], Any]] = {
    "sparse": lambda _, t: t.to_sparse(),
    "compressed rows": lambda _, t: t.flatten(1).to_sparse_csr() if t.dim() > 1 else t.to_sparse(),
    "meta": lambda _, t: t.to("meta"),
    "quantised": lambda _, t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
    "nested": lambda _, t: torch.nested.nested_tensor([t, t]),
    "complex": lambda _, t: t.to(torch.complex64),
    "booleans": lambda _, t: t.bool(),
    "8 bits": lambda _, t: t.to(torch.float8_e4m3fn),
    "half": lambda _, t: t.half(),
    "not finite": lambda rng, t: t * rng.choice((float("nan"), float("inf"), 1e38)),
    "repeated": lambda _, t: torch.zeros(1).expand(10**6, 10**6),
    "empty": lambda _, t: t[:0],
    "another shape": lambda _, t: t[None],
    "text": lambda rng, t: rng.choice(TEXTS),
    "number": lambda rng, t: rng.choice(INTEGERS),
    "none": lambda _, t: None,
}
"""What stands in place of a weight."""


def _pickled_code(rng: Random, path: Path, stock: Stock) -> str:
    payload = Payload(path.parent / MARK)
    draw = rng.randrange(4)
    if draw == 0:
        path.write_bytes(pickle.dumps(payload, protocol=rng.choice((0, 2, 4))))
    elif draw == 1:
        torch.save({"0.weight": payload}, path, _use_new_zipfile_serialization=rng.random() < 0.5)
    elif draw == 2:
        state = torch.load(stock.path("net.pth"))
        torch.save({"state_dict": state, "optimizer": payload}, path)
    else:
        with zipfile.ZipFile(stock.path("net.pth")) as archive, zipfile.ZipFile(path, "w") as out:
            for name in archive.namelist():
                is_pickle = name.endswith("data.pkl")
                out.writestr(name, pickle.dumps(payload) if is_pickle else archive.read(name))
    return str(draw)


def _compressed(rng: Random, path: Path, stock: Stock) -> str:
    with zipfile.ZipFile(stock.path("net.pth")) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in content.items():
            archive.writestr(name, member + bytes(rng.choice((0, 10**7))))
    return ""


def _keys(rng: Random, path: Path, stock: Stock) -> str:
    state = torch.load(stock.path("net.pth"))
    odd: list[Any] = [*TEXTS, 3, None, ("a", 1), float("nan")]
    key = rng.choice(list(state))
    content: Any = {rng.choice(odd) if name == key else name: t for name, t in state.items()}
    if rng.random() < 0.3:
        content = rng.choice(([], {}, state[key], odd_value(rng), {"state_dict": odd_value(rng)}))
    buffer = BytesIO()
    torch.save(content, buffer)
    path.write_bytes(buffer.getvalue())
    return ""


PICKLES: Mapping[str, Way] = {
    "damaged": _damaged_pickle,
    "odd tensor": _odd_tensors,
    "odd tensor again": _odd_tensors,
    "code": _pickled_code,
    "compressed": _compressed,
    "keys": _keys,
    "other content": _other_content,
}
"""Ways to write what `torch.save` writes; each returns what it drew."""


def _damaged_safetensors(rng: Random, path: Path, stock: Stock) -> str:
    content, damage = damaged_bytes(rng, stock.read("net.safetensors"))
    path.write_bytes(content)
    return damage


def _changed_header(rng: Random, path: Path, stock: Stock) -> str:
    content = stock.read("net.safetensors")
    (length,) = struct.unpack("<Q", content[:8])
    header = damaged_tree(rng, json.loads(content[8 : 8 + length]))
    encoded = _json(header)
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content[8 + length :])
    return ""


def _header_length(rng: Random, path: Path, stock: Stock) -> str:
    length = rng.choice((0, 1, 2**32, 2**63, 2**64 - 1))
    path.write_bytes(struct.pack("<Q", length) + stock.read("net.safetensors")[8:])
    return str(length)


SAFETENSORS: Mapping[str, Way] = {
    "damaged": _damaged_safetensors,
    "changed header": _changed_header,
    "changed header again": _changed_header,
    "header length": _header_length,
    "other content": _other_content,
}
"""Ways to write a `.safetensors` file; each returns what it drew."""
