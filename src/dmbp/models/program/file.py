"""Reads a `.pt2` file as data, so that a program from anyone can be opened.

`torch.export.load` runs code that a file contains: it unpickles the example inputs, weights and
constants, and evaluates texts of the JSON files (`values.py` says which). Here, the file is
read without it:

1. The archive may hold only the members that `torch.export.save` writes, uncompressed.
2. The JSON files are checked value by value, and torch gets what was built from the checked values.
3. Weights are raw numbers. The files of torch 2.6 to 2.8 hold them in a pickle of tensors, which is
   read as `--weights` are, with `weights_only=True`.
4. The example inputs, which are pickled, are never read.

    load_program(Path("net.pt2"))
    load_program(Path("net.pt2"), trust=True)   # torch.export.load, which may run code

Every byte is read once, so that the file cannot change between the check and the use.
"""

import json
import re
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import ExportedProgram

from dmbp.errors import ModelError
from dmbp.models.program.schema import DTYPES, PROGRAM, Check, mapping, payloads
from dmbp.models.program.values import Refused, module_path
from dmbp.process import silence_output

_MOST_MEMBERS = 100_000
_LARGEST_JSON = 2**26  # 64 MiB; a vision transformer's is below one
_MOST_REPEATED = 2**24  # elements of a weight that repeats fewer stored ones by a stride of zero

_NEVER_READ = re.compile(
    r"archive_format|version|byteorder|\.data/.*|\.format_version|\.storage_alignment|"
    r"data/sample_inputs/.*|extra/.*|serialized_example_inputs\.pt|extra_files/.*"
)
_READ = re.compile(
    r"archive_version|models/model\.json|data/(weights|constants)/model\.pt|"
    r"data/weights/(model_weights_config\.json|weight_[0-9]+)|"
    r"data/constants/(model_constants_config\.json|tensor_[0-9]+)|"
    r"serialized_exported_program\.json|serialized_(state_dict|constants)\.pt"
)


def load_program(path: Path, *, trust: bool = False) -> ExportedProgram:
    """Load the program in a `.pt2` file.

    Args:
        path: The file.
        trust: Load the file with `torch.export.load`, which runs any code in it.

    Returns:
        The program. Without `trust`, it has no example inputs and no traces of its source code.

    Raises:
        ModelError: If the file is damaged, or holds something that is not known to be data.
    """
    try:
        with silence_output():  # torch logs remarks about the format
            return torch.export.load(path) if trust else _read_program(path)
    except Refused as refused:
        raise not_opened(path, str(refused)) from refused
    except ModelError:
        raise
    except Exception as error:  # the readers raise almost anything for a foreign file
        raise ModelError(
            f"{path} is damaged, or not a program that torch.export.save wrote"
        ) from error


def not_opened(path: Path, reason: str) -> ModelError:
    """Return the error for a file that is opened only if its maker is trusted."""
    return ModelError(
        f"{path} is not opened, because {reason}; if you trust whoever made the file, "
        "--trust-model-file (trust_model_file=True in Python) lets torch load it and run the "
        "code in it"
    )


def _read_program(path: Path) -> ExportedProgram:
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = _Members.of(archive, file_size=path.stat().st_size)
        if "serialized_exported_program.json" in members.by_name:  # torch 2.6 and 2.7
            program = members.json("serialized_exported_program.json", PROGRAM)
            weights = members.pickled_tensors("serialized_state_dict.pt")
            constants = members.pickled_tensors("serialized_constants.pt")
        else:
            if "archive_version" in members.by_name and members.read("archive_version") != b"0":
                raise Refused("archive_version is not 0")
            program = members.json("models/model.json", PROGRAM)
            weights = members.tensors("weights", "weight_[0-9]+")
            constants = members.tensors("constants", "tensor_[0-9]+")
    return _deserialise(program, weights, constants)


def _deserialise(
    program: Any, weights: Mapping[str, Tensor], constants: Mapping[str, Tensor]
) -> ExportedProgram:
    try:
        from torch._export.serde.serialize import SerializedArtifact, deserialize
    except ImportError as error:
        raise Refused(f"torch {torch.__version__} reads programs in a way unknown here") from error
    # Guards are written in terms of the example inputs' structure, not of their values.
    spec = pytree.treespec_loads(
        program["graph_module"]["module_call_graph"][0]["signature"]["in_spec"]
    )
    examples = pytree.tree_unflatten([torch.empty(0)] * spec.num_leaves, spec)
    content = json.dumps(program, allow_nan=False).encode()
    # The types of the fields say bytes, but every release since 2.6 takes what bytes would become.
    return deserialize(SerializedArtifact(content, weights, constants, examples))  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class _Members:
    """The members of an archive that are read, without the folder that holds all of them."""

    archive: zipfile.ZipFile
    by_name: Mapping[str, zipfile.ZipInfo]

    @classmethod
    def of(cls, archive: zipfile.ZipFile, *, file_size: int) -> "_Members":
        """Return the members of an archive in which nothing is unknown, compressed or repeated."""
        infos = archive.infolist()
        if len(infos) > _MOST_MEMBERS or sum(info.file_size for info in infos) > file_size:
            raise Refused(f"declares {len(infos)} members that are larger than the file")
        legacy = any(info.filename == "serialized_exported_program.json" for info in infos)
        by_name: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            name = info.filename if legacy else info.filename.partition("/")[2]
            if not (_READ.fullmatch(name) or _NEVER_READ.fullmatch(name)):
                raise Refused(f"holds {info.filename!r}, which is not a part of a plain program")
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise Refused(f"holds {info.filename!r} compressed or encrypted")
            if name in by_name:
                raise Refused(f"holds {name!r} twice")
            by_name[name] = info
        return cls(archive, by_name)

    def read(self, name: str) -> bytes:
        """Return a member's bytes."""
        return self.archive.read(self.by_name[name])

    def json(self, name: str, check: Check) -> Any:
        """Return what the check builds from a JSON file."""
        if self.by_name[name].file_size > _LARGEST_JSON:
            raise Refused(f"holds {name!r} of {self.by_name[name].file_size} bytes")
        return check(json.loads(self.read(name)))

    def pickled_tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors in a member that `torch.save` wrote."""
        pickled = self.read(name)
        if not pickled:
            return {}
        with zipfile.ZipFile(BytesIO(pickled)) as inner:
            if any(info.compress_type != zipfile.ZIP_STORED for info in inner.infolist()):
                raise Refused(f"holds {name!r} compressed")
        try:
            tensors: Any = torch.load(BytesIO(pickled), map_location="cpu", weights_only=True)
        except Exception as error:
            raise Refused(f"holds Python objects in {name!r}, not only tensors") from error
        content = dict(tensors) if isinstance(tensors, OrderedDict) else tensors
        return mapping(module_path, _plain_tensor)(content)

    def tensors(self, kind: str, file_name: str) -> dict[str, Tensor]:
        """Return the weights or constants by name. Those that shared memory still do."""
        legacy = f"data/{kind}/model.pt"
        if legacy in self.by_name:  # torch 2.8
            return self.pickled_tensors(legacy)
        config = self.json(f"data/{kind}/model_{kind}_config.json", payloads(file_name))["config"]
        stored: dict[str, Tensor] = {}
        for payload in config.values():
            if payload["path_name"] not in stored:
                member = self.by_name[f"data/{kind}/{payload['path_name']}"]
                stored[payload["path_name"]] = self._stored_bytes(member)
        return {
            name: _tensor(payload, stored[payload["path_name"]], name)
            for name, payload in config.items()
        }

    def _stored_bytes(self, member: zipfile.ZipInfo) -> Tensor:
        content = numpy.frombuffer(self.archive.read(member), numpy.uint8)
        stored = torch.empty(len(content), dtype=torch.uint8)  # aligned, as weights always are
        stored.numpy()[:] = content
        return stored


def _plain_tensor(value: Any) -> Tensor:
    if type(value) not in (Tensor, nn.Parameter) or value.layout != torch.strided:
        raise Refused("is not a plain tensor")
    return value


def _tensor(payload: Any, content: Tensor, name: str) -> Tensor:
    meta = payload["tensor_meta"]
    dtype = DTYPES[meta["dtype"]]
    sizes = [size["as_int"] for size in meta["sizes"]]
    strides = [stride["as_int"] for stride in meta["strides"]]
    offset = meta["storage_offset"]["as_int"]
    if len(sizes) != len(strides) or min([offset, *sizes, *strides]) < 0:
        raise Refused(f"gives {name!r} an impossible shape")
    available = len(content) // dtype.itemsize
    elements = 1
    for size in sizes:
        elements *= size
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if elements and (last >= available or elements > max(available, _MOST_REPEATED)):
        raise Refused(f"gives {name!r} a shape for which the file has too few numbers")
    flat = content[: available * dtype.itemsize].view(dtype)
    tensor = torch.as_strided(flat, sizes, strides, offset) if elements else flat.new_empty(sizes)
    tensor = _on_device(tensor, meta["device"], name)
    return (
        nn.Parameter(tensor, requires_grad=meta["requires_grad"]) if payload["is_param"] else tensor
    )


def _on_device(tensor: Tensor, device: Any, name: str) -> Tensor:
    if device["type"] == "cpu":
        return tensor
    try:
        return tensor.to(torch.device(device["type"], device.get("index") or 0))
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"the program has {name!r} on {device['type']}, which is not available here; export "
            "the model on the CPU"
        ) from error
