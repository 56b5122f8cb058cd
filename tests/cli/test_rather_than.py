"""`--rather-than`: explained as in Python, named wherever the target is, and what is refused."""

from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from torch import Tensor

import dmbp
from dmbp.models import Classifier, load_model
from tests.cli.commands import NETWORKS, read_record, run, run_explain

GOOD = f"{NETWORKS}:good"


def inputs_of(classifier: Classifier) -> Tensor:
    with Image.open("photo.jpg") as photo:
        return classifier.preprocessing.tensor(classifier.preprocessing.view(photo))


def percent(probability: float) -> str:
    return f"({probability:.0%})"


@pytest.mark.usefixtures("folder")
def test_it_is_the_weighted_target_of_python() -> None:
    classifier = load_model(GOOD)
    inputs = inputs_of(classifier)
    outputs = classifier.module(inputs)
    explainer = dmbp.DMBP(classifier.module, iterations=3)
    for options, others in (
        (["--rather-than", "dog"], 1),
        (["--rather-than", "hamster", "--rather-than", "1"], [2, 1]),
        (["--rather-than", "Rivals"], "rivals"),
    ):
        result = run_explain("photo.jpg", "--raw", "--target", "cat", *options)
        assert result.exit_code == 0, result.output
        weights = dmbp.rather_than(0, others, outputs=outputs)
        found = torch.from_numpy(numpy.load("dmbp-out/photo.npy"))
        torch.testing.assert_close(found, explainer.attribute(inputs, target=weights))
        (target,) = read_record()["targets"]
        assert (target["class"], target["name"]) == (0, "cat")
        assert target["kind"] == ("rivals" if others == "rivals" else "rather_than")
        recorded = {other["class"]: other["weight"] for other in target["rather_than"]}
        assert {0: 1.0} | recorded == pytest.approx(weights)
        score = sum(weight * outputs[0, k].item() for k, weight in weights.items())
        assert target["terms"]["output"] == pytest.approx(score, rel=1e-4)


def test_it_is_named_wherever_the_target_is(folder: Path) -> None:
    options = ("--target", "cat", "--target", "hamster", "--rather-than", "dog")
    files = ("--raw", "--report", "--picture", "svg")
    result = run_explain("photo.jpg", *options, *files)
    assert result.exit_code == 0, result.output
    names = {path.name for path in (folder / "dmbp-out").iterdir()}
    assert names == {
        *("photo-0-cat-rather-than-1-dog-map.png", "photo-2-hamster-rather-than-1-dog-map.png"),
        *("photo.json", "photo.npy", "photo.svg", "report.html"),
    }
    cat, hamster = read_record()["targets"]
    (dog,) = cat["rather_than"]
    assert (dog["name"], dog["weight"]) == ("dog", -1.0)
    than_dog = f"rather than dog {percent(dog['probability'])}"
    explained = [f"{k['name']} {percent(k['probability'])} {than_dog}" for k in (cat, hamster)]
    assert f"explained {', '.join(explained)} →" in result.output
    page = (folder / "dmbp-out" / "report.html").read_text()
    assert "How the score of “cat rather than dog” adds up" in page
    assert "output for cat minus that for dog, before they become probabilities" in page
    assert "Probability of “hamster” as the map's" in page
    assert page.count(f"rather than dog ({dog['probability']:.0%})</option>") == 2
    # Matplotlib writes each line of a title into a comment beside its outlines.
    assert f"<!-- {than_dog} -->" in (folder / "dmbp-out" / "photo.svg").read_text()


def test_the_report_draws_the_probability_of_the_class_itself(folder: Path) -> None:
    options = ("--target", "cat", "--rather-than", "dog", "--raw", "--report")
    assert run_explain("photo.jpg", *options).exit_code == 0
    classifier = load_model(GOOD)
    maps = torch.from_numpy(numpy.load("dmbp-out/photo.npy"))
    score = float(dmbp.metrics.insertion(classifier.module, inputs_of(classifier), 0, maps))
    assert f"Insertion score {score:.3f}." in (folder / "dmbp-out" / "report.html").read_text()


@pytest.mark.usefixtures("folder")
def test_the_predicted_class_is_explained_by_default() -> None:
    assert run_explain("photo.jpg").exit_code == 0
    (plain,) = read_record()["targets"]
    assert (plain["kind"], plain["rather_than"]) == ("class", [])
    result = run_explain("photo.jpg", "--rather-than", "rivals", "--gif")
    assert result.exit_code == 0, result.output
    (target,) = read_record()["targets"]
    assert target["name"] == plain["name"]
    rivals = target["rather_than"]
    assert [k["probability"] for k in rivals] == sorted(k["probability"] for k in rivals)[::-1]
    assert sum(k["weight"] for k in rivals) == pytest.approx(-1.0)
    labels = " and ".join(f"{k['name']} {percent(k['probability'])}" for k in rivals)
    assert f"rather than rivals {labels} →" in result.output
    slug = f"{target['class']}-{target['name']}-rather-than-rivals"
    assert Path(f"dmbp-out/photo-{slug}.gif").exists()


@pytest.mark.usefixtures("folder")
def test_the_models_own_activation_weighs_rivals() -> None:
    """The outputs of `several` are independent, so its probabilities are sigmoids."""
    model = f"{NETWORKS}:several"
    result = run_explain("photo.jpg", "--target", "0", "--rather-than", "rivals", model=model)
    assert result.exit_code == 0, result.output
    (target,) = read_record()["targets"]
    classifier = load_model(model)
    outputs = classifier.module(inputs_of(classifier))
    weights = dmbp.rather_than(0, "rivals", outputs=outputs, activation="sigmoid")
    assert weights != pytest.approx(dmbp.rather_than(0, "rivals", outputs=outputs))
    recorded = {other["class"]: other["weight"] for other in target["rather_than"]}
    assert {0: 1.0} | recorded == pytest.approx(weights)


@pytest.mark.usefixtures("folder")
def test_compare_and_sanity() -> None:
    """They explain the difference; insertion follows the probability of the class itself."""
    classifier = load_model(GOOD)
    inputs = inputs_of(classifier)
    maps = dmbp.methods()["gradient"](classifier.module).attribute(inputs, target={0: 1.0, 1: -1.0})
    curve = dmbp.metrics.insertion(classifier.module, inputs, 0, maps)
    asked = ("--model", GOOD, "--target", "cat", "--rather-than", "dog", "--picture", "svg")
    for command, files in {
        "compare": ("photo-methods.svg", "photo-insertion.svg", "photo-methods.json"),
        "sanity": ("photo-sanity.svg", "photo-sanity.json"),
    }.items():
        done = run(command, "photo.jpg", *asked, "--methods", "gradient")
        assert done.exit_code == 0, done.output
        target = read_record(f"dmbp-out/{files[-1]}")["target"]
        assert (target["name"], target["kind"]) == ("cat", "rather_than")
        (dog,) = target["rather_than"]
        assert (dog["class"], dog["weight"]) == (1, -1.0)
        assert "rather than dog" in Path(f"dmbp-out/{files[0]}").read_text()
    about = read_record("dmbp-out/photo-methods.json")["methods"]["gradient"]
    assert about["insertion"] == pytest.approx(float(curve), rel=1e-5)
    cat, dog = classifier.module(inputs)[0, :2].tolist()
    assert about["removal"]["score"] == pytest.approx(cat - dog, abs=1e-5)
    assert "<!-- probability of cat -->" in Path("dmbp-out/photo-insertion.svg").read_text()


@pytest.mark.usefixtures("folder")
def test_sanity_is_about_the_difference() -> None:
    """Re-initialising changes both classes, so the correlation is not that of the class alone."""
    sanity = ("sanity", "photo.jpg", "--model", GOOD, "--target", "cat", "--draws", "1")
    correlations = set[float]()
    for more in ((), ("--rather-than", "dog")):
        assert run(*sanity, "--methods", "gradient", *more).exit_code == 0
        correlations |= set(read_record("dmbp-out/photo-sanity.json")["correlation"].values())
    assert len(correlations) == 2


BAD = {
    "itself": (["--target", "cat", "--rather-than", "0"], GOOD, "'cat' cannot be explained rather"),
    "one of two is itself": (
        ["--target", "cat", "--rather-than", "dog", "--rather-than", "cat"],
        GOOD,
        "'cat' cannot be explained rather than itself: choose another class",
    ),
    "misspelt": (["--rather-than", "hamstr"], GOOD, "did you mean 'hamster'?"),
    "out of range": (["--rather-than", "3"], GOOD, "class 3 is out of range"),
    "classes and rivals": (
        ["--rather-than", "dog", "--rather-than", "rivals"],
        GOOD,
        "--rather-than takes either classes or rivals, not both",
    ),
    "single output": (
        ["--rather-than", "dog"],
        f"{NETWORKS}:yes_no",
        "--rather-than compares classes, but the model has a single output",
    ),
    "rivals of a single output": (
        ["--rather-than", "rivals"],
        f"{NETWORKS}:sure",
        "--rather-than compares classes, but the model has a single output",
    ),
}


@pytest.mark.parametrize("command", ["explain", "compare", "sanity"])
@pytest.mark.parametrize("case", BAD)
def test_bad_questions_get_one_sentence(folder: Path, command: str, case: str) -> None:
    options, model, sentence = BAD[case]
    before = sorted(folder.rglob("*"))
    result = run(command, "photo.jpg", "--model", model, *options)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    lines = [line for line in result.output.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1
    assert sorted(folder.rglob("*")) == before


def test_a_long_question_still_fits_into_a_file_name(folder: Path) -> None:
    names = [f"{letter * 60} {letter}" for letter in "abc"]
    (folder / "names.txt").write_text("\n".join(names))
    options = ("--rather-than", "1", "--rather-than", "2", "--classes", "names.txt", "--raw")
    result = run_explain("photo.jpg", "--target", "0", *options)
    assert result.exit_code == 0, result.output
    (path,) = (folder / "dmbp-out").glob("*-map.png")
    assert path.name.startswith(f"photo-0-{'a' * 60}-a-rather-than-1-{'b' * 10}")
    assert len(path.name) < 150
