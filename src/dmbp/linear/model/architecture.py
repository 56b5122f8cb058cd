"""What a model computes, as text without its weights, so that a captured graph finds its model.

The text lists every submodule with its class, all its attributes and the source code of classes
that are not a known library's, and the versions of the libraries. It errs on the side of differing:
a model that has anything of which the meaning is not in the text is `Indescribable`.

    >>> list(described(nn.LeakyReLU(0.1)))[0]
    "'' torch.nn.modules.activation.LeakyReLU {'negative_slope': 0.1, 'inplace': False}"
"""

import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

LIBRARIES = ("builtins", "torch", "torchvision", "timm", "transformers", "dmbp")
"""Packages whose classes are identified by name; other classes also by their source code."""

OF_EVERY_MODULE = frozenset(vars(nn.Module()))

HOOKS = tuple(name for name in OF_EVERY_MODULE if name.endswith("_hooks"))

PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.memory_format)

LARGEST_TENSOR = 2**20
"""The most bytes of a tensor that is neither a parameter nor a buffer."""

DEEPEST = 6
"""How far attributes of attributes are followed."""


class Indescribable(Exception):
    """What a model computes is not known from its classes and attributes."""


def described(model: nn.Module) -> Iterator[str]:
    """Yield lines that are the same only for models that compute the same with their weights.

    Raises:
        Indescribable: If that is not known.
    """
    modules = list(model.named_modules())
    known = {id(part): path for path, part in modules}
    sources = _Sources()
    for path, part in modules:
        if isinstance(part, torch.jit.ScriptModule) or any(vars(part).get(k) for k in HOOKS):
            raise Indescribable(f"{path} has hooks, or is TorchScript")
        attributes = {
            name: _described(value, known, sources, 0)
            for name, value in vars(part).items()
            if name not in OF_EVERY_MODULE
        }
        yield f"{path!r} {sources.name_of(type(part))} {attributes}".replace("\n", " ")
        if "<locals>" in type(part).__qualname__:  # its functions may hold anything
            yield f"{path!r} {_described_methods(type(part), known, sources)}"
        tensors = {**part._parameters, **part._buffers}
        forms = {k: v if v is None else (v.dtype, tuple(v.shape)) for k, v in tensors.items()}
        yield f"{path!r} {forms} {[*part._modules]}"
        if isinstance(part, GraphModule):
            yield part.code
    yield from sources.digests()


@dataclass
class _Sources:
    """The libraries and source files of the classes and functions that were named."""

    files: set[Path] = field(default_factory=set[Path])
    libraries: set[str] = field(default_factory=set[str])

    def name_of(self, thing: Any) -> str:
        """Return the name of a class or function, and remember where its code is."""
        module = str(getattr(thing, "__module__", None) or "builtins")
        if isinstance(thing, type) and not issubclass(thing, GraphModule):
            for base in thing.__mro__:
                self._add(base.__module__)
        elif not isinstance(thing, type):
            self._add(module)
        return f"{module}.{getattr(thing, '__qualname__', type(thing).__qualname__)}"

    def _add(self, name: str) -> None:
        """Remember a Python module, and the user's own modules that it uses."""
        top = name.partition(".")[0]
        if top in LIBRARIES:
            self.libraries.add(top)
            return
        if top in sys.stdlib_module_names and top != "__main__":
            return
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None)
        if module is None or file is None:
            raise Indescribable(f"the source code of {name} is not known")
        if Path(file) in self.files:
            return
        self.files.add(Path(file))
        if _is_installed(Path(file)):
            return
        for value in list(vars(module).values()):
            used = value.__name__ if isinstance(value, types.ModuleType) else None
            used = used or getattr(value, "__module__", None)
            file = getattr(sys.modules.get(str(used)), "__file__", None)
            if file is not None and not _is_installed(Path(file)):
                self._add(str(used))

    def digests(self) -> Iterator[str]:
        """Yield the versions of libraries and the digests of source files."""
        for name in sorted(self.libraries - {"builtins"}):
            yield f"{name} {getattr(sys.modules.get(name), '__version__', None)}"
        for path in sorted(self.files):
            try:
                yield f"{path.name} {sha256(path.read_bytes()).hexdigest()}"
            except OSError as error:
                raise Indescribable(f"the source code in {path} is not known") from error


def _described_methods(kind: type, known: Mapping[int, str], sources: _Sources) -> dict[str, Any]:
    """Return the methods of a class that was defined inside a function."""
    methods = {k: v for k, v in vars(kind).items() if isinstance(v, types.FunctionType)}
    known = {**known, id(kind): kind.__qualname__}  # `super()` holds the class itself
    return {name: _described(method, known, sources, 0) for name, method in methods.items()}


@cache
def _is_installed(path: Path) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return any(path.is_relative_to(folder) for folder in folders)


def _described(value: Any, known: Mapping[int, str], sources: _Sources, depth: int) -> Any:
    """Return an attribute as something whose text says what it is."""

    def inner(part: Any) -> Any:
        return _described(part, known, sources, depth + 1)

    if value is None or isinstance(value, PLAIN):
        return value
    if depth > DEEPEST:
        raise Indescribable("an attribute has attributes without end")
    if isinstance(value, nn.Module):
        if id(value) not in known:
            raise Indescribable("a module is hidden in an attribute")
        return f"<module {known[id(value)]!r}>"
    if isinstance(value, Tensor):
        return _described_tensor(value)
    if isinstance(value, Enum):
        return f"{sources.name_of(type(value))}.{value.name}"
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(inner(key)): inner(part) for key, part in items}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *(inner(part) for part in cast("list[Any]", value))]
    if isinstance(value, set | frozenset):
        return sorted(str(inner(part)) for part in cast("set[Any]", value))
    if isinstance(value, partial):
        return ["partial", inner(value.func), inner(value.args), inner(value.keywords)]
    if isinstance(value, types.MethodType):
        return ["method", inner(value.__func__), inner(value.__self__)]
    if isinstance(value, types.FunctionType):
        return _described_function(value, inner, sources)
    if isinstance(value, type | types.BuiltinFunctionType):
        return sources.name_of(value)
    return _described_object(value, inner, sources)


def _described_function(function: types.FunctionType, inner: Any, sources: _Sources) -> list[Any]:
    """Return a function's name, its code, and the values that it holds."""
    cells = [inner(cell.cell_contents) for cell in function.__closure__ or ()]
    defaults = inner([function.__defaults__, function.__kwdefaults__])
    return [sources.name_of(function), _described_code(function.__code__), cells, defaults]


def _described_code(code: types.CodeType) -> list[Any]:
    constants = [
        _described_code(constant) if isinstance(constant, types.CodeType) else repr(constant)
        for constant in code.co_consts
    ]
    return [code.co_code.hex(), code.co_names, code.co_freevars, constants]


def _described_tensor(value: Tensor) -> str:
    if value.nbytes > LARGEST_TENSOR or value.is_meta or value.layout is not torch.strided:
        raise Indescribable("an attribute is a large or special tensor")
    content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{value.dtype} {tuple(value.shape)} {sha256(content).hexdigest()}"


def _described_object(value: Any, inner: Any, sources: _Sources) -> Any:
    """Return the class and the attributes of any other object."""
    if not hasattr(value, "__dict__"):
        raise Indescribable(f"an attribute is a {type(value).__name__}")
    return [sources.name_of(type(value)), inner(dict(vars(value)))]
