"""Loads weights from a file into a module, or raises an error that says why they do not fit."""

import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dmbp.errors import WeightsError
from dmbp.files import check_file
from dmbp.models.torchscript_file import is_torchscript
from dmbp.process import silence_output

StateDict = Mapping[str, Tensor]

_PREFIXES = ("module.", "_orig_mod.", "model.")  # DataParallel's, torch.compile's, Lightning's
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "network", "weights")


def read_state_dict(path: Path) -> StateDict:
    """Read the tensors of a `.safetensors` file or of a `torch.save` file.

    The wrappers of checkpoints and the prefixes of DataParallel, torch.compile and Lightning are
    removed. No code in the file is executed.

    Raises:
        WeightsError: If there is no such file, or it does not hold a state dict.
    """
    check_file(path, what="weights file", error=WeightsError)
    if is_torchscript(path):
        raise _not_weights(path)
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            _check_not_compressed(path)
            with silence_output():  # torch warns about a file that has no weights
                content = torch.load(path, map_location="cpu", weights_only=True)
    except WeightsError:
        raise
    except Exception as error:  # the readers raise almost anything for a foreign file
        if "TorchScript" in str(error):
            raise _not_weights(path) from error
        if not isinstance(error, pickle.UnpicklingError) or "GLOBAL" not in str(error):
            raise WeightsError(f"{path} is not a file of weights that can be read") from error
        raise WeightsError(
            f"{path} holds Python objects, not only weights; save it again with "
            "torch.save(model.state_dict(), ...)"
        ) from error
    return _unwrap(content, path)


def _not_weights(path: Path) -> WeightsError:
    return WeightsError(
        f"{path} is a TorchScript program, not a file of weights; explain it with --model {path}, "
        "or save the weights with torch.save(model.state_dict(), ...)"
    )


def _check_not_compressed(path: Path) -> None:
    """Raise a `WeightsError` for an archive that unpacks to more than its own size.

    `torch.save` does not compress, but `torch.load` unpacks: megabytes may become gigabytes.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > path.stat().st_size:
        raise WeightsError(
            f"{path} is a compressed archive that unpacks to {unpacked:,} bytes; save the weights "
            "with torch.save, which does not compress"
        )


def _unwrap(content: Any, path: Path) -> StateDict:
    """Return the state dict inside a checkpoint, without the prefix that a wrapper leaves."""
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        raise WeightsError(f"{path} holds no state dict (a mapping of names to tensors)")
    state = {str(key): value for key, value in content.items()}
    while prefix := next(
        (p for p in _PREFIXES if state and all(k.startswith(p) for k in state)), ""
    ):
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    _check_dense(state, path)
    return state


UNUSABLE: Mapping[str, Callable[[Tensor], bool]] = {
    "is a nested tensor": lambda tensor: tensor.is_nested,
    "is quantised": lambda tensor: tensor.is_quantized,
    "is on the meta device and has no data": lambda tensor: tensor.is_meta,
    "is a sparse tensor": lambda tensor: tensor.layout is not torch.strided,
    "has complex numbers": lambda tensor: tensor.is_complex(),
}
"""Tensors that cannot be a model's weights here, by what is said about them."""


def _check_dense(state: StateDict, path: Path) -> None:
    for key, tensor in state.items():
        found = next((words for words, is_kind in UNUSABLE.items() if is_kind(tensor)), None)
        if found is not None:
            raise WeightsError(
                f"{path} cannot be used: {key!r} {found}; save the model with dense floating-point "
                "weights"
            )


def load_state_dict(
    module: nn.Module, state: StateDict, source: str, *, optional: tuple[str, ...] = ()
) -> None:
    """Load weights into a module; every key must match unless it has an `optional` prefix.

    Raises:
        WeightsError: If keys are missing or unexpected, or a tensor has another shape. `source`
            names the weights in the message.
    """
    expected = module.state_dict()
    state = extract_state_dict(module, state, optional=optional)
    missing = [k for k in expected if k not in state and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in state if k not in expected and not k.endswith("num_batches_tracked")]
    missing = [k for k in missing if not k.startswith(optional)] if optional else missing
    unexpected = [k for k in unexpected if not k.startswith(optional)] if optional else unexpected
    if missing or unexpected:
        raise WeightsError(f"{source} does not fit the model: {_difference(missing, unexpected)}")
    for key in expected:
        if key in state and expected[key].shape != state[key].shape:
            raise WeightsError(
                f"{source} does not fit the model: {key!r} is {tuple(state[key].shape)} in the "
                f"file and {tuple(expected[key].shape)} in the model"
            )
    # Files often hold half precision; the module computes in the dtype it was created with.
    matching = {k: v.to(expected[k].dtype) for k, v in state.items() if k in expected}
    module.load_state_dict(matching, strict=False)


def extract_state_dict(
    module: nn.Module, state: StateDict, *, optional: tuple[str, ...] = ()
) -> StateDict:
    """Return a module's weights from those of a larger model, such as all keys under `net.`.

    This requires that exactly one prefix has every key of the module, apart from keys with an
    `optional` prefix; otherwise `state` is returned unchanged.
    """
    required = [key for key in module.state_dict() if not key.endswith("num_batches_tracked")]
    required = [key for key in required if not any(map(key.startswith, optional))]
    if not required or required[0] in state:
        return state
    prefixes = [key.removesuffix(required[0]) for key in state if key.endswith(f".{required[0]}")]
    complete = [prefix for prefix in prefixes if all(prefix + key in state for key in required)]
    if len(complete) != 1:
        return state
    (prefix,) = complete
    return {key.removeprefix(prefix): v for key, v in state.items() if key.startswith(prefix)}


def _difference(missing: list[str], unexpected: list[str]) -> str:
    parts: list[str] = []
    if missing:
        parts.append(f"{len(missing)} keys are missing, first {missing[0]!r}")
    if unexpected:
        parts.append(f"{len(unexpected)} are unexpected, first {unexpected[0]!r}")
        parts.append("give your own network with --model my_module:make_model")
    return "; ".join(parts)
