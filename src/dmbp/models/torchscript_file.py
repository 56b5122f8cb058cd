"""Loads TorchScript programs, the files that `torch.jit.save` writes, as classifiers.

    torch.jit.save(torch.jit.script(model.eval()), "net.pt")
    dmbp explain photo.jpg --model net.pt --trust-model-file

Such a file is recognised by its content, because files of weights have the same suffixes. It holds
a program that runs as soon as the file is opened, so it is opened only if its maker is trusted. It
does not say which images it takes: the number of channels is that of its first convolution, and the
size is ImageNet's.
"""

import zipfile
from pathlib import Path

import torch
from torch import nn

from dmbp.errors import ModelError
from dmbp.models.classifier import Classifier
from dmbp.models.exported_program import InputShape, classifier_from_module
from dmbp.models.program.file import not_opened
from dmbp.process import silence_output

SUFFIXES = (".pt", ".pth", ".jit", ".torchscript", ".ts", ".ptl", ".bin")
"""How the names of TorchScript files end."""


def is_torchscript(path: Path) -> bool:
    """Return whether a file is a TorchScript program; nothing in it is run or unpickled."""
    if path.suffix not in SUFFIXES or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except Exception:  # zipfile raises almost anything for a damaged archive
        return False
    return "constants.pkl" in names and any(name.startswith("code/") for name in names)


def torchscript_file_classifier(path: Path, *, trust: bool = False) -> Classifier:
    """Return the classifier in a TorchScript file.

    Raises:
        ModelError: If `trust` is false, or torch cannot load the file.
    """
    if not trust:
        raise not_opened(path, "it is a TorchScript program, which may run code while it is loaded")
    try:
        with silence_output():  # TorchScript is deprecated
            module: nn.Module = torch.jit.load(path, map_location="cpu")
    except Exception as error:  # torch raises almost anything for a foreign file
        raise ModelError(
            f"{path} is damaged, or needs operations that torch {torch.__version__} does not have"
        ) from error
    images = InputShape(None, _input_channels(module), None, None)
    return classifier_from_module(module, images, str(path))


def _input_channels(module: nn.Module) -> int | None:
    """Return the input channels of the first convolution over images, if they can be a photo's."""
    weights = (parameter for parameter in module.parameters() if parameter.dim() == 4)
    first = next(weights, None)
    return first.shape[1] if first is not None and first.shape[1] in (1, 3) else None
