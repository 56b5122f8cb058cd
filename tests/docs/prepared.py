"""What a page's code finds when it runs: files in the folder, and the reader's own names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dmbp.data import sample_photos
from tests.docs.pages import DOCS, Page

PHOTO = (200, 133)
"""Width and height of the photos."""


def write_files(folder: Path) -> None:
    """Photos as the pages call them."""
    photo = sample_photos()["cat"][0].resize(PHOTO)
    for name in ("photo", "husky", "other", "holiday/1", "holiday/2", "photos/cat/1"):
        path = folder / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo.save(path)
    (folder / "names.txt").write_text("\n".join(f"class {i}" for i in range(3)))


class TwoHeads(nn.Module):
    """A model that returns more than scores."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"scores": self.inner(x), "more": x.mean((2, 3))}


class Masked(TwoHeads):
    """A model that takes more than images."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # pyright: ignore
        return self.inner(x * mask)


def small_network(classes: int, *, side: int) -> nn.Sequential:
    """A network of two layers for images of one size."""
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(32, classes),
    ).eval()  # fmt: skip
    network(torch.randn(1, 3, side, side))
    return network


def tensors(_: Path) -> dict[str, Any]:
    model, images = small_network(300, side=16), torch.randn(1, 3, 16, 16)
    return {
        "model": model, "images": images, "mask": torch.rand(1, 1, 1, 1),
        "two_heads": TwoHeads(model).eval(), "masked": Masked(model).eval(),
    }  # fmt: skip


def own_network(_: Path) -> dict[str, Any]:
    return {"network": small_network(2, side=32), "images": torch.randn(1, 3, 32, 32)}


def training(_: Path) -> dict[str, Any]:
    model, images, targets = (
        small_network(3, side=16),
        torch.rand(2, 3, 16, 16),
        torch.tensor([0, 1]),
    )
    return {
        "torch": torch, "model": model, "images": images, "targets": targets.tolist(),
        "loader": [(images, targets)] * 2, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }  # fmt: skip


def with_file(folder: Path) -> dict[str, Any]:
    network, images = small_network(3, side=33), torch.randn(1, 3, 33, 33)
    torch.onnx.export(network, (images,), str(folder / "net.onnx"), dynamo=False)
    return {}


def with_results(folder: Path) -> dict[str, Any]:
    """The page's plan, and its results."""
    from dmbp.cli import app

    page = Page(DOCS / "how-to" / "compare-methods.md")
    (plan,) = (block.code for block in page.blocks if block.language == "toml")
    assert "first = 50" in plan
    plan = plan.replace("first = 50", "first = 1\nsteps = 3")
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    app(["bench", "run", str(folder / "plan.toml"), "--quiet"], standalone_mode=False)
    return {}


PREPARATIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "README.md": tensors,
    "docs/how-to/tensors.md": tensors,
    "docs/how-to/python.md": own_network,
    "docs/how-to/training.md": training,
    "docs/how-to/compare-methods.md": with_results,
    "docs/reference/models.md": with_file,
}


def prepare(page: Page, folder: Path) -> dict[str, Any]:
    """Write the files that a page uses, and return the names."""
    write_files(folder)
    return PREPARATIONS.get(page.name, lambda _: {})(folder)
