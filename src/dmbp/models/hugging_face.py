"""Loads image classifiers of Hugging Face's `transformers` (the `transformers` extra).

    dmbp explain photo.jpg --model hf:google/vit-base-patch16-224
    dmbp explain photo.jpg --model hf:./a-folder

A folder is one that `save_pretrained` wrote. Of a model on the hub, only the files that such a
folder has are downloaded. No code from either is run: `config.json` must name an architecture of
`transformers` itself, and weights are tensors, preferably in safetensors files.

`hugging_face_classifier` returns such a classifier for a model of Hugging Face's `transformers`,
with its labels and preprocessing:

    from transformers import AutoImageProcessor, AutoModelForImageClassification
    from dmbp.models import hugging_face_classifier

    def make():
        model = AutoModelForImageClassification.from_pretrained("a-folder")
        return hugging_face_classifier(model, AutoImageProcessor.from_pretrained("a-folder"))

Image processors interpret the same settings differently. The preprocessing that is read from a
processor's settings is therefore compared with what the processor does to a trial photo, and the
processor is refused if the two differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy
import torch
from PIL import Image
from torch import Tensor, nn

from dmbp.errors import DMBPError, ModelError, WeightsError, first_line
from dmbp.files import is_folder, is_missing, shown
from dmbp.models.classifier import ASSUMED_ORIGINS, Classifier, Preprocessing
from dmbp.models.input_settings import as_size
from dmbp.models.state_dict import StateDict, read_state_dict
from dmbp.models.text_files import check_class_names, read_json
from dmbp.models.torchvision_models import import_torchvision
from dmbp.process import silence_logging, silence_output

PREFIX = "hf"

SETTINGS = ("config.json", "preprocessor_config.json", "processor_config.json")
SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "model-*.safetensors")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")


def is_model_folder(name: str) -> bool:
    """Return whether a name is the path of a folder that `save_pretrained` wrote."""
    return is_folder(Path(name)) and not is_missing(Path(name) / "config.json")


def hugging_face_model(name: str, *, assume_preprocessing: bool = False) -> Classifier:
    """Return an image classifier from a folder, or from the hub.

    Args:
        name: A folder, or a name on the hub such as google/vit-base-patch16-224.
        assume_preprocessing: Assume ImageNet's preprocessing if the image processor's cannot be
            expressed, because the caller replaces it.

    Raises:
        ModelError: If `transformers` is not installed, there is no such model, or it is not an
            image classifier that can be built without running the model's own code.
        WeightsError: If weights are missing, or do not fit.
    """
    if not name:
        raise ModelError(
            f"{PREFIX}: needs the name of a model, {PREFIX}:google/vit-base-patch16-224"
        )
    if _is_path(name) and not is_model_folder(name):
        raise ModelError(f"{shown(name)} is not a folder with a model: it has no config.json")
    transformers = _import_transformers(f"{PREFIX}:{name}")
    folder = Path(name) if _is_path(name) else _download(name)
    config = _read_config(transformers, folder, name)
    module = _build(transformers, config, folder, name)
    label = f"{PREFIX}:{name}"
    try:
        processor = _read_processor(transformers, folder, name)
        if processor is not None:
            classifier = hugging_face_classifier(module, processor, name=label)
            return replace(classifier, origins=dict.fromkeys(ASSUMED_ORIGINS, SETTINGS[1]))
    except ModelError:
        if not assume_preprocessing:
            raise
    if not assume_preprocessing:
        warnings.warn(
            f"{shown(name)} has no preprocessor_config.json: photos are prepared as for ImageNet",
            stacklevel=2,
        )
    return replace(_classifier(module, _assumed(config), label), origins=ASSUMED_ORIGINS)


def folder_preprocessing(folder: Path) -> Preprocessing:
    """Return the preprocessing of the image processor in a folder.

    Raises:
        ModelError: If `transformers` is not installed, or the processor is not supported.
    """
    processor = _read_processor(_import_transformers("it"), folder, folder.name)
    if processor is None:
        raise ModelError("it describes no image processor of transformers")
    return read_preprocessing(processor)


def _import_transformers(what: str) -> Any:
    with suppress(ImportError):
        import_torchvision()  # transformers' import of it would fail with a CPU build of torch
    try:
        import transformers
    except ImportError as error:
        raise ModelError(
            f"{what} needs the extra transformers: pip install dmbp[transformers]"
        ) from error
    return transformers


def _is_path(name: str) -> bool:
    """Return whether a name is a folder's, which it also is if it cannot be one on the hub."""
    return is_folder(Path(name)) or name.startswith((".", "/", "~")) or name.count("/") > 1


def _download(name: str) -> Path:
    """Download a model's files, or find them where they were downloaded before."""
    from huggingface_hub import snapshot_download

    try:
        with silence_logging(), silence_output():
            folder = Path(snapshot_download(name, allow_patterns=[*SETTINGS, *SAFE_WEIGHTS]))
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


def _read_config(transformers: Any, folder: Path, name: str) -> Any:
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
    # A config may name an implementation on the hub, which would be downloaded and run.
    config._attn_implementation = None
    config._experts_implementation = None
    return config


def _build(transformers: Any, config: Any, folder: Path, name: str) -> nn.Module:
    """Return the model that a config describes, with the weights in a folder."""
    try:
        with silence_logging(), silence_output():
            kind: Any = type(
                transformers.AutoModelForImageClassification.from_config(
                    config, trust_remote_code=False
                )
            )
    except Exception as error:  # an unknown kind, or sizes that do not go together
        raise ModelError(
            f"{shown(name)} is not an image classifier that transformers can build: its "
            f"config.json says model_type {shown(config.model_type)!r}, and "
            f"{_reason(error)}"
        ) from error
    state = _read_weights(folder, name)
    try:
        with silence_logging(), silence_output():
            module, info = kind.from_pretrained(
                None, config=config, state_dict=dict(state), output_loading_info=True
            )
    except Exception as error:
        raise WeightsError(
            f"the weights of {shown(name)} do not fit its config.json: {_reason(error)}"
        ) from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise WeightsError(
            f"the weights of {shown(name)} lack {len(missing)} parameters of its image classifier, "
            f"first {missing[0]!r}: give a model that was trained to classify images"
        )
    return module.float().eval()


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
    if not files or any(Path(file).name != file for file in files):
        raise WeightsError(f"{shown(index)} does not list files beside it")
    return [index.with_name(file) for file in files]


def _assumed(config: Any) -> Preprocessing:
    """Return ImageNet's preprocessing, at the size that a config states."""
    size = as_size(getattr(config, "image_size", None))
    assumed = Preprocessing.for_channels(getattr(config, "num_channels", None))
    return assumed if size is None else assumed.with_size(size)


def _read_processor(transformers: Any, folder: Path, name: str) -> Any:
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


def _reason(error: Exception) -> str:
    return " ".join(first_line(error).split())[:150]


TOLERANCE = 0.1
"""The mean difference allowed between the processor's trial photo and ours, in levels of 255:
torchvision's and Pillow's rounding differ by 0.005, a shift by one pixel makes a difference of
13."""

SQUEEZED_FROM = 384
"""Size from which ConvNeXt's processor squeezes photos; for smaller sizes it crops them."""


def hugging_face_classifier(module: nn.Module, processor: Any, *, name: str = "") -> Classifier:
    """Combine an image classifier of `transformers` with its image processor.

    Args:
        module: The model, such as `AutoModelForImageClassification` loads.
        processor: Its image processor, such as `AutoImageProcessor` loads.
        name: What to call the model; by default the name or folder it was loaded from.

    Returns:
        A classifier with the labels of the model's config, unless they are placeholders, and with
        the processor's preprocessing. Its activation is "sigmoid" if the config says that several
        labels may apply, else "softmax".

    Raises:
        ModelError: If the processor prepares photos in a way that `Preprocessing` cannot express.
    """
    label = name or str(getattr(_config(module), "name_or_path", "")) or type(module).__name__
    return _classifier(module, read_preprocessing(processor), label)


def _classifier(module: nn.Module, preprocessing: Preprocessing, name: str) -> Classifier:
    """Return a model with the labels of its config, and what they mean."""
    is_multi_label = getattr(_config(module), "problem_type", None) == "multi_label_classification"
    activation = "sigmoid" if is_multi_label else "softmax"
    return Classifier(name, module.eval(), preprocessing, read_labels(module), activation)


def read_labels(module: nn.Module) -> tuple[str, ...] | None:
    """Return the class names in a model's config, or None if they are LABEL_0, LABEL_1, …."""
    return labels_by_index(getattr(_config(module), "id2label", None))


def labels_by_index(id2label: Any) -> tuple[str, ...] | None:
    """Return the names in `id2label` of a config, or None if they are LABEL_0, LABEL_1, ….

    Raises:
        WeightsError: If a name is too long.
    """
    if not isinstance(id2label, Mapping):
        return None
    labels = {str(key): str(label) for key, label in cast("Mapping[Any, Any]", id2label).items()}
    keys = [str(k) for k in range(len(labels))]
    if set(labels) != set(keys) or all(labels[k] == f"LABEL_{k}" for k in keys):
        return None
    return check_class_names([labels[k] for k in keys], "id2label", item="label")


def read_preprocessing(processor: Any) -> Preprocessing:
    """Return the preprocessing of an image processor.

    Raises:
        ModelError: If its settings, read as `Preprocessing`, prepare a trial photo differently.
    """
    settings: Mapping[str, Any] = processor.to_dict()
    photo = _trial_photo()
    try:
        preprocessing = Preprocessing(
            **_read_sizes(settings),
            **_read_normalisation(settings),
            channels="bgr" if settings.get("do_flip_channel_order") else "rgb",
            interpolation=Image.Resampling(
                int(settings.get("resample") or Image.Resampling.BILINEAR)
            ),
        )
        ours = preprocessing.tensor(preprocessing.view(photo))
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, DMBPError) as error:
        raise _unsupported(processor) from error  # settings of another kind
    theirs: Tensor = processor(photo, return_tensors="pt")["pixel_values"]
    std = torch.tensor(preprocessing.std).view(-1, 1, 1)
    if ours.shape != theirs.shape or 255 * ((ours - theirs) * std).abs().mean() > TOLERANCE:
        raise _unsupported(processor)
    return preprocessing


def _read_sizes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Preprocessing` for resizing and cropping."""
    size: Mapping[str, int] = settings.get("size") or {}
    is_cropped = settings.get("do_center_crop")
    crop: Mapping[str, int] = settings.get("crop_size") or {} if is_cropped else {}
    short, whole = size.get("shortest_edge"), (size.get("height", 0), size.get("width", 0))
    if short is not None and "crop_pct" in settings and not crop:
        if short >= SQUEEZED_FROM:
            return {"crop": short, "fit": "squeeze"}
        return {"resize": int(short / settings["crop_pct"]), "crop": short, "fit": "crop"}
    if crop:
        fit = "squeeze-crop" if short is None else "crop"
        return {"resize": short or whole, "crop": (crop["height"], crop["width"]), "fit": fit}
    return {"crop": short or whole, "fit": "squeeze" if short is None else "whole"}


def _read_normalisation(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return mean and std for RGB in [0, 1], whichever range the processor rescales it to."""
    white = 255 * (settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale") else 1.0)
    is_normalised = bool(settings.get("do_normalize"))
    mean = settings["image_mean"] if is_normalised else (0.0, 0.0, 0.0)
    std = settings["image_std"] if is_normalised else (1.0, 1.0, 1.0)
    return {"mean": tuple(m / white for m in mean), "std": tuple(s / white for s in std)}


def _trial_photo() -> Image.Image:
    """Return noise as rough as a photograph, so that a shift by one pixel shows."""
    noise = numpy.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=numpy.uint8)
    return Image.fromarray(noise).resize((400, 300), Image.Resampling.BICUBIC)


def _unsupported(processor: Any) -> ModelError:
    return ModelError(
        f"{type(processor).__name__} prepares photos in a way that dmbp does not support; give "
        "--size, --mean and --std, or return a dmbp.models.Classifier with your own Preprocessing"
    )


def _config(module: nn.Module) -> Any:
    return getattr(module, "config", None)
