"""Names in a crowd of points."""

from itertools import combinations

from dmbp.render.benchmark import NAME_DISTANCE, LabelBox, Point, place_names


def point(x: float, y: float, *, error: float = 0.0, width: float = 0.1) -> Point:
    return Point(x, y, y - error, y + error, width, 0.06)


def test_a_name_alone_stands_to_the_right() -> None:
    ((box, is_left),) = place_names([point(0.3, 0.5)])
    assert not is_left
    assert box.left == 0.3 + NAME_DISTANCE
    assert abs(box.bottom + box.top - 1.0) < 1e-12


def test_at_the_edge_it_stands_to_the_left() -> None:
    ((box, is_left),) = place_names([point(0.95, 0.5)])
    assert is_left
    assert box.right == 0.95 - NAME_DISTANCE


def test_names_cover_neither_each_other_nor_points() -> None:
    points = [point(0.4 + 0.04 * k, 0.5 + 0.03 * k, error=0.05) for k in range(5)]
    names = [box for box, _ in place_names(points)]
    for one, other in combinations(names, 2):
        assert one.overlap(other) <= 1e-12
    dots = [one.boxes()[0] for one in points]
    assert sum(name.overlap(dot) for name in names for dot in dots) <= 1e-12


def test_what_two_boxes_share() -> None:
    assert abs(LabelBox(0, 0, 2, 2).overlap(LabelBox(1, 1, 3, 3)) - 1) < 1e-12
    assert LabelBox(0, 0, 1, 1).overlap(LabelBox(1, 0, 2, 1)) == 0
    assert LabelBox(0, 0, 1, 1).overlap(LabelBox(3, 3, 4, 4)) == 0
