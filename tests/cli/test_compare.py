"""`dmbp compare` and `dmbp sanity`: what they print and write, and what they refuse."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image

from dmbp.attribution import COMPARED, METHODS
from dmbp.baseline import baseline_for
from dmbp.engine.forward.convolution import has_onednn
from dmbp.metrics import pixel_ranks, replace_pixels
from dmbp.models import load_model
from dmbp.workflows.compare import FRACTIONS, make_quick
from tests.cli.commands import read_record, run

GOOD = ("--model", "tests.cli.networks:good", "--out", "out")
FEWER = ("--set", "rise.masks=20", "--set", "blur_ig.steps=4", "--set", "lpr.iterations=2",
         "--set", "occlusion.window=0.5")  # fmt: skip


def smallest_side(path: str) -> int:
    with Image.open(path) as picture:
        return min(picture.size)


@pytest.mark.usefixtures("folder")
def test_methods_side_by_side() -> None:
    iterations = [f"--set={name}.iterations=3" for name in COMPARED if name.startswith("dmbp")]
    done = run("compare", "photo.jpg", *GOOD, *FEWER, *iterations, "--target", "dog")
    assert done.exit_code == 0, done.output
    record = read_record("out/photo-methods.json")
    assert list(record["methods"]) == list(COMPARED)
    assert record["target"]["name"] == "dog"
    for name, about in record["methods"].items():
        curve = about["curve"]
        assert about["insertion"] == pytest.approx(
            (sum(curve) - (curve[0] + curve[-1]) / 2) / (len(curve) - 1)
        )
        assert f"{name}: insertion {about['insertion']:.3f}" in done.output
        removal = about["removal"]
        assert removal["red_true"] == (removal["score_without_positive"] < removal["score"])
        rises = removal["score_without_negative"] > removal["score"]
        claims = removal["negative_share"] > 0.05
        assert removal["blue_true"] == (rises if claims else None)
        assert removal["positive_removed"] <= 0.1001
    methods = record["methods"]
    assert record["removal"] == {"share": 0.1, "substrate": "blur"}
    assert methods["gradcam"]["removal"]["blue_true"] is None  # it has no negative pixels
    assert methods["gradient"]["removal"]["claims_blue"]
    (probability,) = {about["removal"]["probability"] for about in methods.values()}
    assert probability == pytest.approx(methods["dmbp"]["curve"][-1])
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
def test_the_layer_that_methods_show() -> None:
    asked = ("compare", "photo.jpg", "--model", "tests.cli.networks:tokens", "--out", "out")
    asked = (*asked, "--methods", "gradcam,gradient", "--set", "gradcam.signed=True")
    done = run(*asked)
    assert done.exit_code == 0, done.output
    record = read_record("out/photo-methods.json")["methods"]
    layer = record["gradcam"]["layer"]
    assert layer["size"] == [8, 8]
    assert f"layer {layer['name']} (8×8)" in done.output
    assert "layer" not in record["gradient"]
    # After the last norm only the class token is read, so the map of the patches is zero.
    blank = run(*asked, "--set", "gradcam.layer=norms.4")
    assert blank.exit_code == 0, blank.output
    said = "GradCAM's map at norms.4 is zero everywhere: the score does not depend on it"
    assert sum(said in line for line in blank.output.splitlines()) == 1
    assert "layer norms.4 (8×8)" in blank.output


@pytest.mark.usefixtures("folder")
def test_every_photo_of_a_strip_has_its_probability() -> None:
    asked = ("--methods", "gradient,random", "--target", "dog", "--picture", "svg")
    assert run("compare", "photo.jpg", *GOOD, *asked).exit_code == 0
    classifier = load_model("tests.cli.networks:good")
    with Image.open("photo.jpg") as photo:
        inputs = classifier.preprocessing.tensor(classifier.preprocessing.view(photo))
    ranks = pixel_ranks(METHODS["gradient"](classifier.module).attribute(inputs, 1), inputs)
    expected: list[str] = []
    for fraction in FRACTIONS:
        changed = replace_pixels(
            inputs, baseline_for(inputs, "blur"), ranks, torch.tensor([fraction])
        )
        with torch.no_grad():
            likely = classifier.probabilities(classifier.module(changed)[0])[1].item()
        expected.append(f"dog {likely:.0%}")
    picture = Path("out/photo-insertion.svg").read_text()
    shown = re.findall(r"<!-- (dog \d+%) -->", picture)
    assert len(shown) == 2 * len(FRACTIONS)
    assert expected in (shown[: len(FRACTIONS)], shown[len(FRACTIONS) :])
    assert "<!-- Random order (control) -->" in Path("out/photo-methods.svg").read_text()


@pytest.mark.usefixtures("folder")
def test_a_method_that_cannot_be_run_is_left_out_with_its_reason() -> None:
    done = run(
        "compare",
        "photo.jpg",
        "--model",
        "tests.cli.networks:spectral",
        "--methods",
        "gradient,deeplift",
    )
    assert done.exit_code == 0, done.output
    assert "deeplift: left out: aten.fft_rfft2.default" in done.output
    record = read_record("dmbp-out/photo-methods.json")
    assert list(record["methods"]) == ["gradient"]
    assert "fft_rfft2" in record["refused"]["deeplift"]
    alone = run(
        "compare", "photo.jpg", "--model", "tests.cli.networks:spectral", "--methods", "deeplift"
    )
    assert alone.exit_code == 2
    assert alone.output.count("fft_rfft2") == 1


@pytest.mark.usefixtures("folder")
def test_settings_reach_the_method_and_the_record() -> None:
    settings = ("--set", "rise.masks=9", "--set", "gradcam.layer=0", "--set", "gradcam.signed=True")
    done = run("compare", "photo.jpg", *GOOD, "--methods", "rise,gradcam", *settings)
    assert done.exit_code == 0, done.output
    record = read_record("out/photo-methods.json")
    assert record["methods"]["rise"]["settings"] == {"masks": 9}
    assert record["methods"]["gradcam"]["settings"] == {"layer": "0", "signed": True}
    assert record["insertion"] == {"steps": 28, "substrate": "blur"}
    assert record["capture_seconds"] > 0
    assert "may take" not in done.stdout


@pytest.mark.usefixtures("folder")
def test_a_method_that_takes_minutes_says_so_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmbp.workflows.compare.ANNOUNCED", 0.0)
    settings = ("--set", "rise.masks=60")
    done = run("compare", "photo.jpg", *GOOD, "--methods", "gradient,rise", *settings)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    (gradient, rise) = [line for line in lines if "may take" in line]
    assert gradient.startswith("gradient may take ")
    assert rise.startswith("rise runs the model on 60 images, which may take ")
    assert rise.endswith(" s; with --set rise.masks=10, a sixth of that")
    # Before the first slow method with one before it, the figures are written with what is known.
    so_far = next(k for k, line in enumerate(lines) if line.endswith(", 1 methods so far"))
    assert "out/photo-methods.png" in lines[so_far]
    assert lines[so_far + 1] == rise
    assert list(read_record("out/photo-methods.json")["methods"]) == ["gradient", "rise"]


@pytest.mark.usefixtures("folder")
def test_fast_methods_run_first() -> None:
    settings = ("--set", "rise.masks=60", "--set", "dmbp_fast.iterations=3")
    asked = ("--methods", "rise,dmbp_fast,gradient", *settings)
    done = run("compare", "photo.jpg", *GOOD, *asked)
    assert done.exit_code == 0, done.output
    names = [line.partition(":")[0] for line in done.stdout.splitlines()[:3]]
    assert names == ["gradient", "dmbp_fast", "rise"]
    assert list(read_record("out/photo-methods.json")["methods"]) == [
        "rise",
        "dmbp_fast",
        "gradient",
    ]


@pytest.mark.usefixtures("folder")
def test_a_quick_comparison_says_what_it_changes() -> None:
    done = run(
        "compare", "photo.jpg", *GOOD, "--methods", "rise,lpr", "--quick", "--set=lpr.iterations=2"
    )
    assert done.exit_code == 0, done.output
    said, _, *_ = done.stdout.splitlines()
    assert said == "quick: rise has 1,000 masks in place of 6,000"
    methods = read_record("out/photo-methods.json")["methods"]
    assert list(methods) == ["rise", "lpr"]
    assert methods["rise"]["settings"]["masks"] == 1000
    has_bfloat16 = has_onednn(torch.device("cpu"), torch.bfloat16)
    assert methods["rise"]["settings"].get("precision") == ("bfloat16" if has_bfloat16 else None)


def test_what_a_quick_comparison_leaves_out() -> None:
    names, settings, said = make_quick([*METHODS], {"rise": {"masks": 20}}, are_all=True)
    assert set(METHODS) - set(names) == {"lpr", "dmbp_paper"}
    assert settings == {"rise": {"masks": 20}}
    assert said == "quick: lpr and dmbp_paper are left out"
    assert "lpr" in make_quick([*METHODS], {"lpr": {"iterations": 2}}, are_all=True)[0]


@pytest.mark.usefixtures("folder")
def test_lines_and_sites_are_dmbps() -> None:
    model = ("--model", "tests.cli.networks:smooth", "--target", "1", "--quiet")
    asked = ("--methods", "gradient,dmbp,dmbp_pos", "--smooth", "secant", "--sites", "3*")
    maps: dict[str, dict[str, list[float]]] = {}
    for out, more in {"plain": (), "own": asked, "set": (*asked, "--set=dmbp.sites=1")}.items():
        done = run("compare", "photo.jpg", *model, *(more or asked[:2]), "--out", out)
        assert done.exit_code == 0, done.output
        methods = read_record(f"{out}/photo-methods.json")["methods"]
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
        correlations |= set(read_record("dmbp-out/photo-sanity.json")["correlation"].values())
    assert len(correlations) == 2


@pytest.mark.usefixtures("folder")
def test_sanity() -> None:
    done = run(
        "sanity", "photo.jpg", *GOOD, "--methods", "gradient,guided_backprop,random", "--draws", "2"
    )
    assert done.exit_code == 0, done.output
    record = read_record("out/photo-sanity.json")
    assert record["draws"] == 2
    assert record["correlation"]["random"] == pytest.approx(1.0)
    assert "random: |ρ| = 1.000: stays" in done.output
    assert smallest_side("out/photo-sanity.png") > 300


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("compare", "nowhere.jpg"), "there is no file nowhere.jpg"),
        (("compare", "photo.jpg", "--methods", "gradcan"), "did you mean 'gradcam'"),
        (
            ("compare", "photo.jpg", "--set", "rise.mask=3"),
            "rise takes no setting 'mask'; did you mean 'masks'?",
        ),
        (("compare", "photo.jpg", "--set", "rise=3"), "a setting is written as"),
        (("compare", "photo.jpg", "--set", "ris.masks=3"), "no method 'ris'"),
        (
            ("compare", "photo.jpg", "--methods", "gradient", "--set", "rise.masks=3"),
            "sets a method that will not run; add rise to the methods",
        ),
        (
            ("compare", "photo.jpg", "--methods", "rise", "--set", "rise.masks=0"),
            "masks must be from 1 to 100,000, not 0",
        ),
        (("compare", "photo.jpg", "--target", "7"), "class 7 is out of range"),
        (("compare", "photo.jpg", "--methods", ","), "no method is named"),
        (("compare", "."), "is a folder; this command takes one photo"),
        (
            ("compare", "photo.jpg", "--set", "rise.masks=1e3"),
            "rise.masks must be a whole number, not '1e3'",
        ),
        (("compare", "photo.jpg", "--set", "rise.cells=0"), "cells must be from 1 to 1,000, not 0"),
        (
            ("compare", "photo.jpg", "--set", "rise.open=nan"),
            "rise.open must be a number, not 'nan'",
        ),
        (("compare", "photo.jpg", "--set", "rise.preset=1"), "no preset '1'"),
        (
            ("compare", "photo.jpg", "--set", "gradcam.signed=maybe"),
            "gradcam.signed must be True or False",
        ),
        (
            ("compare", "photo.jpg", "--set", "dmbp.combine=3"),
            "there is no combine '3'; there are sum, own_signs",
        ),
        (("compare", "photo.jpg", "--set", "random.seed=3"), "random has no settings"),
        (
            ("compare", "photo.jpg", "--methods", "dmbp,gradient", "--sites", "layr*"),
            "dmbp: the network has no site 'layr*'",
        ),
        (
            ("compare", "photo.jpg", "--methods", "gradient", "--smooth", "secant"),
            "--smooth applies only to DMBP; add dmbp to --methods",
        ),
        (
            ("compare", "photo.jpg", "--methods", "dmbp", "--set", "dmbp.smooth=secnt"),
            "did you mean 'secant'?",
        ),
        (("sanity", "photo.jpg", "--draws", "0"), "draws must be from 1 to 100, not 0"),
        (("sanity", "photo.jpg", "--draws", "1000000"), "draws must be from 1 to 100, not 1000000"),
        (("sanity", "photo.jpg", "--methods", "nothing"), "no method 'nothing'"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_input_gets_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    done = run(*arguments, "--model", "tests.cli.networks:good", "--out", "out")
    assert done.exit_code == 2
    assert sentence in done.output
    assert len(done.output.strip().splitlines()) == 1
    assert not Path("out").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["compare", "sanity"])
def test_one_class_at_a_time(command: str) -> None:
    done = run(command, "photo.jpg", *GOOD, "--target", "cat", "--target", "dog")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "about one target: give --target once" in done.stderr
