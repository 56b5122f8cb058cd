"""A pretend accelerator: tensors on the CPU that behave as if they were on a device of type "mps".

    >>> with PretendDevice() as device:
    ...     model, images = device.move(model), device.move(images)
    ...     maps = dmbp.DMBP(model).attribute(images, target=3)

Inside, whatever is computed from a tensor on the device is on the device, too, until it is copied
to the CPU. A tensor on the device reports `mps:0` as its device, and whatever real hardware of that
kind refuses is a `DeviceError`: a tensor of 64-bit floating or complex numbers, an operation on
tensors of both devices, a kernel that only CPUs have, NumPy, and drawing random numbers with a
generator of the CPU.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("mps:0")
CPU = torch.device("cpu")

REFUSED_DTYPES = (torch.float64, torch.complex128)
CPU_ONLY = ("mkldnn", "onednn", "quantized", "fbgemm", "nnpack", "cudnn", "triton")
"""Parts of the names of operations that Apple's GPUs do not have."""

BOTH_DEVICES = ("aten.copy_", "aten._to_copy", "aten.index", "aten._unsafe_index", "aten.set_")
"""The first parts of the names of operations that take tensors of both devices."""

Moved = TypeVar("Moved", Tensor, nn.Module)


class DeviceError(AssertionError):
    """Something that a device of this type refuses."""


class Marks:
    """Which storages are on the device; a storage stands for all tensors that share it."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}

    def add(self, value: Any) -> None:
        for tensor in tensors_in(value):
            storage = tensor.untyped_storage()
            self._storages[storage._cdata] = StorageWeakRef(storage)

    def __contains__(self, tensor: Any) -> bool:
        if not is_plain(tensor):
            return False
        return tensor.untyped_storage()._cdata in self._storages


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor with numbers, and not one that `torch.export` traces with."""
    return type(value) in (Tensor, nn.Parameter, nn.Buffer) and (
        value.device.type == "cpu" and value.layout == torch.strided
    )


def tensors_in(value: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(value) if is_plain(leaf))


class _Operations(TorchDispatchMode):
    """Passes marks on from arguments to results, below autograd, and refuses what cannot be."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks = marks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            given = list(tensors_in((args, kwargs)))
            on_device = [tensor for tensor in given if tensor in self.marks]
            if on_device:
                self._check_arguments(str(func), given, on_device)
            result = func(*args, **(kwargs or {}))
            if not given and str(func).startswith("aten.zeros.") and in_backward():
                self.marks.add(result)  # autograd's own, in place of a gradient that is not there
            if on_device:
                for tensor in tensors_in(result):
                    if tensor.dtype in REFUSED_DTYPES:
                        raise DeviceError(f"{func} makes a tensor of {tensor.dtype} on the device")
                if not str(func).startswith("aten.copy_") or args[0] in self.marks:
                    self.marks.add(result)
            return result

    def _check_arguments(self, name: str, given: list[Tensor], on_device: list[Tensor]) -> None:
        if any(part in name for part in CPU_ONLY):
            raise DeviceError(f"{name} exists on CPUs only")
        if name.startswith(BOTH_DEVICES):
            return
        others = [t for t in given if t.dim() and not any(t is other for other in on_device)]
        if others:
            shapes = [tuple(other.shape) for other in others]
            raise DeviceError(f"{name} takes tensors of both devices; on the CPU: {shapes}")


class _Calls(TorchFunctionMode):
    """Answers what is asked about devices, and carries out moves between them."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self.marks = marks

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            on_device = bool(args) and args[0] in self.marks
            if getattr(func, "__self__", None) is Tensor.device:
                return DEVICE if on_device else func(*args, **kwargs)
            if func is Tensor.numpy and on_device:
                raise DeviceError("a tensor on the device has no NumPy array")
            if func is Tensor.cpu:
                return self._copied(func, args, kwargs) if on_device else func(*args, **kwargs)
            if func is Tensor.to:
                return self._to(args, kwargs, on_device)
            if func in (Tensor.__deepcopy__, Tensor.new_tensor) and on_device:
                result = func(*args, **kwargs)
                self.marks.add(result)
                return result
            names_device = any(is_device(value) for value in (*args, *kwargs.values()))
            if names_device and func not in (torch._C._nn._parse_to, torch.device):
                return self._created(func, args, kwargs)
        return func(*args, **kwargs)

    def _to(self, args: Any, kwargs: Any, on_device: bool) -> Any:
        """Carry out `Tensor.to`, with a device, a dtype or another tensor."""
        named = [v for v in (*args[1:], *kwargs.values()) if isinstance(v, torch.device | str)]
        like = [value for value in args[1:] if isinstance(value, Tensor)]
        target = on_device
        if named:
            target = torch.device(named[0]).type == DEVICE.type
        elif like:
            target = like[0] in self.marks
        args, kwargs = tree_map(_on_cpu, (args, kwargs))
        if target == on_device:
            return torch.Tensor.to(*args, **kwargs)
        result = self._copied(Tensor.to, args, kwargs)
        if target:
            if result.dtype in REFUSED_DTYPES:
                raise DeviceError(f"a tensor of {result.dtype} is moved to the device")
            self.marks.add(result)
        return result

    def _copied(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Return a copy that is on the CPU; autograd still sees it."""
        result = func(*args, **kwargs)
        with torch.utils._python_dispatch._disable_current_modes():
            return torch.clone(result)

    def _created(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return what a function creates on the device."""
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != DEVICE.type:
            raise DeviceError(f"{func} draws on the device with a generator of the CPU")
        args, kwargs = tree_map(_on_cpu, (args, kwargs))
        result = func(*args, **kwargs)
        for tensor in tensors_in(result):
            if tensor.dtype in REFUSED_DTYPES:
                raise DeviceError(f"{func} makes a tensor of {tensor.dtype} on the device")
        self.marks.add(result)
        return result


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def is_device(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == DEVICE.type
    return isinstance(value, str) and value in (DEVICE.type, str(DEVICE))


def _on_cpu(value: Any) -> Any:
    return CPU if is_device(value) else value


class PretendDevice:
    """A context in which `move` puts models and tensors on the pretend device."""

    marks = Marks()  # one for all contexts: dmbp keeps some constants of a device between calls

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> "PretendDevice":
        self._stack.enter_context(_Calls(self.marks))
        self._stack.enter_context(_Operations(self.marks))
        for name in ("synchronize", "empty_cache"):
            self._stack.enter_context(patch.object(torch.mps, name, lambda: None))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def move(self, moved: Moved) -> Moved:
        """Put a model or a tensor on the device."""
        return moved.to(DEVICE)

    def __contains__(self, tensor: Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            return tensor in self.marks
