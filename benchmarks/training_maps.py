"""Whether maps move onto the shapes while a network learns to tell them apart, and what they cost.

    python -m benchmarks.training_maps                      # two minutes of training on two cores
    python -m benchmarks.training_maps --seconds 600 --share 0.05

A small network is trained with Lightning on drawn discs, squares and crosses, each beside a bar
that is as bright and means nothing. `LightningMaps` logs maps of four images to TensorBoard. The
event file is then read back: a line for each step with maps gives the accuracy on other images,
the mean score, how much of the red evidence lies on the shape (the title says how much of the image
the shape takes), and how far the maps moved. `pictures.png` in the folder shows what TensorBoard
does. The last lines say what the maps cost.

Needs `pip install lightning tensorboard`.
"""

import argparse
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.shapes import CLASSES, SIDE, draw
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dmbp.integrations import LightningMaps, MapLogger

SHOWN = 4
BAR = (6, 30)
AROUND = 5
"""Evidence within two pixels of a shape counts as on it: an edge is seen from both sides."""


def drawn(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, their classes, and where their shapes are, (images, height, width).

    Each has one shape, and a bar that is as bright and has nothing to do with the class.
    """
    generator = torch.Generator().manual_seed(seed)
    images: list[Tensor] = []
    places: list[Tensor] = []
    kinds = torch.randint(1, len(CLASSES), (count,), generator=generator)
    for kind in kinds.tolist():
        x, y, radius = (torch.rand(3, generator=generator) * torch.tensor([36.0, 36, 4])).tolist()
        image, labels = draw([(kind, 14 + x, 14 + y, 8 + radius)], generator)
        is_bar = torch.zeros_like(labels, dtype=torch.bool)
        top, left = torch.randint(0, SIDE - BAR[1], (2,), generator=generator).tolist()
        is_bar[top : top + BAR[0], left : left + BAR[1]] = True
        is_bar &= labels == 0
        image[:, is_bar] = 0.5 + 0.5 * torch.rand(3, 1, generator=generator)
        images.append(image)
        places.append(labels > 0)
    return torch.stack(images), kinds - 1, torch.stack(places)


class Classifier(LightningModule):
    """Four convolutions with batch norm, and the mean over what the last one sees."""

    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inside, outside in ((3, 16), (16, 32), (32, 32), (32, 64)):
            layers += [
                nn.Conv2d(inside, outside, 3, padding=1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(),
                nn.MaxPool2d(2) if outside < 64 else nn.AdaptiveAvgPool2d(1),
            ]
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, len(CLASSES) - 1))
        self.learning_rate = learning_rate

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


class Examination(Callback):
    """Logs the accuracy, and where the red evidence is, whenever maps were logged."""

    def __init__(self, maps: MapLogger, places: Tensor) -> None:
        self.maps = maps
        self.inside = functional.max_pool2d(places[:, None].float(), AROUND, 1, AROUND // 2)[:, 0]
        self.images, self.classes, _ = drawn(300, seed=1)
        self.seen = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._examine(trainer, pl_module)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        self._examine(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._examine(trainer, pl_module)

    @torch.no_grad()
    def _examine(self, trainer: Trainer, model: LightningModule) -> None:
        if len(self.maps.logged_steps) == self.seen:
            return
        self.seen = len(self.maps.logged_steps)
        model.eval()
        right = (model(self.images).argmax(1) == self.classes).float().mean()
        model.train()
        red = self.maps.last_maps.clamp(min=0)
        on_shape = (red * self.inside).sum((1, 2)) / red.sum((1, 2)).clamp(min=1e-12)
        writer, step = trainer.logger.experiment, self.maps.logged_steps[-1]
        writer.add_scalar("test/accuracy", right, step)
        writer.add_scalar("test/red evidence on the shape", on_shape.mean(), step)


def main() -> None:
    parser = argparse.ArgumentParser(description="Log maps while a network learns shapes.")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--method", default="dmbp")
    parser.add_argument("--learning-rate", type=float, default=0.005)
    parser.add_argument("--folder", type=Path, default=Path("training-maps"))
    options = parser.parse_args()
    torch.manual_seed(0)
    images, classes, places = drawn(SHOWN, seed=5)
    names = [f"{k} {CLASSES[kind + 1]}" for k, kind in enumerate(classes.tolist())]
    maps = MapLogger(
        images,
        classes,
        every=options.every,
        method=options.method,
        names=names,
        most_seconds_share=options.share,
    )
    board = TensorBoardLogger(options.folder, name=None)
    examination = Examination(maps, places)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=-1,
        max_time={"seconds": options.seconds},
        callbacks=[LightningMaps(maps), examination],
        logger=board,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    learned, kinds, _ = drawn(3000, seed=0)
    data = DataLoader(TensorDataset(learned, kinds), batch_size=32, shuffle=True)
    trainer.fit(Classifier(options.learning_rate), data)
    area = examination.inside.mean().item()
    report(Path(board.log_dir), names, area)


def report(folder: Path, names: list[str], area: float) -> None:
    """Read the event file back: print a line for each step, and write the pictures into one."""
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0}).Reload()

    def values(tag: str) -> dict[int, float]:
        return {event.step: event.value for event in events.Scalars(tag)}

    moved = [values(f"dmbp/moved/{name}") for name in names]
    scores = [values(f"dmbp/score/{name}") for name in names]
    accuracy, on_shape = values("test/accuracy"), values("test/red evidence on the shape")
    print(f"  step  accuracy  score  on the shape (its area: {area:.0%})  moved")
    for step in accuracy:
        mean = sum(score[step] for score in scores) / len(names)
        far = [k[step] for k in moved if step in k]
        said = f"{sum(far) / len(far):.2f}" if far else "-"
        print(f"{step:6}  {accuracy[step]:8.0%}  {mean:5.2f}  {on_shape[step]:12.0%}  {said:>27}")
    rows: list[Image.Image] = []
    for name in names:
        kept = events.Images(f"dmbp/maps/{name}")
        chosen = kept if len(kept) <= 5 else [kept[k * (len(kept) - 1) // 4] for k in range(5)]
        pictures = [Image.open(BytesIO(event.encoded_image_string)) for event in chosen]
        row = Image.new("RGB", (sum(p.width + 8 for p in pictures), pictures[0].height + 8))
        for k, picture in enumerate(pictures):
            row.paste(picture, (k * (picture.width + 8), 0))
        rows.append(row)
    sheet = Image.new("RGB", (rows[0].width, sum(row.height for row in rows)))
    for k, row in enumerate(rows):
        sheet.paste(row, (0, k * row.height))
    sheet.save(folder / "pictures.png")
    (text,) = events.Tensors("dmbp/summary/text_summary")
    print(text.tensor_proto.string_val[0].decode())
    print(f"{folder / 'pictures.png'} has the pictures at steps {[event.step for event in chosen]}")


if __name__ == "__main__":
    main()
