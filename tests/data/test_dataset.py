"""Datasets in every layout, made here; and what is said where one is not right."""

from pathlib import Path

import pytest
from PIL import Image

from dmbp.data.dataset import READERS, read_dataset
from dmbp.errors import DMBPError, PhotoError

SYNSETS = [f"n{number:08d}" for number in range(1000, 2000)]


def photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 16), "red").save(path)


def named(kind: str, root: Path) -> dict[str, tuple[int | str, ...]]:
    return {sample.name: sample.labels for sample in read_dataset(kind, root).samples}


def test_imagenet_by_synset(tmp_path: Path) -> None:
    for synset in SYNSETS:
        (tmp_path / synset).mkdir()
    photo(tmp_path / SYNSETS[7] / "ILSVRC2012_val_00000002.JPEG")
    photo(tmp_path / SYNSETS[0] / "ILSVRC2012_val_00000001.JPEG")
    assert named("imagenet", tmp_path) == {
        f"{SYNSETS[0]}/ILSVRC2012_val_00000001.JPEG": (0,),
        f"{SYNSETS[7]}/ILSVRC2012_val_00000002.JPEG": (7,),
    }


def test_a_part_of_imagenet_needs_the_list_of_synsets(tmp_path: Path) -> None:
    photo(tmp_path / SYNSETS[7] / "one.JPEG")
    with pytest.raises(PhotoError, match=r"has 1 folders of synsets, not 1000: put synsets\.txt"):
        read_dataset("imagenet", tmp_path)
    (tmp_path / "synsets.txt").write_text("\n".join(f"{name} fish" for name in SYNSETS[::-1]))
    assert named("imagenet", tmp_path) == {f"{SYNSETS[7]}/one.JPEG": (7,)}
    (tmp_path / "synsets.txt").write_text("\n".join([*SYNSETS[:7], "n99999999", *SYNSETS[8:]]))
    with pytest.raises(PhotoError, match=f"does not have {SYNSETS[7]}"):
        read_dataset("imagenet", tmp_path)
    (tmp_path / "synsets.txt").write_text("\n".join(SYNSETS[:5]))
    with pytest.raises(PhotoError, match="not a list of ImageNet's 1000 synsets: it has 5"):
        read_dataset("imagenet", tmp_path)


def test_imagenet_flat_with_a_list_of_files(tmp_path: Path) -> None:
    for number in (1, 2):
        photo(tmp_path / f"ILSVRC2012_val_{number:08d}.JPEG")
    with pytest.raises(PhotoError, match=r"photos but no list of what is on them: put val\.txt"):
        read_dataset("imagenet", tmp_path)
    listed = tmp_path / "val.txt"
    listed.write_text("ILSVRC2012_val_00000002.JPEG 970\nval/ILSVRC2012_val_00000001.JPEG 65\n")
    assert named("imagenet", tmp_path) == {
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
        photo(tmp_path / f"ILSVRC2012_val_{number:08d}.JPEG")
    truth = tmp_path / "ILSVRC2012_validation_ground_truth.txt"
    truth.write_text("2\n1000\n")
    with pytest.raises(PhotoError, match="an order of its own: put synsets"):
        read_dataset("imagenet", tmp_path)
    (tmp_path / "synsets.txt").write_text("\n".join(SYNSETS[::-1]))  # not the sorted order
    assert list(named("imagenet", tmp_path).values()) == [(998,), (0,)]
    truth.write_text("2\n")
    with pytest.raises(PhotoError, match="has 1 lines for 2 photos"):
        read_dataset("imagenet", tmp_path)
    truth.write_text("2\n1001\n")
    with pytest.raises(PhotoError, match=r"has '1001' for ILSVRC2012_val_00000002\.JPEG, no class"):
        read_dataset("imagenet", tmp_path)


def test_folders_of_classes(tmp_path: Path) -> None:
    photo(tmp_path / "dog" / "two.jpg")
    photo(tmp_path / "cat" / "one.png")
    (tmp_path / "cat" / "notes.txt").write_text("not a photo")
    assert named("folder", tmp_path) == {"cat/one.png": ("cat",), "dog/two.jpg": ("dog",)}
    assert len(read_dataset("folder", tmp_path).first(1).samples) == 1


VOC = """<annotation><size><width>20</width><height>16</height></size>
<object><name>cat</name><difficult>{}</difficult><bndbox><xmin>2</xmin><ymin>3</ymin>
<xmax>10</xmax><ymax>9</ymax></bndbox></object></annotation>"""


def test_voc_follows_its_list(tmp_path: Path) -> None:
    for stem in ("a", "b"):
        photo(tmp_path / "JPEGImages" / f"{stem}.jpg")
        (tmp_path / "Annotations").mkdir(exist_ok=True)
        (tmp_path / "Annotations" / f"{stem}.xml").write_text(VOC.format(0))
    assert named("voc", tmp_path) == {"a": ("cat",), "b": ("cat",)}
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_text("b\n")
    (only,) = read_dataset("voc", tmp_path).samples
    assert only.name == "b"
    assert only.annotation is not None
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_text("c\n")
    with pytest.raises(PhotoError, match=r"none of the photos that .* lists is annotated"):
        read_dataset("voc", tmp_path)


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
def test_manifests_that_are_not(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(PhotoError, match=said):
        read_dataset("manifest", tmp_path / "list.csv")


EMPTY = {
    "imagenet": "has neither folders of synsets .* nor photos",
    "imagenet-5k": "has neither folders of synsets .* nor photos",
    "voc": "is not a VOC folder: there are no files in .*/Annotations",
    "voc-not-difficult": "is not a VOC folder: there are no files in .*/Annotations",
    "folder": "has no folders with photos, one folder for each class",
    "manifest": "cannot read .*: .*Is a directory",
}


@pytest.mark.parametrize("kind", READERS)
def test_what_is_not_there(kind: str, tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match="there is no folder or file"):
        read_dataset(kind, tmp_path / "nowhere")
    with pytest.raises(PhotoError, match=EMPTY[kind]):
        read_dataset(kind, tmp_path)  # empty
    photo(tmp_path / "one.png")
    with pytest.raises(PhotoError, match=r"one\.png"):
        read_dataset(kind, tmp_path / "one.png")
    with pytest.raises(DMBPError, match="no kind of dataset 'imagnet'; did you mean 'imagenet'"):
        read_dataset("imagnet", tmp_path)


def test_voc_with_and_without_what_is_difficult(tmp_path: Path) -> None:
    """A class with difficult instances alone counts in one and not in the other."""
    (tmp_path / "Annotations").mkdir()
    for stem, difficult in (("a", 0), ("b", 1)):
        photo(tmp_path / "JPEGImages" / f"{stem}.jpg")
        (tmp_path / "Annotations" / f"{stem}.xml").write_text(VOC.format(difficult))
    assert named("voc", tmp_path) == {"a": ("cat",), "b": ("cat",)}
    assert named("voc-not-difficult", tmp_path) == {"a": ("cat",)}
    dog = VOC.format(1).replace("</annotation>", "") + VOC.format(0).partition("</size>")[2]
    (tmp_path / "Annotations" / "b.xml").write_text(dog.replace("cat", "dog", 1))
    assert named("voc", tmp_path)["b"] == ("dog", "cat")
    assert named("voc-not-difficult", tmp_path)["b"] == ("cat",)


def test_five_photos_a_class(tmp_path: Path) -> None:
    for synset in SYNSETS:
        (tmp_path / synset).mkdir()
    for number in range(9):
        photo(tmp_path / SYNSETS[3] / f"{number}.JPEG")
    photo(tmp_path / SYNSETS[2] / "9.JPEG")
    found = named("imagenet-5k", tmp_path)
    assert sorted(found.values()) == [(2,), *[(3,)] * 5]
    assert found == named("imagenet-5k", tmp_path)
    assert found.keys() < named("imagenet", tmp_path).keys()


def test_voc_where_nothing_counts(tmp_path: Path) -> None:
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text(VOC.format(1))
    with pytest.raises(PhotoError, match=r"no photo of .* has an object that counts"):
        read_dataset("voc-not-difficult", tmp_path)
    (tmp_path / "Annotations" / "a.xml").write_text("<annotation>")
    with pytest.raises(PhotoError, match=r"a\.xml is not a VOC annotation"):
        read_dataset("voc", tmp_path)
    (tmp_path / "Annotations" / "a.xml").write_text(VOC.format(0))
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PhotoError, match=r"cannot read .*val\.txt"):
        read_dataset("voc", tmp_path)
