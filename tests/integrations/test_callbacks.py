"""The callbacks in short trainings with Lightning and with the Trainer of Hugging Face."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dmbp.integrations import MapLogger, log_maps
from tests.integrations.networks import CLASSES, images, network

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the libraries

NAMES = ["red", "green"]


def map_logger(**others: Any) -> MapLogger:
    settings: dict[str, Any] = {"method": "gradient", "every": 2, "most_seconds_share": None}
    return MapLogger(images(), CLASSES, names=NAMES, **{**settings, **others})


def read_events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Mixed precision, two batches for each step, and two loggers, one of which takes numbers."""
    pytest.importorskip("tensorboard")
    pl = pytest.importorskip(package)
    loggers = pytest.importorskip(f"{package}.loggers")
    from dmbp.integrations import LightningMaps

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()
            self.modes: list[list[bool]] = []

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: list[Tensor], _: int) -> Tensor:
            self.modes.append([module.training for module in self.modules()])
            return functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.2)

    board = loggers.TensorBoardLogger(tmp_path, name="board")
    maps, model = map_logger(), Classifier()
    trainer = pl.Trainer(
        accelerator="cpu",
        precision="bf16-mixed",
        max_epochs=5,
        accumulate_grad_batches=2,
        callbacks=[LightningMaps(maps)],
        logger=[board, loggers.CSVLogger(tmp_path, name="table")],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    data = TensorDataset(images(), CLASSES)
    trainer.fit(model, DataLoader(data, batch_size=1, num_workers=0))
    assert maps.failures == []
    assert maps.logged_steps == [0, 2, 4, 5]
    assert len(set(map(tuple, model.modes))) == 1  # the same modes at every step
    found = [e.step for e in read_events(Path(board.log_dir)).Images("dmbp/maps/red")]
    assert found == [0, 2, 4, 5]
    table = (Path(trainer.loggers[1].log_dir) / "metrics.csv").read_text()
    assert "dmbp/moved/green" in table.splitlines()[0]
    assert "dmbp: maps of 2 images were logged 4 times, at steps 0 to 5" in capsys.readouterr().out
    plain = log_maps(model.net, images(), CLASSES, to=None, method="gradient")
    assert torch.equal(plain.maps, maps.last_maps)


def test_the_trainer_of_hugging_face(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its mixed precision puts another `forward` into the model, and its model returns a dict."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    from dmbp.integrations import TrainerMaps

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.net(pixel_values)
            if labels is None:
                return {"logits": logits}
            return {"loss": functional.cross_entropy(logits, labels), "logits": logits}

    rows = [{"pixel_values": images()[k], "labels": CLASSES[k]} for k in range(2)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=True,
        max_steps=5,
        per_device_train_batch_size=2,
        learning_rate=0.01,
        report_to=["tensorboard"],
        save_strategy="no",
        disable_tqdm=True,
    )
    maps, model = map_logger(), Classifier()
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, callbacks=[TrainerMaps(maps)]
    )
    trainer.train()
    assert maps.failures == []
    assert maps.logged_steps == [0, 2, 4, 5]
    (run,) = (tmp_path / "runs").iterdir()  # the one of the Trainer itself
    events = read_events(run)
    assert [event.step for event in events.Images("dmbp/maps/green")] == [0, 2, 4, 5]
    assert "train/loss" in events.Tags()["scalars"] or events.Tags()["scalars"]
    assert "dmbp: maps of 2 images were logged 4 times" in capsys.readouterr().out
    plain = log_maps(model.net, images(), CLASSES, to=None, method="gradient")
    assert torch.equal(plain.maps, maps.last_maps)


def test_runs_that_the_trainer_has_begun_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from dmbp.integrations import TrainerMaps

    callback = TrainerMaps(map_logger())
    arguments = SimpleNamespace(report_to=["wandb", "mlflow", "azure_ml"])
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run="a run"))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=lambda: "another"))
    assert callback._destinations(arguments) == ["a run", "another"]
    with pytest.warns(UserWarning, match="the trainer has no logger, so maps are made but"):
        callback.maps.use([])
