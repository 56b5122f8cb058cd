"""What is written is read back, with the libraries themselves."""

import json
import struct
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import pytest
from numpy.typing import NDArray
from PIL import Image

from dmbp.integrations import MapLogger
from dmbp.integrations.sinks import MlflowSink, NumbersSink, TensorBoardSink, sinks_for
from tests.integrations.networks import CLASSES, images, network, train

NAMES = ["red", "green (2)"]

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the libraries


def log_two_steps(to: Any, *, each_step: Callable[[int], object] | None = None) -> str:
    """Log maps of a training at steps 0 and 3, and return the summary."""
    maps = MapLogger(
        images(), CLASSES, to=to, every=3, method="gradient", names=NAMES, most_seconds_share=None
    )
    model = network()

    def after(step: int) -> None:
        maps.step(model, step)
        if each_step is not None:
            each_step(step)

    train(model, 3, after=after)
    return maps.finish(model, 3)


def check_picture(picture: NDArray[Any]) -> None:
    """The photo's red square at the top left, and colours beside it where the map is."""
    side = 16 * 14
    assert picture.shape == (side, 2 * side + 14, 3)
    photo = picture[:, :side].astype(int)
    is_red = photo[..., 0] > photo[..., 1] + 100
    assert is_red[3 * 14 : 7 * 14, 3 * 14 : 7 * 14].all()
    assert not is_red[9 * 14 :].any()
    drawn = picture[:, -side:].astype(int)
    assert (drawn.max(2) - drawn.min(2) > 40).any()


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        said = log_two_steps(writer)
    (file,) = tmp_path.glob("events.out.tfevents.*")
    events = EventAccumulator(str(file)).Reload()
    assert set(events.Tags()["images"]) == {f"dmbp/maps/{name}" for name in NAMES}
    pictures = events.Images("dmbp/maps/red")
    assert [event.step for event in pictures] == [0, 3]
    with Image.open(BytesIO(pictures[1].encoded_image_string)) as picture:
        check_picture(numpy.asarray(picture))
    assert [event.step for event in events.Scalars("dmbp/score/red")] == [0, 3]
    (moved,) = events.Scalars("dmbp/moved/green (2)")
    assert moved.step == 3
    assert 0 < moved.value < 2
    (text,) = events.Tensors("dmbp/summary/text_summary")
    assert text.tensor_proto.string_val[0].decode() == said


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row is kept, ours and those that the training logs for steps of its own."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    folders = {others_log: tmp_path / str(others_log) for others_log in (True, False)}
    for others_log, folder in folders.items():
        run = wandb.init(mode="offline", project="maps", dir=str(folder))
        log_two_steps(run, each_step=partial(log_loss, run) if others_log else None)
        run.finish()
    wandb.teardown()  # its process has then written the files
    for others_log, folder in folders.items():
        (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
        check_run(file, losses=list("0123") * others_log)


def log_loss(run: Any, step: int) -> None:
    run.log({"loss": step}, step=step)


def check_run(file: Path, *, losses: list[str]) -> None:
    records = list(wandb_records(file))
    history = [
        {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    assert [row["loss"] for row in history if "loss" in row] == losses
    ours = [row for row in history if "dmbp/score/red" in row]
    assert [row["dmbp/step"] for row in ours] == ["0", "3"]
    assert "dmbp/moved/red" not in ours[0]
    assert 0 < float(ours[1]["dmbp/moved/red"]) < 2
    for row in ours:
        picture = file.parent / "files" / json.loads(row["dmbp/maps/red/path"])
        with Image.open(picture) as opened:
            check_picture(numpy.asarray(opened.convert("RGB")))
    metrics = [k.metric for k in records if k.WhichOneof("record_type") == "metric"]
    assert ("dmbp/*", "dmbp/step") in [(k.glob_name, k.step_metric) for k in metrics]


BLOCK, HEADER = 32768, 7
FULL, FIRST, LAST = 1, 2, 4


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a run's file, which is a log in the format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:  # the rest of a block is padding
            at += BLOCK - at % BLOCK
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        data = content[at + HEADER : at + HEADER + length]
        parts = data if kind in (FULL, FIRST) else parts + data
        at += HEADER + length
        if kind in (FULL, LAST):
            yield Record.FromString(parts)


def test_mlflow_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(tmp_path.as_uri())
    try:
        experiment = mlflow.create_experiment("maps", (tmp_path / "files").as_uri())
        with mlflow.start_run(experiment_id=experiment) as run:
            said = log_two_steps(run)
        client = mlflow.MlflowClient()
        key = run.info.run_id
        assert [m.step for m in client.get_metric_history(key, "dmbp/score/green _2_")] == [0, 3]
        (moved,) = client.get_metric_history(key, "dmbp/moved/red")
        assert 0 < moved.value < 2
        assert client.get_run(key).data.tags["dmbp/summary"] == said
        kept = [item.path for item in client.list_artifacts(key, "images")]
        (last,) = (k for k in kept if k.startswith("images/dmbp~maps~red+step+3") and "png" in k)
        with Image.open(client.download_artifacts(key, last, str(tmp_path))) as picture:
            check_picture(numpy.asarray(picture))
    finally:
        mlflow.set_tracking_uri(before)


def test_destinations_are_recognised(tmp_path: Path) -> None:
    class Writer:
        def add_image(self) -> None: ...

        def add_scalar(self) -> None: ...

    class Logger:
        """What the loggers of Lightning have in common."""

        def __init__(self, experiment: object) -> None:
            self.experiment = experiment
            self.run_id = "run"

        def log_metrics(self) -> None: ...

    class MlflowClient: ...

    own = TensorBoardSink(Writer())
    assert sinks_for(None) == []
    assert sinks_for([own, None]) == [own]
    for logger, kind in (
        (Writer(), TensorBoardSink),
        (Logger(Writer()), TensorBoardSink),
        (Logger(MlflowClient()), MlflowSink),
        (Logger(object()), NumbersSink),
    ):
        (sink,) = sinks_for((logger,))
        assert type(sink) is kind
