"""A digest of a network, by which its results are recognised.

Two networks have the same digest if they have the same submodules, settings, source code and
weights, whichever machine loaded them.

    >>> module_digest(nn.ReLU()) == module_digest(nn.ReLU())
    True
    >>> module_digest(nn.ReLU()) == module_digest(nn.GELU())
    False
"""

import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from dmbp.linear.model.architecture import LIBRARIES


def module_digest(module: nn.Module) -> str:
    """Return a digest of a module's tensors and of its architecture."""
    digest = hashlib.sha256()
    for line in _architecture(module):
        digest.update(line.encode())
    for name, tensor in sorted(_tensors(module).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of a module: state dict, non-persistent buffers, plain attributes."""
    tensors: dict[str, Tensor] = {**module.state_dict(), **dict(module.named_buffers())}
    for name, part in module.named_modules():
        tensors |= {f"{name}.{k}": v for k, v in vars(part).items() if isinstance(v, Tensor)}
    return tensors


DIGESTED_NAMES: Mapping[str, str] = {
    "dmbp.linear.model.wrappers.OneAtATime": "dmbp.linear.one_at_a_time.OneAtATime",
    "dmbp.models.exported_program.ChannelsLast": "dmbp.models.input_form.ChannelsLast",
    "dmbp.models.onnx.graph.OnnxModule": "dmbp.models.onnx_files.module.OnnxModule",
    "dmbp.models.onnx.graph.OnnxNodeModule": "dmbp.models.onnx_files.module.Operation",
    "dmbp.models.voc160.ResidualBlock": "dmbp.models.small_resnet.ResidualBlock",
    "dmbp.models.voc160.SmallResNet": "dmbp.models.small_resnet.SmallResNet",
}
"""Names under which dmbp's modules were first digested. They keep these names in digests, so that
results of earlier versions are found."""


def _class_name(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    return DIGESTED_NAMES.get(name, name)


def _architecture(module: nn.Module) -> Iterator[str]:
    """Yield every submodule's name, class and settings, and the source of a user's classes."""
    for name, part in module.named_modules():
        kind = type(part)
        yield f"{name} {_class_name(kind)} {_settings(part)}"
        if isinstance(part, GraphModule):
            yield part.code
        for base in kind.__mro__:
            if base.__module__.split(".")[0] not in LIBRARIES:
                with suppress(OSError, TypeError):  # defined interactively, without a file
                    yield inspect.getsource(base)


PLAIN = (bool, int, float, str, torch.dtype)
"""Types of attributes that count as settings, also in lists and tuples."""

_ATTRIBUTES_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def _settings(module: nn.Module) -> list[tuple[str, str]]:
    """Return a module's plain attributes; its `repr` would change with torch's versions."""
    library = type(module).__module__.split(".")[0] in LIBRARIES
    return sorted(
        (name, repr(value))
        for name, value in vars(module).items()
        if name not in _ATTRIBUTES_OF_EVERY_MODULE
        and not (library and name.startswith("_"))
        and _is_plain(value)
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in cast("Sequence[Any]", value))
    return value is None or isinstance(value, PLAIN)
