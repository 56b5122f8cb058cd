"""The pointing game by hand, and VOC's boxes."""

from pathlib import Path

import pytest
import torch

from dmbp.data.voc import read_voc
from dmbp.errors import InputError, PhotoError
from dmbp.metrics import pointing_game

ANNOTATION = """<annotation><size><width>200</width><height>100</height></size>
<object><name>cat</name><difficult>0</difficult>
<bndbox><xmin>20</xmin><ymin>10</ymin><xmax>60</xmax><ymax>90</ymax></bndbox></object>
<object><name>dog</name><difficult>1</difficult>
<bndbox><xmin>100</xmin><ymin>10</ymin><xmax>200</xmax><ymax>50</ymax></bndbox></object>
<object><name>cat</name>
<bndbox><xmin>0</xmin><ymin>0</ymin><xmax>10</xmax><ymax>10</ymax></bndbox></object>
</annotation>"""


def peak(x: int, y: int) -> torch.Tensor:
    maps = torch.zeros(1, 3, 20, 20)
    maps[0, 1, y, x] = 2.0
    return maps


def test_hits_and_misses() -> None:
    box = [(4.0, 6.0, 8.0, 12.0)]
    assert pointing_game(peak(4, 12), [box], tolerance=0).tolist() == [True]
    assert pointing_game(peak(9, 9), [box], tolerance=0).tolist() == [False]
    assert pointing_game(peak(9, 9), [box], tolerance=1).tolist() == [True]
    assert pointing_game(peak(11, 16), [box], tolerance=4.9).tolist() == [False]  # 3 and 4 away
    assert pointing_game(peak(11, 16), [box], tolerance=5).tolist() == [True]
    assert pointing_game(peak(11, 16), [[*box, (11.0, 16.0, 12.0, 17.0)]], tolerance=0).all()


def test_of_equal_pixels_the_first_points() -> None:
    assert pointing_game(torch.zeros(1, 1, 20, 20), [[(0.0, 0.0, 1.0, 1.0)]], tolerance=0).all()


def test_boxes_must_be_there() -> None:
    with pytest.raises(InputError, match="boxes were given for 0 images"):
        pointing_game(peak(0, 0), [])
    with pytest.raises(InputError, match="at least one box"):
        pointing_game(peak(0, 0), [[]])


def test_boxes_that_are_none() -> None:
    assert pointing_game(peak(5, 9), [torch.tensor([[4.0, 6.0, 8.0, 12.0]])]).all()
    with pytest.raises(InputError, match=r"boxes must be a list of \(left, top, right, bottom\)"):
        pointing_game(peak(0, 0), [[(1.0, 2.0, 3.0)]])  # type: ignore[list-item]
    with pytest.raises(InputError, match="ends before it begins"):
        pointing_game(peak(0, 0), [[(5.0, 2.0, 3.0, 4.0)]])
    with pytest.raises(InputError, match="tolerance must be a distance"):
        pointing_game(peak(0, 0), [[(1.0, 2.0, 3.0, 4.0)]], tolerance=-3)


def test_annotations(tmp_path: Path) -> None:
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text(ANNOTATION)
    (image,) = read_voc(tmp_path)
    assert image.path == tmp_path / "JPEGImages" / "a.jpg"
    assert image.classes() == ["cat", "dog"]
    assert image.classes(difficult=False) == ["cat"]
    assert image.boxes("cat", side=100) == [(10.0, 10.0, 30.0, 90.0), (0.0, 0.0, 5.0, 10.0)]


def test_folders_that_are_not_vocs(tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match="is not a VOC folder"):
        read_voc(tmp_path)
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text("<annotation/>")
    with pytest.raises(PhotoError, match="it has no size/width"):
        read_voc(tmp_path)


def test_the_real_ones(shared: Path) -> None:
    found = read_voc(shared / "data" / "VOCdevkit" / "VOC2012")
    assert len(found) == 150
    assert all(image.path.exists() and len(image.classes()) > 1 for image in found)
