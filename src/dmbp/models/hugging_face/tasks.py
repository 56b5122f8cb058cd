"""What a model of `transformers` is for, and how it becomes a `Classifier`.

    ForImageClassification     a score for each class
    ForObjectDetection         boxes: logits and places of each query     `DetectorOutputs`
    ForSemanticSegmentation    a map of scores for each class
    Model                      an embedding                               `PooledOutput`
    Model, with texts too      an embedding, or a score for each prompt   prompts.py

`TASKS` has a row for each. The first whose suffix the name of the model's architecture has is
taken, and the first row if there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.hugging_face.prompts import (
    ImageEncoder,
    PromptScorer,
    TextEncoder,
    Tokenizer,
    has_text_encoder,
)
from dmbp.models.text_files import check_class_names
from dmbp.targets import QueryBoxes


@dataclass(frozen=True)
class LoadedModel:
    """A model of `transformers` with what its folder has besides.

    `missing` are the names of the parameters that its weights lack.
    """

    module: nn.Module
    preprocessing: Preprocessing
    name: str
    tokenizer: Tokenizer | None = None
    missing: Sequence[str] = ()


@dataclass(frozen=True)
class ModelTask:
    """A kind of models.

    Attributes:
        suffix: How the names of their architectures end.
        auto: The class of `transformers` that builds them.
        noun: What such a model is.
        advice: What to do if its weights lack some of its parameters.
        classifier: Combines such a model with its preprocessing.
        optional: The first part of the names of parameters that weights may lack.
    """

    suffix: str
    auto: str
    noun: str
    advice: str
    classifier: Callable[[LoadedModel], Classifier]
    optional: tuple[str, ...] = ()

    def needed(self, missing: Iterable[str]) -> list[str]:
        """Return those among missing parameters that such a model cannot do without."""
        return sorted(key for key in missing if not key.startswith(self.optional))


def task_of(architecture: str) -> ModelTask:
    """Return the task of an architecture, such as ViTForImageClassification."""
    return next((task for task in TASKS if architecture.endswith(task.suffix)), TASKS[0])


class DetectorOutputs(nn.Module):
    """Returns logits and boxes of a model like DETR as one tensor, (queries, classes + 4)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs of a batch of images."""
        returned = self.model(pixel_values=images)
        return torch.cat([returned.logits, returned.pred_boxes], -1)


class PooledOutput(nn.Module):
    """Returns one embedding for each image.

    It is the model's pooled output. Without one, or if its weights are missing, it is the first
    token, or the mean over a map.
    """

    def __init__(self, model: nn.Module, *, has_pooler: bool = True) -> None:
        super().__init__()
        self.model = model
        self._has_pooler = has_pooler

    def forward(self, images: Tensor) -> Tensor:
        """Return the embeddings of a batch of images, (images, numbers)."""
        returned = self.model(pixel_values=images)
        pooled: Tensor | None = getattr(returned, "pooler_output", None)
        if pooled is not None and self._has_pooler:
            return pooled.flatten(1)
        last: Tensor = returned.last_hidden_state
        return last[:, 0] if last.dim() == 3 else last.mean((2, 3))


def _classes(loaded: LoadedModel) -> Classifier:
    problem = getattr(_config(loaded.module), "problem_type", None)
    activation = "sigmoid" if problem == "multi_label_classification" else "softmax"
    labels = read_labels(loaded.module)
    return Classifier(loaded.name, loaded.module, loaded.preprocessing, labels, activation)


def _boxes(loaded: LoadedModel) -> Classifier:
    config = _config(loaded.module)
    is_ranked = bool(getattr(config, "two_stage", False)) or config.model_type in RANKED
    layout = QueryBoxes(config.num_labels, is_ranked=is_ranked)
    return replace(_classes(loaded), module=DetectorOutputs(loaded.module), boxes=layout)


RANKED = ("rt_detr", "rt_detr_v2", "d_fine", "deimv2", "lw_detr", "rf_detr")
"""The detectors whose queries are the strongest places of an image, in their order."""


def _embedding(loaded: LoadedModel) -> Classifier:
    module = loaded.module
    if not has_text_encoder(module):
        encoder = PooledOutput(module, has_pooler=not loaded.missing)
        return Classifier(loaded.name, encoder, loaded.preprocessing, is_encoder=True)
    texts = TextEncoder(module, loaded.tokenizer, loaded.name)
    return Classifier(
        loaded.name,
        ImageEncoder(module),
        loaded.preprocessing,
        activation="sigmoid" if hasattr(module, "logit_bias") else "softmax",
        embed=texts,
        is_encoder=True,
        compare=lambda prompts: PromptScorer.of(module, texts, prompts, loaded.preprocessing.size),
    )


TASKS = (
    ModelTask(
        "ForImageClassification",
        "AutoModelForImageClassification",
        "an image classifier",
        "give a model that was trained to classify images",
        _classes,
    ),
    ModelTask(
        "ForObjectDetection",
        "AutoModelForObjectDetection",
        "a detector",
        "give a model that was trained to detect objects",
        _boxes,
    ),
    ModelTask(
        "ForSemanticSegmentation",
        "AutoModelForSemanticSegmentation",
        "a segmentation model",
        "give a model that was trained to segment images",
        _classes,
    ),
    ModelTask(
        "Model", "AutoModel", "an encoder", "give all of its weights", _embedding, ("pooler.",)
    ),
)
"""All tasks; a kind of models is added with a row."""


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


def _config(module: nn.Module) -> Any:
    return getattr(module, "config", None)
