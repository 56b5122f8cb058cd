"""Files that run code if torch loads them, each made from an ordinary `.pt2` file.

A route is a function that changes the file's members; `code` is Python source that leaves a mark.
"""

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Members = dict[str, bytes]
Route = Callable[[Members, Path], None]
"""Changes the members of an archive so that `mark` exists if the archive runs code."""

PROGRAM = "models/model.json"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Payload:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.mark,)


def code(mark: Path) -> str:
    """Return an expression that leaves a mark."""
    return f"__import__('pathlib').Path({str(mark)!r}).touch()"


def tamper(ordinary: Path, route: Route, mark: Path) -> Path:
    """Write the file that a route makes of an ordinary one, and return its path."""
    with zipfile.ZipFile(ordinary) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    route(members, mark)
    path = mark.with_name("tampered.pt2")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"net/{name}", content)
    return path


def edit(members: Members, name: str, change: Callable[[Any], None]) -> None:
    """Change the content of a JSON file."""
    content = json.loads(members[name])
    change(content)
    members[name] = json.dumps(content).encode()


def edit_program(members: Members, change: Callable[[Any], None]) -> None:
    """Change the network itself."""
    edit(members, PROGRAM, change)


def torch_saved(value: object) -> bytes:
    """Return what `torch.save` writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def rename(members: Members, old: str, new: str) -> None:
    """Replace a piece of the network's JSON everywhere."""
    assert old.encode() in members[PROGRAM]
    members[PROGRAM] = members[PROGRAM].replace(old.encode(), new.encode())


def pickled_examples(members: Members, mark: Path) -> None:
    members["data/sample_inputs/model.pt"] = torch_saved((Payload(mark),))


def pickled_weight(members: Members, mark: Path) -> None:
    members["data/weights/weight_0"] = torch_saved(Payload(mark))
    edit(members, WEIGHTS, lambda config: config["config"]["0.weight"].update(use_pickle=True))


def opaque_constant(members: Members, mark: Path) -> None:
    entry = {
        "path_name": "opaque_obj_0",
        "is_param": False,
        "use_pickle": True,
        "tensor_meta": None,
    }
    members["data/constants/opaque_obj_0"] = pickle.dumps(Payload(mark))
    edit(members, CONSTANTS, lambda config: config["config"].update(c=entry))


def symbolic_size(members: Members, mark: Path) -> None:
    def change(program: Any) -> None:
        meta = program["graph_module"]["graph"]["tensor_values"]["input"]
        meta["sizes"][0]["as_expr"]["expr_str"] = code(mark)

    edit_program(members, change)


def guard(members: Members, mark: Path) -> None:
    edit_program(members, lambda program: program["guards_code"].append(f"not {code(mark)}"))


def guard_of_a_text_input(members: Members, mark: Path) -> None:
    """A text as an input: torch writes it between quotes in the code of a guard."""

    def change(program: Any) -> None:
        breakout = f"' or {code(mark)} or 'x"
        module = program["graph_module"]
        module["graph"]["inputs"].append({"as_string": breakout})
        spec = {"name": "extra", "value": {"as_string": breakout}}
        module["signature"]["input_specs"].append({"constant_input": spec})
        signature = module["module_call_graph"][0]["signature"]
        leaf = {"type": None, "context": None, "children_spec": []}
        tree = json.loads(signature["in_spec"])
        tree[1]["children_spec"][0]["children_spec"].append(leaf)
        signature.update(in_spec=json.dumps(tree), forward_arg_names=["input", "extra"])

    edit_program(members, change)
    members["data/sample_inputs/model.pt"] = torch_saved(((torch.zeros(1), "x"), {}))


def add_operation(members: Members, target: str, arguments: Mapping[str, Any]) -> None:
    """Make an operation the first that a network runs."""

    def change(program: Any) -> None:
        graph = program["graph_module"]["graph"]
        inputs = [{"name": name, "arg": value, "kind": 1} for name, value in arguments.items()]
        output = {"as_tensor": {"name": "added"}}
        node = {"target": target, "inputs": inputs, "outputs": [output], "metadata": {}}
        graph["nodes"].insert(0, node)
        graph["tensor_values"]["added"] = graph["tensor_values"]["p_0_bias"]

    edit_program(members, change)


def operation_of_python(members: Members, mark: Path) -> None:
    """An operation may be any function inside torch's modules, also one of `os`."""
    add_operation(members, "torch.os.mkdir", {"": {"as_string": str(mark)}})


def operation_with_files(members: Members, mark: Path) -> None:
    """`torch.from_file` creates a file, or overwrites one."""
    filename, shared, size = {"as_string": str(mark)}, {"as_bool": True}, {"as_int": 1}
    arguments = {"filename": filename, "shared": shared, "size": size}
    add_operation(members, "torch.ops.aten.from_file.default", arguments)


def name_of_an_input(members: Members, mark: Path) -> None:
    """torch writes the names of inputs into the header of a function, in Python source."""
    breakout = json.dumps(f"input={code(mark)}")
    rename(members, '{"name": "input"}', f'{{"name": {breakout}}}')
    rename(members, '"input": {"dtype"', f'{breakout}: {{"dtype"')


def name_of_a_weight(members: Members, mark: Path) -> None:
    """torch writes the names of weights into Python source, between quotes."""
    without_dots = code(mark).replace(".", "\\x2e")  # a dot would begin the name of a submodule
    breakout = f'0", exec("{without_dots}") or ".weight'
    rename(members, json.dumps("0.weight"), json.dumps(breakout))
    members[WEIGHTS] = members[WEIGHTS].replace(b'"0.weight"', json.dumps(breakout).encode())


def module_of_a_tree(members: Members, mark: Path) -> None:
    """torch imports the module of an enumeration in a dictionary's keys."""
    (mark.parent / "marking_module.py").write_text(code(mark))

    def change(program: Any) -> None:
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        tree = json.loads(signature["in_spec"])
        key = {"__enum__": True, "fqn": "marking_module:Key", "name": "A"}
        tree[1]["children_spec"][1]["context"] = json.dumps([key])
        signature["in_spec"] = json.dumps(tree)

    edit_program(members, change)


def compiled_library(members: Members, mark: Path) -> None:
    """AOTInductor's shared libraries lie in the archive, and torch loads them."""
    members["data/aotinductor/model/net.so"] = b"\x7fELF"


def older_weights(members: Members, mark: Path) -> None:
    """torch 2.8 pickled all weights together, and later releases still read them."""
    members["data/weights/model.pt"] = torch_saved({"0.weight": Payload(mark)})


def outside_the_archive(members: Members, mark: Path) -> None:
    members["../../escaped"] = b""
