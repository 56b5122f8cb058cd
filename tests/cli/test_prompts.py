"""Hugging Face's models of prompts, detectors and encoders on the command line."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from dmbp.models import load_model
from tests.cli.commands import read_record, run, run_explain
from tests.models.transformers_folders import LABELS, SIDE, make, make_tokenizer, save

PROMPTS = ("--prompt", "a cat", "--prompt", "a photo of a dog")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with those of several models."""
    folder = tmp_path_factory.mktemp("saved")
    for name in ("clip", "detr", "dinov2"):
        save(name, folder)
    return folder


@pytest.fixture(autouse=True)
def beside_the_photo(saved: Path, folder: Path) -> None:
    """Links to the models in the current folder."""
    for path in saved.iterdir():
        (folder / path.name).symlink_to(path)


def explain(*arguments: str, model: str) -> Any:
    result = run_explain("photo.jpg", "--preset", "fast", *arguments, model=f"hf:./{model}")
    assert result.exit_code == 0, result.output
    return read_record()


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


def test_a_map_for_each_prompt() -> None:
    record = explain(*PROMPTS, model="clip")
    assert [target["name"] for target in record["targets"]] == ["a cat", "a photo of a dog"]
    assert record["exactness"] <= 1e-6
    found = load_model("hf:./clip")
    with Image.open("photo.jpg") as photo:
        inputs = found.preprocessing.tensor(found.preprocessing.view(photo))
    tokens = make_tokenizer()(["a cat", "a photo of a dog"], return_tensors="pt", padding=True)
    model: Any = make("clip")
    with torch.no_grad():
        own = model(**{k: tokens[k] for k in ("input_ids", "attention_mask")}, pixel_values=inputs)
    for target, likely in zip(record["targets"], own.logits_per_image[0].softmax(0), strict=True):
        assert target["probability"] == pytest.approx(float(likely), abs=1e-5)


def test_a_prompt_rather_than_another_and_one_of_several() -> None:
    record = explain(
        *PROMPTS, "--target", "a cat", "--rather-than", "a photo of a dog", model="clip"
    )
    (target,) = record["targets"]
    assert (target["name"], target["kind"]) == ("a cat", "rather_than")


def test_a_single_prompt_and_another_photo() -> None:
    (target,) = explain("--prompt", "a cat", model="clip")["targets"]
    assert (target["target"], target["probability"]) == ("similarity:prompt=a cat", None)
    for model in ("clip", "dinov2"):
        record = explain("--target", "similarity:image=photo.png", model=model)
        (target,) = record["targets"]
        assert target["name"] == "similarity to photo.png"
        assert -1 <= target["terms"]["output"] <= 1
        assert record["exactness"] <= 1e-4


def test_boxes_are_listed_and_asked_about_by_number() -> None:
    result = run("boxes", "photo.jpg", "--model", "hf:./detr")
    assert result.exit_code == 0, result.output
    boxes = read_record("dmbp-out/photo-boxes.json")["boxes"]
    assert boxes[0]["name"] in LABELS
    assert f"0  {boxes[0]['name']}" in result.output
    record = explain("--target", "box:0", model="detr")
    (target,) = record["targets"]
    assert target["name"] == f"{boxes[0]['name']} in box 0"
    assert target["probability"] == pytest.approx(boxes[0]["probability"], abs=1e-6)
    assert record["preprocessing"]["longest"] == 3 * SIDE
    assert record["exactness"] <= 1e-6


def test_what_cannot_be_asked_is_one_sentence() -> None:
    asked = ("explain", "photo.jpg", "--model")
    assert "hf:./detr has no encoder of texts: prompts are for models such as CLIP" in refused(
        *asked, "hf:./detr", "--prompt", "a cat"
    )
    assert "has no encoder of texts" in refused(*asked, "voc160", "--prompt", "a cat")
    assert "gives embeddings: say what to compare the photo with, such as --prompt" in refused(
        *asked, "hf:./clip"
    )
    words = refused(*asked, "hf:./dinov2")
    assert "such as --target similarity:image=FILE" in words
    assert "--prompt" not in words
    image = ("--target", "similarity:image=photo.png")
    assert "leave --prompt out to compare the photo with another one" in refused(
        *asked, "hf:./clip", *PROMPTS, *image
    )
    assert "the model has no class 'bird'" in refused(
        *asked, "hf:./clip", *PROMPTS, "--target", "bird"
    )


def test_commands_about_one_target_take_the_first_prompt() -> None:
    asked = ("photo.jpg", "--model", "hf:./clip", "--methods", "gradient", *PROMPTS)
    assert run("compare", *asked).exit_code == 0
    assert read_record("dmbp-out/photo-methods.json")["target"]["name"] == "a cat"
