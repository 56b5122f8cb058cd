"""The pointing game by hand."""

import pytest
import torch

from dmbp.errors import InputError
from dmbp.metrics import pointing_game


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


def test_the_first_of_equal_pixels_counts() -> None:
    assert pointing_game(torch.zeros(1, 1, 20, 20), [[(0.0, 0.0, 1.0, 1.0)]], tolerance=0).all()


def test_boxes_as_a_tensor() -> None:
    boxes = [torch.tensor([[4.0, 6.0, 8.0, 12.0]])]
    assert pointing_game(peak(5, 9), boxes, tolerance=0).all()
    assert not pointing_game(peak(3, 9), boxes, tolerance=0).any()


def test_every_image_needs_boxes() -> None:
    with pytest.raises(InputError, match="boxes were given for 0 images"):
        pointing_game(peak(0, 0), [])
    with pytest.raises(InputError, match="at least one box"):
        pointing_game(peak(0, 0), [[]])


def test_boxes_that_are_refused() -> None:
    with pytest.raises(InputError, match=r"boxes must be a list of \(left, top, right, bottom\)"):
        pointing_game(peak(0, 0), [[(1.0, 2.0, 3.0)]])  # type: ignore[list-item]
    with pytest.raises(InputError, match="ends before it begins"):
        pointing_game(peak(0, 0), [[(5.0, 2.0, 3.0, 4.0)]])
    with pytest.raises(InputError, match="tolerance must be a distance"):
        pointing_game(peak(0, 0), [[(1.0, 2.0, 3.0, 4.0)]], tolerance=-3)


def test_boxes_of_signals_and_volumes() -> None:
    signal, volume = torch.zeros(1, 2, 50), torch.zeros(1, 1, 8, 9, 10)
    signal[0, 1, 30], volume[0, 0, 5, 3, 7] = 1.0, 1.0
    assert pointing_game(signal, [[(28.0, 33.0)]], tolerance=0).all()
    assert not pointing_game(signal, [[(33.0, 40.0)]], tolerance=2).any()
    assert pointing_game(signal, [[(33.0, 40.0)]], tolerance=3).all()
    box = (7.0, 2.0, 4.0, 9.0, 3.0, 5.0)  # from x 7, y 2, z 4 to x 9, y 3, z 5
    assert pointing_game(volume, [[box]], tolerance=0).all()
    assert not pointing_game(volume.transpose(2, 4), [[box]], tolerance=1).any()


def test_boxes_that_do_not_fit_are_one_sentence() -> None:
    with pytest.raises(InputError, match=r"boxes must be a list of \(start, end\)"):
        pointing_game(torch.zeros(1, 2, 50), [[(1.0, 2.0, 3.0, 4.0)]])
    with pytest.raises(InputError, match=r"left, top, front, right, bottom, back"):
        pointing_game(torch.zeros(1, 1, 4, 4, 4), [[(1.0, 2.0, 3.0, 4.0)]])
    with pytest.raises(InputError, match="maps with places"):
        pointing_game(torch.zeros(1, 4), [[(1.0, 2.0)]])
