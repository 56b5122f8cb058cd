"""PASCAL VOC: its list of photos, its difficult objects, and errors of its layout."""

from pathlib import Path

import pytest

from dmbp.data.dataset import read_dataset
from dmbp.data.paper_datasets import read_voc
from dmbp.errors import PhotoError
from tests.data.layouts import labels_by_name, save_photo

VOC = """<annotation><size><width>20</width><height>16</height></size>
<object><name>cat</name><difficult>{}</difficult><bndbox><xmin>2</xmin><ymin>3</ymin>
<xmax>10</xmax><ymax>9</ymax></bndbox></object></annotation>"""


THREE_OBJECTS = """<annotation><size><width>200</width><height>100</height></size>
<object><name>cat</name><difficult>0</difficult>
<bndbox><xmin>20</xmin><ymin>10</ymin><xmax>60</xmax><ymax>90</ymax></bndbox></object>
<object><name>dog</name><difficult>1</difficult>
<bndbox><xmin>100</xmin><ymin>10</ymin><xmax>200</xmax><ymax>50</ymax></bndbox></object>
<object><name>cat</name>
<bndbox><xmin>0</xmin><ymin>0</ymin><xmax>10</xmax><ymax>10</ymax></bndbox></object>
</annotation>"""


def test_voc_follows_its_list(tmp_path: Path) -> None:
    for stem in ("a", "b"):
        save_photo(tmp_path / "JPEGImages" / f"{stem}.jpg")
        (tmp_path / "Annotations").mkdir(exist_ok=True)
        (tmp_path / "Annotations" / f"{stem}.xml").write_text(VOC.format(0))
    assert labels_by_name("voc", tmp_path) == {"a": ("cat",), "b": ("cat",)}
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_text("b\n")
    (only,) = read_dataset("voc", tmp_path).samples
    assert only.name == "b"
    assert only.annotation is not None
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_text("c\n")
    with pytest.raises(PhotoError, match=r"none of the photos that .* lists is annotated"):
        read_dataset("voc", tmp_path)


def test_difficult_objects_can_be_left_out(tmp_path: Path) -> None:
    """A class that only has difficult objects counts in `voc` but not in `voc-not-difficult`."""
    (tmp_path / "Annotations").mkdir()
    for stem, difficult in (("a", 0), ("b", 1)):
        save_photo(tmp_path / "JPEGImages" / f"{stem}.jpg")
        (tmp_path / "Annotations" / f"{stem}.xml").write_text(VOC.format(difficult))
    assert labels_by_name("voc", tmp_path) == {"a": ("cat",), "b": ("cat",)}
    assert labels_by_name("voc-not-difficult", tmp_path) == {"a": ("cat",)}
    dog = VOC.format(1).replace("</annotation>", "") + VOC.format(0).partition("</size>")[2]
    (tmp_path / "Annotations" / "b.xml").write_text(dog.replace("cat", "dog", 1))
    assert labels_by_name("voc", tmp_path)["b"] == ("dog", "cat")
    assert labels_by_name("voc-not-difficult", tmp_path)["b"] == ("cat",)


def test_voc_folders_that_cannot_be_used(tmp_path: Path) -> None:
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
    with pytest.raises(PhotoError, match=r"val\.txt cannot be read"):
        read_dataset("voc", tmp_path)


def test_boxes_of_an_annotation(tmp_path: Path) -> None:
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text(THREE_OBJECTS)
    (image,) = read_voc(tmp_path)
    assert image.path == tmp_path / "JPEGImages" / "a.jpg"
    assert image.classes() == ["cat", "dog"]
    assert image.classes(difficult=False) == ["cat"]
    squeezed = image.boxes("cat", size=(100, 100))
    assert squeezed == [(10.0, 10.0, 30.0, 90.0), (0.0, 0.0, 5.0, 10.0)]
    assert image.boxes("cat", size=(50, 100))[0] == (10.0, 5.0, 30.0, 45.0)


def test_folders_that_are_not_vocs(tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match="is not a VOC folder"):
        read_voc(tmp_path)
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text("<annotation/>")
    with pytest.raises(PhotoError, match="it has no size/width"):
        read_voc(tmp_path)


def test_the_real_annotations(shared: Path) -> None:
    found = read_voc(shared / "data" / "VOCdevkit" / "VOC2012")
    assert len(found) == 150
    assert all(image.path.exists() and len(image.classes()) > 1 for image in found)
