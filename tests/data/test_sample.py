"""Samples from a folder for each class, and from a CSV manifest."""

import errno
import os
from collections.abc import Iterator
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
        ("", "it is empty"),
        ("file,label\na\0.jpg,3\n", "line 2 of .* contains a NUL character"),
        ("file,label\na.jpg,\0\n", "line 2 of .* contains a NUL character"),
        ("file,label\na.jpg," + "9" * 5000, "line 2 of .* has a number of 5,000 digits"),
        ("file,label\na.jpg," + "a" * 200_000, "is not a CSV file: field larger than"),
    ],
)
def test_invalid_manifests_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(PhotoError, match=said):
        read_dataset("manifest", tmp_path / "list.csv")


def test_names_that_are_not_utf_8_become_text(tmp_path: Path) -> None:
    """Labels and names are printed and stored; the path stays as it is."""
    save_photo(tmp_path / os.fsdecode(b"caf\xe9") / os.fsdecode(b"\xff.png"))
    (sample,) = read_dataset("folder", tmp_path).samples
    assert (sample.name, sample.labels) == ("caf\\udce9/\\udcff.png", ("caf\\udce9",))
    assert sample.path.is_file()


def test_a_device_is_no_manifest() -> None:
    with pytest.raises(
        PhotoError, match="/dev/zero cannot be read: it is a device, not a manifest"
    ):
        read_dataset("manifest", Path("/dev/zero"))


@pytest.mark.parametrize("kind", ["folder", "imagenet"])
def test_folders_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def denied(path: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(PhotoError, match=r"the folder .* cannot be read: permission denied"):
        read_dataset(kind, tmp_path)
