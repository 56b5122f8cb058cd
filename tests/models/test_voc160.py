"""The built-in model is small, recognises the sample photos, and notices a damaged file."""

from pathlib import Path

import pytest
import torch

from dmbp.data import sample_photos
from dmbp.errors import WeightsError
from dmbp.models import DEFAULT, load_model, model_names, voc160

LARGEST_FILE = 8_000_000


def test_it_comes_first_and_is_small() -> None:
    assert model_names()[0] == DEFAULT == "voc160"
    file = Path(voc160.__file__).parent / voc160.FILE
    assert file.stat().st_size <= LARGEST_FILE
    assert file.with_suffix(".md").exists()


@pytest.mark.parametrize("size", [(160, 213), (181, 160), (97, 99)])
def test_it_takes_photos_of_any_size(size: tuple[int, int]) -> None:
    """`fit = "whole"` makes odd sides, which both branches of a block have to halve alike."""
    assert load_model(DEFAULT).module(torch.zeros(1, 3, *size)).shape == (1, 20)


@pytest.mark.parametrize("name", ["cat", "astronaut", "motorcycle"])
def test_it_recognises_the_samples(name: str) -> None:
    classifier = load_model(DEFAULT)
    photo, (wanted,) = sample_photos()[name]
    inputs = classifier.preprocessing.tensor(classifier.preprocessing.view(photo))
    with torch.no_grad():
        outputs = classifier.module(inputs)[0]
    assert classifier.class_name(int(outputs.argmax())) == wanted
    assert classifier.probabilities(outputs).max() > 0.9


def test_a_damaged_file_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = bytearray((Path(voc160.__file__).parent / voc160.FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "weights").mkdir()
    (tmp_path / voc160.FILE).write_bytes(content)
    monkeypatch.setattr(voc160, "files", lambda _: tmp_path)
    with pytest.raises(WeightsError, match="built-in model is damaged"):
        load_model(DEFAULT)
    (tmp_path / voc160.FILE).unlink()
    with pytest.raises(WeightsError, match="built-in model is missing"):
        load_model(DEFAULT)
