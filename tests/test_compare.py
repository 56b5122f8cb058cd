"""`dmbp compare` and `dmbp sanity`: what they print and write, and what they refuse."""

import json
from pathlib import Path

import numpy
import pytest
from PIL import Image

from dmbp.attribution import METHODS
from dmbp.render.comparison import ComparedMap, SanityRow, draw_comparison, from_nothing
from tests.test_cli import folder, run  # noqa: F401

GOOD = ("--model", "cli_models:good", "--out", "out")
FEWER = ("--set", "rise.masks=20", "--set", "blur_ig.steps=4", "--set", "lpr.iterations=2")


def smallest_side(path: str) -> int:
    with Image.open(path) as picture:
        return min(picture.size)


@pytest.mark.usefixtures("folder")
def test_all_methods_side_by_side() -> None:
    iterations = [f"--set={name}.iterations=3" for name in METHODS if name.startswith("dmbp")]
    done = run("compare", "photo.jpg", *GOOD, *FEWER, *iterations, "--target", "dog")
    assert done.exit_code == 0, done.output
    record = json.loads(Path("out/photo-methods.json").read_text())
    assert list(record["methods"]) == list(METHODS)
    assert record["target"]["name"] == "dog"
    for name, about in record["methods"].items():
        curve = about["curve"]
        assert about["insertion"] == pytest.approx(
            (sum(curve) - (curve[0] + curve[-1]) / 2) / (len(curve) - 1)
        )
        assert f"{name}: insertion {about['insertion']:.3f}" in done.output
    for picture in ("out/photo-methods.png", "out/photo-insertion.png"):
        assert smallest_side(picture) > 300
        assert picture in done.output


@pytest.mark.usefixtures("folder")
def test_one_method_and_other_formats() -> None:
    done = run(
        "compare", "photo.jpg", *GOOD, "--methods", "gradient", "--picture", "svg", "--quiet"
    )
    assert done.exit_code == 0
    assert done.output == ""
    assert Path("out/photo-methods.svg").read_text().startswith("<?xml")


@pytest.mark.usefixtures("folder")
def test_a_method_that_cannot_be_run_is_left_out_with_its_reason() -> None:
    done = run(
        "compare", "photo.jpg", "--model", "cli_models:spectral", "--methods", "gradient,deeplift"
    )
    assert done.exit_code == 0, done.output
    assert "deeplift: left out: aten.fft_rfft2.default" in done.output
    record = json.loads(Path("dmbp-out/photo-methods.json").read_text())
    assert list(record["methods"]) == ["gradient"]
    assert "fft_rfft2" in record["refused"]["deeplift"]
    alone = run("compare", "photo.jpg", "--model", "cli_models:spectral", "--methods", "deeplift")
    assert alone.exit_code == 2
    assert alone.output.count("fft_rfft2") == 1


@pytest.mark.usefixtures("folder")
def test_settings_reach_the_method_and_the_record() -> None:
    settings = ("--set", "rise.masks=9", "--set", "gradcam.layer=0", "--set", "gradcam.signed=True")
    done = run("compare", "photo.jpg", *GOOD, "--methods", "rise,gradcam", *settings)
    assert done.exit_code == 0, done.output
    record = json.loads(Path("out/photo-methods.json").read_text())
    assert record["methods"]["rise"]["settings"] == {"masks": 9}
    assert record["methods"]["gradcam"]["settings"] == {"layer": "0", "signed": True}
    assert record["insertion"] == {"steps": 28, "substrate": "blur"}
    assert record["capture_seconds"] > 0


@pytest.mark.usefixtures("folder")
def test_lines_and_sites_are_dmbps() -> None:
    model = ("--model", "cli_models:smooth", "--target", "1", "--quiet")
    asked = ("--methods", "gradient,dmbp,dmbp_pos", "--smooth", "secant", "--sites", "3*")
    maps: dict[str, dict[str, list[float]]] = {}
    for out, more in {"plain": (), "own": asked, "set": (*asked, "--set=dmbp.sites=1")}.items():
        done = run("compare", "photo.jpg", *model, *(more or asked[:2]), "--out", out)
        assert done.exit_code == 0, done.output
        methods = json.loads(Path(out, "photo-methods.json").read_text())["methods"]
        maps[out] = {name: about["curve"] for name, about in methods.items()}
    assert methods["dmbp"]["settings"] == {"smooth": "secant", "sites": "1"}
    assert methods["dmbp_pos"]["settings"]["sites"] == ["3*"]
    assert methods["gradient"]["settings"] == {}
    assert maps["plain"]["gradient"] == maps["own"]["gradient"]
    assert maps["plain"]["dmbp"] != maps["own"]["dmbp"] != maps["set"]["dmbp"]
    sanity = ("sanity", "photo.jpg", *model, "--methods", "dmbp", "--draws", "1")
    correlations = set[float]()
    for more in ((), ("--sites", "1")):
        assert run(*sanity, *more).exit_code == 0
        correlations |= set(
            json.loads(Path("dmbp-out/photo-sanity.json").read_text())["correlation"].values()
        )
    assert len(correlations) == 2


@pytest.mark.usefixtures("folder")
def test_sanity() -> None:
    done = run(
        "sanity", "photo.jpg", *GOOD, "--methods", "gradient,guided_backprop,random", "--draws", "2"
    )
    assert done.exit_code == 0, done.output
    record = json.loads(Path("out/photo-sanity.json").read_text())
    assert record["draws"] == 2
    assert record["correlation"]["random"] == pytest.approx(1.0)
    assert "random: |ρ| = 1.000: stays" in done.output
    assert smallest_side("out/photo-sanity.png") > 300


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("compare", "nowhere.jpg"), "there is no file nowhere.jpg"),
        (("compare", "photo.jpg", "--methods", "gradcan"), "did you mean 'gradcam'"),
        (("compare", "photo.jpg", "--set", "rise.mask=3"), "no setting of rise 'mask'"),
        (("compare", "photo.jpg", "--set", "rise=3"), "a setting is written as"),
        (("compare", "photo.jpg", "--set", "ris.masks=3"), "no method 'ris'"),
        (
            ("compare", "photo.jpg", "--methods", "gradient", "--set", "rise.masks=3"),
            "sets a method that is not asked for",
        ),
        (
            ("compare", "photo.jpg", "--methods", "rise", "--set", "rise.masks=0"),
            "masks and cells must be 1 or more",
        ),
        (("compare", "photo.jpg", "--target", "7"), "class 7 is out of range"),
        (("compare", "photo.jpg", "--methods", ","), "no method is named"),
        (("compare", "."), "is a folder; this command takes one photo"),
        (("compare", "photo.jpg", "--set", "rise.masks=1e3"), "rise.masks is a whole number"),
        (("compare", "photo.jpg", "--set", "rise.masks=0"), "masks and cells must be 1 or more"),
        (("compare", "photo.jpg", "--set", "rise.open=nan"), "rise.open is a number, not 'nan'"),
        (("compare", "photo.jpg", "--set", "rise.preset=1"), "no preset '1'"),
        (("compare", "photo.jpg", "--set", "gradcam.signed=maybe"), "is True or False"),
        (("compare", "photo.jpg", "--set", "dmbp.combine=3"), "dmbp.combine is sum or own_signs"),
        (("compare", "photo.jpg", "--set", "random.seed=3"), "random has no settings"),
        (
            ("compare", "photo.jpg", "--methods", "dmbp,gradient", "--sites", "layr*"),
            "dmbp: the network has no site 'layr*'",
        ),
        (
            ("compare", "photo.jpg", "--methods", "gradient", "--smooth", "secant"),
            "--smooth of DMBP cannot be used without it; add dmbp to --methods",
        ),
        (
            ("compare", "photo.jpg", "--methods", "dmbp", "--set", "dmbp.smooth=secnt"),
            "did you mean 'secant'?",
        ),
        (("sanity", "photo.jpg", "--draws", "0"), "draws must be 1 or more"),
        (("sanity", "photo.jpg", "--methods", "nothing"), "no method 'nothing'"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_input_gets_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    done = run(*arguments, "--model", "cli_models:good", "--out", "out")
    assert done.exit_code == 2
    assert sentence in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert not Path("out").exists()


def test_methods_are_listed() -> None:
    lines = run("methods").output.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)


def test_maps_without_negatives_are_drawn_from_their_weakest_place() -> None:
    import numpy

    assert from_nothing(numpy.array([2.0, 5.0])).tolist() == [0.0, 3.0]
    assert from_nothing(numpy.array([-2.0, 5.0])).tolist() == [-2.0, 5.0]


@pytest.mark.parametrize(
    ("correlations", "words"),
    [
        ([0.05], "changes:"),
        ([0.2, -0.3], "changes:"),
        ([0.9, -0.4], "in part"),
        ([1.0, -1.0, -1.0], "stays:"),  # its opposite is the same map
        ([0.9, 0.0], "in part"),
        ([0.98, 0.8], "stays:"),
    ],
)
def test_the_correlation_in_words(correlations: list[float], words: str) -> None:
    import numpy

    something = numpy.eye(2)
    assert words in SanityRow("", something, something, correlations).verdict
    nothing = numpy.zeros((2, 2))
    assert "nothing to compare" in SanityRow("", something, nothing, correlations).verdict


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["compare", "sanity"])
def test_one_class_at_a_time(command: str) -> None:
    done = run(command, "photo.jpg", *GOOD, "--target", "cat", "--target", "dog")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "about one class: give --target once" in done.stderr


def test_a_blank_map_is_called_that() -> None:
    """Its score is that of pixels in the order they lie in."""
    blank, other = numpy.zeros((4, 4)), numpy.eye(4)
    maps = [ComparedMap(n, m, [0.0, 1.0], 0.5, 0.1) for n, m in (("a", blank), ("b", other))]
    figure = draw_comparison(numpy.zeros((4, 4, 3)), "a photo", maps)
    titles = [axis.get_title() for axis in figure.axes]
    assert "a\nblank, row by row 0.50 · 0.1 s" in titles
    assert "b\ninsertion 0.50 · 0.1 s" in titles
