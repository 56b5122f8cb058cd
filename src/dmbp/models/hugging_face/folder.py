"""Finds and reads a folder that `save_pretrained` wrote: its config, weights and processors.

Of a model on the hub, only the files that such a folder has are downloaded. No code from either is
run: `config.json` must name an architecture of `transformers` itself, and weights are tensors,
preferably in safetensors files.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dmbp.errors import ModelError, WeightsError, first_line
from dmbp.files import check_file, is_folder, is_missing, shown
from dmbp.models.hugging_face.tasks import ModelTask
from dmbp.models.state_dict import StateDict, read_state_dict
from dmbp.models.text_files import read_json
from dmbp.models.torchvision_models import import_torchvision
from dmbp.process import silence_logging, silence_output

PREFIX = "hf"

SETTINGS = ("config.json", "preprocessor_config.json", "processor_config.json")
SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")

MOST_TOKENIZER_BYTES = 2**27
"""The largest file of a tokenizer; those for a hundred languages have 2**24 bytes."""


def is_model_folder(name: str) -> bool:
    """Return whether a name is the path of a folder that `save_pretrained` wrote."""
    return is_folder(Path(name)) and not is_missing(Path(name) / "config.json")


def import_transformers(what: str) -> Any:
    """Return the package `transformers`, which `what` needs.

    Raises:
        ModelError: If it is not installed.
    """
    with suppress(ImportError):
        import_torchvision()  # transformers' import of it would fail with a CPU build of torch
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{what} needs the extra transformers: pip install dmbp[transformers]"
        ) from error
    return transformers


def is_path(name: str) -> bool:
    """Return whether a name is a folder's, which it also is if it cannot be one on the hub."""
    return is_folder(Path(name)) or name.startswith((".", "/", "~")) or name.count("/") > 1


def download(name: str) -> Path:
    """Download a model's files, or find them where they were downloaded before."""
    from huggingface_hub import snapshot_download

    try:
        with silence_logging(), silence_output():
            folder = Path(
                snapshot_download(name, allow_patterns=[*SETTINGS, *TOKENIZER, *SAFE_WEIGHTS])
            )
            if not any(folder.glob("*.safetensors")):
                snapshot_download(name, allow_patterns=[*SETTINGS, *PICKLED_WEIGHTS])
    except Exception as error:  # from the hub or the network, or a name that cannot be one
        why = next((words for kind, words in HUB_ERRORS.items() if _is_kind(error, kind)), None)
        raise ModelError(
            f"cannot download {shown(name)!r} from the Hugging Face hub: {why or _reason(error)}; "
            f"give the name of a model there, or a folder, {PREFIX}:./a-folder"
        ) from error
    return folder


HUB_ERRORS: Mapping[str, str] = {
    "GatedRepoError": "its conditions have to be accepted there first",
    "RepositoryNotFoundError": "there is no such model, or it is private",
    "HFValidationError": "that is not a name of a model",
    "LocalEntryNotFoundError": "it cannot be reached, and the model was not downloaded before",
}
"""What the hub's exceptions mean, by the names of their classes."""


def _is_kind(error: Exception, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(error).__mro__)


def read_config(transformers: Any, folder: Path, name: str) -> Any:
    """Return the config of a model, after checking that it needs no code but transformers'."""
    table = read_json(folder / "config.json")
    if "pretrained_cfg" in table:
        raise ModelError(
            f"{shown(name)} is a model of timm: give its architecture, timm:"
            f"{shown(str(table.get('architecture', 'NAME')))}, and its file with --weights"
        )
    if "quantization_config" in table:
        raise ModelError(
            f"{shown(name)} is quantised: give the floating-point model it was made from"
        )
    try:
        with silence_logging(), silence_output():
            if _has_backbone_by_name(table):
                kind: Any = transformers.CONFIG_MAPPING[table["model_type"]]
                config = kind.from_dict(_with_described_backbone(table))
            else:
                config = transformers.AutoConfig.from_pretrained(
                    str(folder), trust_remote_code=False, local_files_only=True
                )
    except Exception as error:  # transformers raises almost anything for a foreign file
        kind = shown(str(table.get("model_type")))
        own = " (it has code of its own, which is not run)" if "auto_map" in table else ""
        raise ModelError(
            f"{shown(name)} is not a model of the installed transformers: its config.json says "
            f"model_type {kind!r}{own}"
        ) from error
    # A config may name an implementation on the hub, which would be downloaded and run, or weights
    # of its backbone, which the folder's replace.
    config._attn_implementation = None
    config._experts_implementation = None
    if getattr(config, "use_pretrained_backbone", False):
        config.use_pretrained_backbone = False
    return config


def _has_backbone_by_name(table: Mapping[str, Any]) -> bool:
    """Return whether a config names an architecture of timm as its backbone, as DETR's does.

    transformers would ask the hub whether it has a model of that name.
    """
    is_named = isinstance(table.get("backbone"), str) and not table.get("backbone_config")
    return is_named and bool(table.get("use_timm_backbone"))


def _with_described_backbone(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config that describes such a backbone, without weights of its own."""
    settings: dict[str, Any] = table.get("backbone_kwargs") or {"out_indices": [1, 2, 3, 4]}
    backbone = {"model_type": "timm_backbone", "backbone": table["backbone"], **settings}
    named = ("backbone", "backbone_kwargs", "use_pretrained_backbone")
    rest = {key: value for key, value in table.items() if key not in named}
    return {**rest, "backbone_config": {**backbone, "use_pretrained_backbone": False}}


def build_model(
    transformers: Any, config: Any, task: ModelTask, folder: Path, name: str
) -> tuple[nn.Module, list[str]]:
    """Return the model that a config describes, with the weights in a folder.

    Returns:
        The model, and the names of optional parameters that its weights lack.

    Raises:
        ModelError: If `transformers` has no such model.
        WeightsError: If weights are missing, or do not fit.
    """
    _check_depth(config.to_dict(), name)
    try:
        # Without memory for its parameters: a config of a kilobyte may describe terabytes.
        with silence_logging(), silence_output(), torch.device("meta"):
            auto: Any = getattr(transformers, task.auto)
            described: nn.Module = auto.from_config(config, trust_remote_code=False)
    except Exception as error:  # an unknown kind, or sizes that do not go together
        raise ModelError(
            f"{shown(name)} is not {task.noun} that transformers can build: its "
            f"config.json says model_type {shown(config.model_type)!r}, and "
            f"{_reason(error)}"
        ) from error
    state = _read_weights(folder, name)
    _check_size(described, state, name)
    try:
        with silence_logging(), silence_output():
            kind: Any = type(described)
            module, info = kind.from_pretrained(
                None, config=config, state_dict=dict(state), output_loading_info=True
            )
    except Exception as error:
        raise WeightsError(
            f"the weights of {shown(name)} do not fit its config.json: {_reason(error)}"
        ) from error
    missing = task.needed(info["missing_keys"])
    if missing:
        raise WeightsError(
            f"the weights of {shown(name)} lack {len(missing)} parameters of {task.noun}, "
            f"first {missing[0]!r}: {task.advice}"
        )
    return module.float().eval(), sorted(info["missing_keys"])


MOST_LAYERS = 1000
"""The most layers of a part of a model: each takes a millisecond to make."""


def _check_depth(table: Any, name: str) -> None:
    """Raise a `ModelError` if a config, or one inside it, asks for more layers than anybody has."""
    for key, value in table.items():
        if isinstance(value, dict):
            _check_depth(value, name)
        numbers: list[Any] = value if isinstance(value, list) else [value]
        counts = [number for number in numbers if isinstance(number, int)]
        if ("layers" in str(key) or "depth" in str(key)) and sum(counts) > MOST_LAYERS:
            raise ModelError(
                f"{shown(name)} is not a model that can be built: its config.json says "
                f"{shown(str(key))} {shown(str(value))}, and {MOST_LAYERS:,} are the most"
            )


MOST_MISSING = 2**24
"""The most numbers of a model that its weights may lack, beside as many as they have: what is
computed, such as tables of positions, and parts that are left out, such as text encoders."""


def _check_size(described: nn.Module, state: StateDict, name: str) -> None:
    """Raise a `WeightsError` if a model is far larger than its weights."""
    tensors = [*described.parameters(), *described.buffers()]
    needed = sum(tensor.numel() for tensor in tensors)
    found = sum(tensor.numel() for tensor in state.values())
    if needed > 2 * found + MOST_MISSING:
        raise WeightsError(
            f"the weights of {shown(name)} do not fit its config.json, which describes "
            f"{needed:,} numbers: they have {found:,}"
        )


def _read_weights(folder: Path, name: str) -> StateDict:
    """Return the weights in a folder, from safetensors files if there are any."""
    for whole, index, _ in (SAFE_WEIGHTS, PICKLED_WEIGHTS):
        if not is_missing(folder / whole):
            return read_state_dict(folder / whole)
        if not is_missing(folder / index):
            return {
                key: tensor
                for part in _shards(folder / index)
                for key, tensor in read_state_dict(part).items()
            }
    raise WeightsError(
        f"{shown(name)} has no weights of PyTorch: there is neither {SAFE_WEIGHTS[0]} nor "
        f"{PICKLED_WEIGHTS[0]}"
    )


def _shards(index: Path) -> list[Path]:
    """Return the files among which weights are divided, which must be beside their index."""
    names: Any = read_json(index).get("weight_map")
    files = sorted({str(name) for name in names.values()}) if isinstance(names, dict) else []
    if not all(files) or not files or any(Path(file).name != file for file in files):
        raise WeightsError(f"{shown(index)} does not list files beside it")
    return [index.with_name(file) for file in files]


def read_processor(transformers: Any, folder: Path, name: str) -> Any:
    """Return the image processor in a folder, or None if there is none."""
    if all(is_missing(folder / file) for file in SETTINGS[1:]):
        return None
    for file in SETTINGS:
        if not is_missing(folder / file):
            read_json(folder / file)  # a file that is too large, or no JSON, is refused here
    try:
        with silence_logging(), silence_output():
            return transformers.AutoImageProcessor.from_pretrained(
                str(folder), trust_remote_code=False, local_files_only=True
            )
    except Exception as error:
        raise ModelError(
            f"the image processor of {shown(name)} cannot be read: {_reason(error)}"
        ) from error


def read_tokenizer(transformers: Any, folder: Path, name: str) -> Any:
    """Return the tokenizer in a folder.

    Raises:
        ModelError: If there is none, or it cannot be read.
    """
    found = [folder / file for file in TOKENIZER if not is_missing(folder / file)]
    if not found:
        raise ModelError(f"{shown(name)} has no tokenizer, which prompts need: {TOKENIZER[0]}")
    for path in found:
        check_file(path, what="tokenizer", error=ModelError, most_bytes=MOST_TOKENIZER_BYTES)
    try:
        with silence_logging(), silence_output():
            return transformers.AutoTokenizer.from_pretrained(
                str(folder), trust_remote_code=False, local_files_only=True
            )
    except Exception as error:
        raise ModelError(
            f"the tokenizer of {shown(name)} cannot be read: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    return " ".join(first_line(error).split())[:150]
