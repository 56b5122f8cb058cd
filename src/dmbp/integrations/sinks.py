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

Scalars = Mapping[str, float]
Pictures = Mapping[str, Picture]


@runtime_checkable
class Sink(Protocol):
    """What a destination has to do; an object of your own with these methods will do as well."""

    def log(self, scalars: Scalars, pictures: Pictures, step: int) -> None:
        """Write numbers and pictures by their tags, such as `dmbp/moved/cat`."""

    def write_text(self, tag: str, text: str) -> None:
        """Write a text about the whole training."""


class TensorBoardSink:
    """A `SummaryWriter` of PyTorch or tensorboardX."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def log(self, scalars: Scalars, pictures: Pictures, step: int) -> None:
        for tag, value in scalars.items():
            self.writer.add_scalar(tag, value, step)
        for tag, picture in pictures.items():
            self.writer.add_image(tag, picture, step, dataformats="HWC")
        self.writer.flush()

    def write_text(self, tag: str, text: str) -> None:
        self.writer.add_text(tag, text)
        self.writer.flush()


class WandbSink:
    """A run of Weights & Biases.

    A run drops what is logged for a step before its last one, and whoever logs a row moves it on.
    So maps are added to the row that is being filled, which whoever logs next completes, and they
    have a step of their own, the horizontal axis of everything below `dmbp/`. Only if nothing else
    was logged since the last maps, their row is completed here.
    """

    def __init__(self, run: Any) -> None:
        self.run = run
        self._row: int | None = None
        run.define_metric("dmbp/*", step_metric="dmbp/step")

    def log(self, scalars: Scalars, pictures: Pictures, step: int) -> None:
        if self._row == self.run.step:
            self.run.log({}, commit=True)
        self._row = self.run.step
        make = sys.modules["wandb"].Image
        images = {tag: make(picture) for tag, picture in pictures.items()}
        self.run.log({**scalars, **images, "dmbp/step": step}, commit=False)

    def write_text(self, tag: str, text: str) -> None:
        self.run.summary[tag] = text


class MlflowSink:
    """A run of MLflow, written with a client of its tracking server or folder."""

    def __init__(self, client: Any, run_id: str) -> None:
        self.client = client
        self.run_id = run_id

    def log(self, scalars: Scalars, pictures: Pictures, step: int) -> None:
        for tag, value in scalars.items():
            self.client.log_metric(self.run_id, _mlflow_name(tag), value, step=step)
        for tag, picture in pictures.items():
            self.client.log_image(self.run_id, picture, key=_mlflow_name(tag), step=step)

    def write_text(self, tag: str, text: str) -> None:
        self.client.set_tag(self.run_id, _mlflow_name(tag), text)


class NumbersSink:
    """A logger of Lightning that takes numbers only, such as its `CSVLogger`."""

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def log(self, scalars: Scalars, pictures: Pictures, step: int) -> None:  # noqa: ARG002
        self.logger.log_metrics(dict(scalars), step)

    def write_text(self, tag: str, text: str) -> None:
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
            "& Biases or MLflow, a logger of Lightning, or an object with the methods log and "
            "write_text"
        )
    return [found]


def _readings(destination: Any) -> Iterator[Sink]:
    """Yield a sink for each kind of destination that this can be, the most specific kind first."""
    own: object = destination
    if isinstance(own, Sink):
        yield own
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
