"""The model in the box: a small network for the 20 PASCAL VOC classes, inside the package.

It needs no download, so `dmbp explain photo.jpg` works on a machine without a network. Its card is
`weights/voc160.md`.
"""

import hashlib
from importlib.resources import files
from pathlib import Path

from safetensors.torch import load

from dmbp.errors import WeightsError
from dmbp.models.classifier import Classifier, Preprocessing
from dmbp.models.small_resnet import CLASSES, INPUT_SIZE, MEAN, STD, SmallResNet
from dmbp.models.state import fit, read_state

NAME = "voc160"
FILE = "weights/voc160.safetensors"
SHA256 = "6fd26fc0c35bdf6e4726a96dcd9feeac559f429a102ae83f43bc5e9c335034a0"


def embedded_classifier(weights: Path | None) -> Classifier:
    """The embedded model; `weights` replaces its own, trained by the same recipe on other data."""
    module = SmallResNet()
    if weights is None:
        fit(module, load(_verified()), "the model in the box")
    else:
        fit(module, read_state(weights), str(weights))
    # Trained on whole photos squeezed to a square and on crops of them; a crop keeps its shape.
    preprocessing = Preprocessing(resize=INPUT_SIZE, crop=INPUT_SIZE, mean=MEAN, std=STD)
    return Classifier(NAME, module.eval(), preprocessing, CLASSES, activation="sigmoid")


def _verified() -> bytes:
    """The embedded file's content, if it is the one that was shipped."""
    try:
        content = files("dmbp.models").joinpath(FILE).read_bytes()
    except OSError as error:
        raise WeightsError(
            f"the model in the box is missing ({error}); install dmbp anew"
        ) from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise WeightsError(
            f"the model in the box is damaged: {FILE} does not have the checksum it was shipped "
            "with; install dmbp anew"
        )
    return content
