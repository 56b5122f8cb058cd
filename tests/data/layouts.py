"""What the tests of datasets share: a photo to write, and a dataset's labels by name."""

from pathlib import Path

from PIL import Image

from dmbp.data.dataset import read_dataset

SYNSETS = [f"n{number:08d}" for number in range(1000, 2000)]


def save_photo(path: Path) -> None:
    """Write a small photo, and the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 16), "red").save(path)


def labels_by_name(kind: str, root: Path) -> dict[str, tuple[int | str, ...]]:
    """Read a dataset and return each sample's labels by its name."""
    return {sample.name: sample.labels for sample in read_dataset(kind, root).samples}
