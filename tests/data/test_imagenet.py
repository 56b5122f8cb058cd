"""ImageNet's validation set in every supported layout, and the errors for an incomplete one."""

from pathlib import Path

import pytest

from dmbp.data.dataset import read_dataset
from dmbp.errors import PhotoError
from tests.data.layouts import SYNSETS, labels_by_name, save_photo


def test_imagenet_by_synset(tmp_path: Path) -> None:
    for synset in SYNSETS:
        (tmp_path / synset).mkdir()
    save_photo(tmp_path / SYNSETS[7] / "ILSVRC2012_val_00000002.JPEG")
    save_photo(tmp_path / SYNSETS[0] / "ILSVRC2012_val_00000001.JPEG")
    assert labels_by_name("imagenet", tmp_path) == {
        f"{SYNSETS[0]}/ILSVRC2012_val_00000001.JPEG": (0,),
        f"{SYNSETS[7]}/ILSVRC2012_val_00000002.JPEG": (7,),
    }


def test_a_part_of_imagenet_needs_the_list_of_synsets(tmp_path: Path) -> None:
    save_photo(tmp_path / SYNSETS[7] / "one.JPEG")
    with pytest.raises(PhotoError, match=r"has 1 folders of synsets, not 1000: put synsets\.txt"):
        read_dataset("imagenet", tmp_path)
    (tmp_path / "synsets.txt").write_text("\n".join(f"{name} fish" for name in SYNSETS[::-1]))
    assert labels_by_name("imagenet", tmp_path) == {f"{SYNSETS[7]}/one.JPEG": (7,)}
    (tmp_path / "synsets.txt").write_text("\n".join([*SYNSETS[:7], "n99999999", *SYNSETS[8:]]))
    with pytest.raises(PhotoError, match=f"does not have {SYNSETS[7]}"):
        read_dataset("imagenet", tmp_path)
    (tmp_path / "synsets.txt").write_text("\n".join(SYNSETS[:5]))
    with pytest.raises(PhotoError, match="not a list of ImageNet's 1000 synsets: it has 5"):
        read_dataset("imagenet", tmp_path)


def test_imagenet_flat_with_a_list_of_files(tmp_path: Path) -> None:
    for number in (1, 2):
        save_photo(tmp_path / f"ILSVRC2012_val_{number:08d}.JPEG")
    with pytest.raises(PhotoError, match=r"photos but no list of their classes: put val\.txt"):
        read_dataset("imagenet", tmp_path)
    listed = tmp_path / "val.txt"
    listed.write_text("ILSVRC2012_val_00000002.JPEG 970\nval/ILSVRC2012_val_00000001.JPEG 65\n")
    assert labels_by_name("imagenet", tmp_path) == {
        "ILSVRC2012_val_00000001.JPEG": (65,),
        "ILSVRC2012_val_00000002.JPEG": (970,),
    }
    listed.write_text("ILSVRC2012_val_00000002.JPEG 970\n")
    with pytest.raises(PhotoError, match="does not have ILSVRC2012_val_00000001"):
        read_dataset("imagenet", tmp_path)
    listed.write_text("ILSVRC2012_val_00000002.JPEG 1000\n")
    with pytest.raises(PhotoError, match=r"line 1 of .* is not a file and a class"):
        read_dataset("imagenet", tmp_path)


def test_imagenet_flat_with_the_official_list(tmp_path: Path) -> None:
    for number in (1, 2):
        save_photo(tmp_path / f"ILSVRC2012_val_{number:08d}.JPEG")
    truth = tmp_path / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("2\n1000\n")
    with pytest.raises(PhotoError, match="in which order it numbers classes: put synsets"):
        read_dataset("imagenet", tmp_path)
    (tmp_path / "synsets.txt").write_text("\n".join(SYNSETS[::-1]))  # not the sorted order
    assert list(labels_by_name("imagenet", tmp_path).values()) == [(998,), (0,)]
    truth.write_text("2\n")
    with pytest.raises(PhotoError, match="has 1 lines for 2 photos"):
        read_dataset("imagenet", tmp_path)
    truth.write_text("2\n1001\n")
    with pytest.raises(
        PhotoError, match=r"has '1001' for ILSVRC2012_val_00000002\.JPEG, not a class"
    ):
        read_dataset("imagenet", tmp_path)


def test_five_photos_a_class(tmp_path: Path) -> None:
    for synset in SYNSETS:
        (tmp_path / synset).mkdir()
    for number in range(9):
        save_photo(tmp_path / SYNSETS[3] / f"{number}.JPEG")
    save_photo(tmp_path / SYNSETS[2] / "9.JPEG")
    found = labels_by_name("imagenet-5k", tmp_path)
    assert sorted(found.values()) == [(2,), *[(3,)] * 5]
    assert found == labels_by_name("imagenet-5k", tmp_path)
    assert found.keys() < labels_by_name("imagenet", tmp_path).keys()
