"""Every kind of dataset in the table refuses a missing, empty or wrong path with a message."""

from pathlib import Path

import pytest

from dmbp.data.dataset import READERS, read_dataset
from dmbp.errors import DMBPError, PhotoError
from tests.data.layouts import save_photo

EMPTY = {
    "imagenet": "has neither folders of synsets .* nor photos",
    "imagenet-5k": "has neither folders of synsets .* nor photos",
    "voc": "is not a VOC folder: there are no files in .*/Annotations",
    "voc-not-difficult": "is not a VOC folder: there are no files in .*/Annotations",
    "folder": "has no folders with photos, one folder for each class",
    "manifest": "cannot be read: it is a folder, not a manifest",
}


@pytest.mark.parametrize("kind", READERS)
def test_wrong_paths_are_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match="there is no folder or file"):
        read_dataset(kind, tmp_path / "nowhere")
    with pytest.raises(PhotoError, match=EMPTY[kind]):
        read_dataset(kind, tmp_path)  # empty
    save_photo(tmp_path / "one.png")
    with pytest.raises(PhotoError, match=r"one\.png"):
        read_dataset(kind, tmp_path / "one.png")
    with pytest.raises(DMBPError, match="no kind of dataset 'imagnet'; did you mean 'imagenet'"):
        read_dataset("imagnet", tmp_path)


def test_a_list_of_photos_is_no_folder_but_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("file,label\none.png,cat\n")
    for path in (tmp_path / "labels.csv", tmp_path):
        with pytest.raises(PhotoError, match='dataset = "manifest"'):
            read_dataset("folder", path)
