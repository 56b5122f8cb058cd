"""Targets on the command line: every kind goes through the pictures, the report and the files."""

import json
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

import dmbp
from dmbp.targets import Region
from tests.cli.commands import NETWORKS, read_record, run, run_explain
from tests.cli.networks import quarter_maps

ASKED = {
    "quarter_maps": [
        *("region:cat", "region:dog@box=5,5,40.125,30", "region:@point=30,20"),
        Region("cat", mask=torch.eye(40, 60)).text,
        "0.3333333333333333*region:cat + -1*region:dog@point=12,20",
    ],
    "detector": ["box:0", "box:dog", "box:class=1", "box:cat@near=30,20", "-1*box:cat + 2*box:2"],
    "reader": ["step:3=b", "step:0", "step:#0", "step:#0=a"],
    "regression": ["value:1", "2*value:0 + -1*value:2"],
    "encoder": ["similarity:prompt=a tree", "similarity:image=photo.png"],
    "good": ["class:cat", "margin:cat>dog", "margin:dog>rivals", "1e-07*class:2 + 1*class:cat"],
}


@pytest.mark.parametrize("network", ASKED)
def test_every_kind_of_target_is_explained_drawn_and_named(network: str, folder: Path) -> None:
    targets = [part for target in ASKED[network] for part in ("--target", target)]
    model = f"{NETWORKS}:{network}"
    result = run_explain("photo.jpg", *targets, "--preset", "fast", "--report", model=model)
    assert result.exit_code == 0, result.output
    record = read_record()
    written = [target["target"] for target in record["targets"]]
    assert all(text in ASKED[network] or network in ("encoder",) for text in written)
    assert len(record["targets"]) == len(ASKED[network])
    names = [target["name"] for target in record["targets"]]
    report = (folder / "dmbp-out/report.html").read_text()
    assert all(name in report for name in names)
    # What the file says can be asked again, and gives the same.
    again = [part for target in written for part in ("--target", target)]
    first = [target["terms"] for target in record["targets"]]
    assert run_explain("photo.jpg", *again, "--preset", "fast", model=model).exit_code == 0
    assert [target["terms"] for target in read_record()["targets"]] == first


@pytest.mark.parametrize(
    ("network", "kind"),
    [("quarter_maps", "region:"), ("detector", "box:0"), ("reader", "step:#0")],
)
def test_without_a_target_the_most_likely_question_is_asked(
    network: str, kind: str, folder: Path
) -> None:
    result = run_explain("photo.jpg", "--preset", "fast", model=f"{NETWORKS}:{network}")
    assert result.exit_code == 0, result.output
    (target,) = read_record()["targets"]
    assert target["target"].startswith(kind)


def test_a_mask_of_the_photo_is_cropped_like_the_photo(folder: Path) -> None:
    mask = numpy.zeros((40, 60), numpy.uint8)
    mask[:, 20:40] = 255  # of the pixels 10 to 50, which become 16 columns of the outputs
    Image.fromarray(mask).save(folder / "mask.png")
    target = "region:cat@mask=mask.png"
    model = f"{NETWORKS}:quarter_maps"
    result = run_explain("photo.jpg", "--target", target, "--preset", "fast", model=model)
    assert result.exit_code == 0, result.output
    (found,) = read_record()["targets"]
    classifier = quarter_maps()
    with Image.open("photo.jpg") as photo, torch.no_grad():
        view = classifier.preprocessing.view(photo)
        outputs = classifier.module(classifier.preprocessing.tensor(view))
    expected = float(outputs[0, 1, :, 4:12].mean())
    assert found["terms"]["output"] == pytest.approx(expected, abs=1e-6)


WRONG = {
    ("detector", "box:99"): "there is no box 99",
    ("detector", "box:bird"): "no class 'bird'",
    ("detector", "region:cat"): "Region is for",
    ("detector", "step:3"): "ask about one of its boxes, such as box:0",
    ("detector", "class:cat"): "Class is for outputs (classes,)",
    ("quarter_maps", "region:cat@mask=empty.png"): "the mask is empty",
    ("quarter_maps", "region:cat@mask=gone.png"): "gone.png",
    ("quarter_maps", "region:cat@box=500,500,600,600"): "outside the image",
    ("quarter_maps", "box:0"): "Box is for detectors",
    ("reader", "step:99"): "step 99",
    ("reader", "step:#99"): "character",
    ("regression", "value:9"): "no value 9",
    ("good", "similarity:prompt=a cat"): "no text encoder",
    ("good", "regoin:cat"): "regoin",
    ("encoder", "similarity:image=gone.png"): "gone.png",
}


@pytest.mark.parametrize(("network", "target"), WRONG)
def test_a_bad_target_is_one_sentence(network: str, target: str, folder: Path) -> None:
    Image.new("L", (60, 40)).save(folder / "empty.png")
    result = run_explain("photo.jpg", "--target", target, model=f"{NETWORKS}:{network}")
    assert result.exit_code == 2, result.output
    assert WRONG[network, target] in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    assert not list(folder.glob("dmbp-out/*"))


def test_boxes_are_listed_and_asked_about_by_number(folder: Path) -> None:
    model = f"{NETWORKS}:detector"
    result = run("boxes", "photo.jpg", "--model", model)
    assert result.exit_code == 0, result.output
    assert "  0  dog          58.4%" in result.stdout
    found = json.loads((folder / "dmbp-out/photo-boxes.json").read_text())
    assert found["boxes"]
    result = run("boxes", "photo.jpg", "--model", f"{NETWORKS}:good")
    assert result.exit_code == 2
    assert "Box is for detectors" in " ".join(result.stderr.split())


def test_compare_and_sanity_take_targets(folder: Path) -> None:
    model = f"{NETWORKS}:quarter_maps"
    target = ("--target", "region:cat@box=5,5,40,30", "--model", model)
    methods = ("--methods", "gradient,gradcam")
    compared = run("compare", "photo.jpg", *target, *methods)
    assert compared.exit_code == 0, compared.output
    checked = run("sanity", "photo.jpg", *target, "--methods", "gradient")
    assert checked.exit_code == 0, checked.output


def test_the_whole_photo_is_drawn_at_its_own_size(folder: Path) -> None:
    result = run_explain("photo.jpg", "--target", "cat", "--whole-photo", "--raw")
    assert result.exit_code == 0, result.output
    out = folder / "dmbp-out"
    with Image.open(out / "photo-0-cat-whole.png") as picture:
        assert picture.size == (60, 40)
    record = read_record()
    assert record["photo_size"] == [60, 40]
    assert record["seen"] == [10, 0, 50, 40]
    whole, view = numpy.load(out / "photo-whole.npy"), numpy.load(out / "photo.npy")
    assert whole.shape == (1, 40, 60)
    assert numpy.isnan(whole[0, :, [*range(10), *range(50, 60)]]).all()
    # 32 pixels of the view are 40 of the photo.
    total = view.sum((0, 1))
    assert numpy.abs(whole[0, :, 10:50]).max() <= numpy.abs(total).max()
    assert numpy.corrcoef(whole[0, 2::5, 12:50:5].ravel(), total[2::4, 2::4].ravel())[0, 1] > 0.7
    with Image.open(out / "photo-0-cat-whole-map.png") as levels:
        assert levels.size == (60, 40)
    assert dmbp.__version__ == record["dmbp"]
