"""Where pictures and numbers go: TensorBoard, Weights & Biases, MLflow, or an object of your own.

    sinks_for(SummaryWriter())           a writer of TensorBoard, also tensorboardX's
    sinks_for(wandb.init())              a run of Weights & Biases, online or offline
    sinks_for(mlflow.start_run())        a run of MLflow
    sinks_for(trainer.loggers)           loggers of Lightning for these three
    sinks_for([writer, run])             several of them

They are recognised by what they are, so nothing is imported that is not in use already.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import numpy
from numpy.typing import NDArray

from dmbp.errors import InputError

Picture = NDArray[numpy.uint8]
"""A picture (height, width, 3)."""


@runtime_checkable
class Sink(Protocol):
    """What a destination has to do; an object of your own with these methods will do as well."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write numbers by their tags, such as `dmbp/moved/cat`."""

    def pictures(self, pictures: Mapping[str, Picture], step: int) -> None:
        """Write pictures by their tags, such as `dmbp/maps/cat`."""

    def text(self, tag: str, text: str) -> None:
        """Write a text about the whole training."""


class TensorBoardSink:
    """A `SummaryWriter` of PyTorch or tensorboardX."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, step)

    def pictures(self, pictures: Mapping[str, Picture], step: int) -> None:
        for tag, picture in pictures.items():
            self.writer.add_image(tag, picture, step, dataformats="HWC")
        self.writer.flush()

    def text(self, tag: str, text: str) -> None:
        self.writer.add_text(tag, text)
        self.writer.flush()


class WandbSink:
    """A run of Weights & Biases.

    The step is logged as a number of its own, which is the horizontal axis of everything below
    `dmbp/`: a run drops what is logged for a step before its own last one.
    """

    def __init__(self, run: Any) -> None:
        self.run = run
        run.define_metric("dmbp/*", step_metric="dmbp/step")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.run.log({**values, "dmbp/step": step})

    def pictures(self, pictures: Mapping[str, Picture], step: int) -> None:
        make = sys.modules["wandb"].Image
        images = {tag: make(picture) for tag, picture in pictures.items()}
        self.run.log({**images, "dmbp/step": step})

    def text(self, tag: str, text: str) -> None:
        self.run.summary[tag] = text


class MlflowSink:
    """A run of MLflow, written with a client of its tracking server or folder."""

    def __init__(self, client: Any, run_id: str) -> None:
        self.client = client
        self.run_id = run_id

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for tag, value in values.items():
            self.client.log_metric(self.run_id, _mlflow_name(tag), value, step=step)

    def pictures(self, pictures: Mapping[str, Picture], step: int) -> None:
        for tag, picture in pictures.items():
            self.client.log_image(self.run_id, picture, key=_mlflow_name(tag), step=step)

    def text(self, tag: str, text: str) -> None:
        self.client.set_tag(self.run_id, _mlflow_name(tag), text)


class NumbersSink:
    """A logger of Lightning that takes numbers only, such as its `CSVLogger`."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.logger.log_metrics(dict(values), step)

    def pictures(self, pictures: Mapping[str, Picture], step: int) -> None:
        """Leave pictures out."""

    def text(self, tag: str, text: str) -> None:
        """Leave texts out."""


def sinks_for(destination: Any) -> list[Sink]:
    """Return the sinks that write to a destination.

    Args:
        destination: A `SummaryWriter`, a run of Weights & Biases or MLflow, a logger of Lightning,
            a `Sink`, a list of these, or None for nowhere.

    Returns:
        A sink for each of them.

    Raises:
        InputError: If it is something else.
    """
    if destination is None:
        return []
    if isinstance(destination, list | tuple):
        parts = cast("list[Any]", destination)
        return [sink for part in parts for sink in sinks_for(part)]
    found = next(_readings(destination), None)
    if found is None:
        raise InputError(
            f"maps cannot be logged to {destination!r:.60}: pass a SummaryWriter, a run of Weights "
            "& Biases or MLflow, a logger of Lightning, or an object with the methods scalars, "
            "pictures and text"
        )
    return [found]


def _readings(destination: Any) -> Iterator[Sink]:
    """Yield a sink for each kind of destination that this can be, the most specific kind first."""
    if isinstance(destination, Sink):
        yield destination
    yield from _known(destination)
    if hasattr(destination, "log_metrics") and hasattr(destination, "experiment"):
        inner = destination.experiment  # what a logger of Lightning writes to
        if type(inner).__name__ == "MlflowClient":
            yield MlflowSink(inner, destination.run_id)
        yield from _known(inner)
        yield NumbersSink(destination)


def _known(destination: Any) -> Iterator[Sink]:
    """Yield the sink of a writer or run of a library that we know."""
    library = type(destination).__module__.partition(".")[0]
    if hasattr(destination, "add_image") and hasattr(destination, "add_scalar"):
        yield TensorBoardSink(destination)
    if library == "wandb" and hasattr(destination, "define_metric"):
        yield WandbSink(destination)
    if library == "mlflow" and hasattr(destination, "info"):
        yield MlflowSink(sys.modules["mlflow"].MlflowClient(), destination.info.run_id)


def _mlflow_name(tag: str) -> str:
    """Return a tag without the characters that MLflow refuses in names."""
    return re.sub(r"[^\w\-. :/]", "_", tag)
