"""Loads models of Hugging Face's `transformers` (the `transformers` extra).

    dmbp explain photo.jpg --model hf:google/vit-base-patch16-224
    dmbp explain photo.jpg --model hf:./a-folder
    dmbp boxes photo.jpg --model hf:./a-detector
    dmbp explain photo.jpg --model hf:./clip --prompt "a cat" --prompt "a dog"

A folder is one that `save_pretrained` wrote.

    model.py       combines what the others read
    folder.py      finds and reads the files of a model, here or on the hub
    tasks.py       classifiers, detectors, segmentations, encoders: what each becomes
    prompts.py     CLIP and SigLIP: prompts as classes
    processor.py   reads the preprocessing of an image processor

`hugging_face_classifier` returns such a classifier for a model that you load yourself:

    from transformers import AutoImageProcessor, AutoModelForImageClassification
    from dmbp.models import hugging_face_classifier

    def make():
        model = AutoModelForImageClassification.from_pretrained("a-folder")
        return hugging_face_classifier(model, AutoImageProcessor.from_pretrained("a-folder"))
"""

from dmbp.models.hugging_face.folder import PREFIX, is_model_folder
from dmbp.models.hugging_face.model import (
    folder_preprocessing,
    hugging_face_classifier,
    hugging_face_model,
)
from dmbp.models.hugging_face.processor import read_preprocessing
from dmbp.models.hugging_face.tasks import labels_by_index, read_labels

__all__ = [
    "PREFIX",
    "folder_preprocessing",
    "hugging_face_classifier",
    "hugging_face_model",
    "is_model_folder",
    "labels_by_index",
    "read_labels",
    "read_preprocessing",
]
