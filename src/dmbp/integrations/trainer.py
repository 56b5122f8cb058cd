"""A callback for the Trainer of Hugging Face that logs maps of fixed images.

    from dmbp.integrations import MapLogger, TrainerMaps

    maps = MapLogger(images, targets, every=200)
    trainer = Trainer(model, arguments, callbacks=[TrainerMaps(maps)], train_dataset=…)

Maps go where `MapLogger(to=…)` says, or else where `TrainingArguments.report_to` does: the run of
Weights & Biases or MLflow that the Trainer has begun, or the folder of its TensorBoard files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from dmbp.integrations.map_logger import MapLogger


class TrainerMaps(TrainerCallback):
    """Logs maps before the first step, every `maps.every` steps, and at the end.

    Only the first process of a distributed training logs.

    Args:
        maps: What to log, how often, and what it may cost.
    """

    def __init__(self, maps: MapLogger) -> None:
        self.maps = maps
        self._writer: Any = None

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            if not self.maps.sinks:
                self.maps.use(self._destinations(args))
            self.maps.step(model, state.global_step)

    def on_step_end(
        self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            self.maps.step(model, state.global_step)

    def on_train_end(
        self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any
    ) -> None:
        if state.is_world_process_zero:
            print(f"dmbp: {self.maps.finish(model, state.global_step)}")
            if self._writer is not None:
                self._writer.close()

    def _destinations(self, args: Any) -> list[Any]:
        """Return what the Trainer reports to, as far as maps can be logged there."""
        found: list[Any] = []
        if "tensorboard" in args.report_to:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(_tensorboard_folder(args))
            found.append(self._writer)
        if "wandb" in args.report_to:
            found.append(getattr(sys.modules.get("wandb"), "run", None))
        if "mlflow" in args.report_to:
            active_run: Any = getattr(sys.modules.get("mlflow"), "active_run", lambda: None)
            found.append(active_run())
        return found


def _tensorboard_folder(args: Any) -> str:
    """Return the folder that the Trainer writes its own TensorBoard files to."""
    chosen = os.environ.get("TENSORBOARD_LOGGING_DIR")
    if chosen:
        return str(Path(chosen).expanduser())
    runs = Path(args.output_dir, "runs")
    newest = sorted(runs.glob("*"), key=lambda run: run.stat().st_mtime)  # begun just before
    return str(newest[-1] if newest else runs / "dmbp")
