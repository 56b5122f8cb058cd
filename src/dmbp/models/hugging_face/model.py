"""Combines a model of `transformers` with its preprocessing, labels and tokenizer."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from dmbp.errors import ModelError
from dmbp.files import shown
from dmbp.models.classifier import (
    ASSUMED_ORIGINS,
    Classifier,
    Preprocessing,
    is_photo_size,
    photo_size,
)
from dmbp.models.hugging_face.folder import (
    PREFIX,
    SETTINGS,
    build_model,
    download,
    import_transformers,
    is_model_folder,
    is_path,
    read_config,
    read_processor,
    read_tokenizer,
)
from dmbp.models.hugging_face.processor import read_preprocessing
from dmbp.models.hugging_face.prompts import Tokenizer
from dmbp.models.hugging_face.tasks import LoadedModel, task_of
from dmbp.models.input_settings import as_size


def hugging_face_model(name: str, *, assume_preprocessing: bool = False) -> Classifier:
    """Return a model from a folder, or from the hub.

    Args:
        name: A folder, or a name on the hub such as google/vit-base-patch16-224.
        assume_preprocessing: Assume ImageNet's preprocessing if the image processor's cannot be
            expressed, because the caller replaces it.

    Raises:
        ModelError: If `transformers` is not installed, there is no such model, or it is not of a
            kind in `TASKS` that can be built without running the model's own code.
        WeightsError: If weights are missing, or do not fit.
    """
    if not name:
        raise ModelError(
            f"{PREFIX}: needs the name of a model, {PREFIX}:google/vit-base-patch16-224"
        )
    if is_path(name) and not is_model_folder(name):
        raise ModelError(f"{shown(name)} is not a folder with a model: it has no config.json")
    transformers = import_transformers(f"{PREFIX}:{name}")
    folder = Path(name) if is_path(name) else download(name)
    config = read_config(transformers, folder, name)
    named: Any = getattr(config, "architectures", None)
    first = named[0] if isinstance(named, list) and named else ""
    task = task_of(first if isinstance(first, str) else "")
    module, missing = build_model(transformers, config, task, folder, name)
    preprocessing, origins = _preprocessing(
        transformers, config, folder, name, assume=assume_preprocessing
    )
    tokenizer = cache(lambda: read_tokenizer(transformers, folder, name))
    loaded = LoadedModel(module, preprocessing, f"{PREFIX}:{name}", tokenizer, missing)
    classifier = task.classifier(loaded)
    return replace(classifier, module=classifier.module.eval(), origins=origins)


def _preprocessing(
    transformers: Any, config: Any, folder: Path, name: str, *, assume: bool
) -> tuple[Preprocessing, dict[str, str]]:
    """Return the preprocessing in a folder, or ImageNet's, and where its settings are from."""
    try:
        processor = read_processor(transformers, folder, name)
        if processor is not None:
            return read_preprocessing(processor), dict.fromkeys(ASSUMED_ORIGINS, SETTINGS[1])
    except ModelError:
        if not assume:
            raise
    if not assume:
        warnings.warn(
            f"{shown(name)} has no preprocessor_config.json: photos are prepared as for ImageNet",
            stacklevel=2,
        )
    assumed = Preprocessing.for_channels(getattr(config, "num_channels", None))
    size = as_size(getattr(config, "image_size", None))
    if size is not None and is_photo_size(size):
        assumed = assumed.with_size(photo_size(size))
    return assumed, dict(ASSUMED_ORIGINS)


def folder_preprocessing(folder: Path) -> Preprocessing:
    """Return the preprocessing of the image processor in a folder.

    Raises:
        ModelError: If `transformers` is not installed, or the processor is not supported.
    """
    processor = read_processor(import_transformers("it"), folder, folder.name)
    if processor is None:
        raise ModelError("it describes no image processor of transformers")
    return read_preprocessing(processor)


def hugging_face_classifier(
    module: nn.Module, processor: Any = None, *, tokenizer: Any = None, name: str = ""
) -> Classifier:
    """Combine a model of `transformers` with its image processor.

    Args:
        module: The model, such as `AutoModelForImageClassification`, `AutoModelForObjectDetection`,
            `AutoModelForSemanticSegmentation` or `AutoModel` loads.
        processor: Its image processor, such as `AutoImageProcessor` loads, or a `Preprocessing`. By
            default the one in the folder, or in the cache, that the model was loaded from.
        tokenizer: Its tokenizer, if it encodes texts, such as `AutoTokenizer` loads; by default
            the one in the folder that the model was loaded from.
        name: What to call the model; by default the name or folder it was loaded from.

    Returns:
        A classifier with the labels of the model's config, unless they are placeholders, and with
        the processor's preprocessing. Its activation is "sigmoid" if the config says that several
        labels may apply, else "softmax". An encoder of images and texts becomes a classifier of
        prompts by `with_prompts`.

    Raises:
        ModelError: If the processor prepares photos in a way that `Preprocessing` cannot express.
    """
    config = getattr(module, "config", None)
    label = name or str(getattr(config, "name_or_path", "")) or type(module).__name__
    task = task_of(type(module).__name__)
    origins = dict.fromkeys(ASSUMED_ORIGINS, "its image processor")
    if processor is None:
        processor = _saved_processor(label)
    if processor is None:
        preprocessing = Preprocessing.for_channels(getattr(config, "num_channels", None))
        origins = dict(ASSUMED_ORIGINS)
    elif isinstance(processor, Preprocessing):
        preprocessing = processor
    else:
        preprocessing = read_preprocessing(processor)
    tokens = _tokenizer(label) if tokenizer is None else lambda: tokenizer
    classifier = task.classifier(LoadedModel(module, preprocessing, label, tokens))
    return replace(classifier, module=classifier.module.eval(), origins=origins)


def _saved_processor(name: str) -> Any:
    """Return the image processor beside a model that the user loaded, or None."""
    transformers = import_transformers("it")
    try:
        if is_path(name):
            return read_processor(transformers, Path(name), name)
        return transformers.AutoImageProcessor.from_pretrained(name, local_files_only=True)
    except Exception:  # transformers raises almost anything for a name that it does not know
        return None


def _tokenizer(name: str) -> Tokenizer | None:
    """Return a function that reads the tokenizer beside a model that the user loaded, or None."""
    if not is_path(name):
        return None
    return cache(lambda: read_tokenizer(import_transformers("it"), Path(name), name))
