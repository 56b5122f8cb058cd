"""Maps of fixed images while a model is trained, in TensorBoard, Weights & Biases or MLflow.

    >>> from dmbp.integrations import MapLogger
    >>> maps = MapLogger(images, [3], every=100, method="gradient")
    >>> logged = maps.step(model, 0)                       # in the training loop, at every step
    >>> logged.maps.shape, logged.moved is None            # nothing to compare the first map with
    (torch.Size([1, 8, 8]), True)

    map_logger.py     when maps are made, and what is logged about them
    cost.py           what they took so far, and whether more would be too much
    state.py          explains a model in the middle of training, and leaves it as it was
    sinks.py          TensorBoard, Weights & Biases, MLflow: where pictures and numbers go
    lightning.py      `LightningMaps`, a callback for `lightning` and `pytorch_lightning`
    trainer.py        `TrainerMaps`, a callback for the Trainer of Hugging Face

None of these libraries is imported before you use its callback or pass one of its objects.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dmbp.integrations.lightning import LightningMaps
    from dmbp.integrations.map_logger import LoggedMaps, MapLogger, log_maps, movement
    from dmbp.integrations.sinks import Sink
    from dmbp.integrations.trainer import TrainerMaps

__all__ = [
    "LightningMaps",
    "LoggedMaps",
    "MapLogger",
    "Sink",
    "TrainerMaps",
    "log_maps",
    "movement",
]

_HOMES = {
    "LightningMaps": "lightning",
    "LoggedMaps": "map_logger",
    "MapLogger": "map_logger",
    "Sink": "sinks",
    "TrainerMaps": "trainer",
    "log_maps": "map_logger",
    "movement": "map_logger",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"dmbp.integrations.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dmbp.integrations' has no attribute {name!r}")
