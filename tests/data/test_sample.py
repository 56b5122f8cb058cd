"""Samples from a folder for each class, and from a CSV manifest."""

from pathlib import Path

import pytest

from dmbp.data.dataset import read_dataset
from dmbp.errors import PhotoError
from tests.data.layouts import labels_by_name, save_photo


def test_folders_of_classes(tmp_path: Path) -> None:
    save_photo(tmp_path / "dog" / "two.jpg")
    save_photo(tmp_path / "cat" / "one.png")
    (tmp_path / "cat" / "notes.txt").write_text("not a photo")
    assert labels_by_name("folder", tmp_path) == {"cat/one.png": ("cat",), "dog/two.jpg": ("dog",)}
    assert len(read_dataset("folder", tmp_path).first(1).samples) == 1


def test_manifests(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("label,file,split\n3,x/a.jpg,val\ncat;dog,b.jpg,val\n5,x/a.jpg,val\n")
    dataset = read_dataset("manifest", path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # as spreadsheets write it
    assert read_dataset("manifest", path) == dataset
    assert {s.name: s.labels for s in dataset.samples} == {
        "x/a.jpg": (3, 5),
        "b.jpg": ("cat", "dog"),
    }
    assert dataset.samples[0].path == tmp_path / "x" / "a.jpg"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image,label\na.jpg,3\n", "has no column 'file'; its first line reads image,label"),
        ("file,label\na.jpg,\n", "line 2 of .* lacks a file or a label"),
        ("file,label\n", "lists no photos"),
        ("", "has no column 'file'"),
    ],
)
def test_invalid_manifests_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(PhotoError, match=said):
        read_dataset("manifest", tmp_path / "list.csv")
