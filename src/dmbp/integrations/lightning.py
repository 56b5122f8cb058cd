"""A callback for Lightning that logs maps of fixed images while a model is trained.

    from dmbp.integrations import LightningMaps, MapLogger

    maps = MapLogger(images, targets, every=200)
    trainer = Trainer(callbacks=[LightningMaps(maps)], logger=TensorBoardLogger("logs"))

It serves the packages `lightning` and `pytorch_lightning`, whose trainers take each other's
callbacks. Maps go where `MapLogger(to=…)` says, or else to the trainer's loggers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from dmbp.errors import InputError
from dmbp.integrations.map_logger import MapLogger

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> Any:
    """Return the class of callbacks of the package in use, or of the one that is installed."""
    for name in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return import_module(name).Callback
        except ModuleNotFoundError:
            continue
    raise InputError("LightningMaps needs Lightning: pip install lightning")


_Callback: Any = _callback_class()


class LightningMaps(_Callback):
    """Logs maps before the first step, every `maps.every` optimiser steps, and at the end.

    Only the first process of a distributed training logs.

    Args:
        maps: What to log, how often, and what it may cost.
        model: Returns the classifier from the LightningModule, such as `lambda module: module.net`.
            By default it is the LightningModule itself, whose `forward` returns the scores.
    """

    def __init__(self, maps: MapLogger, model: Callable[[Any], nn.Module] | None = None) -> None:
        super().__init__()
        self.maps = maps
        self._model = model

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self.maps.use(trainer.loggers)
            self.maps.step(self._model_of(pl_module), trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if trainer.is_global_zero:
            self.maps.step(self._model_of(pl_module), trainer.global_step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            print(f"dmbp: {self.maps.finish(self._model_of(pl_module), trainer.global_step)}")

    def _model_of(self, module: Any) -> nn.Module:
        return module if self._model is None else self._model(module)
