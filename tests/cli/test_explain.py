"""`dmbp explain`: the files and lines it writes, and the one sentence for each mistake."""

import gc
import re
import shutil
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.torch import save_file

from dmbp import DMBP
from dmbp.baseline import baseline_for
from dmbp.data import read_photo
from dmbp.decompose import PRESETS
from dmbp.decompose.tested import moved_elsewhere, strongest
from dmbp.errors import InputError
from dmbp.models import Preprocessing, load_model
from dmbp.models.torchvision_models import import_torchvision
from dmbp.render import ReportPhoto, ReportWriter
from dmbp.workflows.explanation import Explanation
from dmbp.workflows.forked_workers import ForkedWorkers, can_fork
from dmbp.workflows.prediction import ModelSpec
from tests.cli import networks
from tests.cli.commands import NETWORKS, read_record, run, run_explain


def test_a_picture_and_a_record_for_every_photo(folder: Path) -> None:
    result = run_explain("photo.jpg", "photo.png", "--out", "results")
    assert result.exit_code == 0, result.output
    assert result.output.count("predicted") == 2
    names = sorted(path.name for path in (folder / "results").iterdir())
    assert names == ["photo-2.json", "photo-2.png", "photo.json", "photo.png"]
    record = read_record("results/photo.json")
    (target,) = record["targets"]
    terms = target["terms"]
    total = terms["positive"] + terms["negative"] + terms["nuisance"]
    assert total == pytest.approx(terms["output"], rel=1e-4)
    assert target["name"] == record["predicted"]["name"]
    assert record["exactness"] <= 1e-4
    assert record["settings"]["iterations"] == 3
    with Image.open(folder / "results" / "photo.png") as picture:
        assert picture.format == "PNG"


def test_windows_and_removals(folder: Path) -> None:
    windows = ("--window", "0.5", "--stride", "0.25", "--removal", "zero", "--removal", "noise")
    result = run_explain("photo.jpg", *windows, "--out", "results")
    assert result.exit_code == 0, result.output
    settings = read_record("results/photo.json")["settings"]
    assert (settings["window"], settings["stride"]) == (0.5, 0.25)
    assert settings["removal"] == "zero and noise"


def test_help_knows_the_presets(folder: Path) -> None:
    words = " ".join(run("explain", "--help").output.split())
    for name in ("objective", "iterations", "learning_rate"):
        values = {preset: getattr(PRESETS[preset], name) for preset in PRESETS}
        if name == "objective":
            assert (values["fast"], values["paper"]) == ("all", "all")
            assert f"tested {values['tested']}, fast and paper all" in words
        else:
            assert ", ".join(f"{k} {v:g}" for k, v in values.items()) in words


def test_targets_and_settings(folder: Path) -> None:
    result = run_explain(
        "photo.jpg", "--target", "cat", "--target", "2", "--preset", "paper", "--objective", "pos"
    )
    assert result.exit_code == 0, result.output
    record = read_record()
    assert [target["name"] for target in record["targets"]] == ["cat", "hamster"]
    assert record["settings"]["objective"] == "pos"
    assert record["settings"]["reference"] == "zero"


@pytest.mark.parametrize("preset", ["tested", "fast"])
def test_a_record_says_what_the_model_says_without_each_colour(folder: Path, preset: str) -> None:
    """The numbers are those of the model on photos whose pixels are removed here by hand."""
    assert run_explain("photo.jpg", "--preset", preset, "--target", "1", "--raw").exit_code == 0
    (target,) = read_record()["targets"]
    removal = target["removal"]
    assert (removal["share"], removal["by"]) == (0.1, "blur")
    classifier = load_model("tests.cli.networks:good")
    with Image.open("photo.jpg") as photo:
        inputs = classifier.preprocessing.tensor(classifier.preprocessing.view(photo))
    maps = torch.from_numpy(numpy.load("dmbp-out/photo.npy"))
    pixels = maps.sum(1)
    masks = {
        "": strongest(0 * pixels),
        "_without_positive": strongest(pixels),
        "_without_negative": strongest(-pixels),
        "_without_control": moved_elsewhere(strongest(pixels)),
    }
    for ending, mask in masks.items():
        if ending == "_without_negative" and not mask.any():
            assert removal["score_without_negative"] is None
            assert removal["probability_without_negative"] is None
            continue
        changed = torch.where(mask[:, None], baseline_for(inputs, "blur"), inputs)
        with torch.no_grad():
            outputs = classifier.module(changed)[0]
        assert removal[f"score{ending}"] == pytest.approx(outputs[1].item(), abs=1e-4)
        likely = classifier.probabilities(outputs)[1].item()
        assert removal[f"probability{ending}"] == pytest.approx(likely, abs=1e-4)
    if preset == "tested":
        assert target["worth_for"] == pytest.approx(float(maps.clamp(min=0).sum()), rel=1e-3)
        assert target["worth_against"] == pytest.approx(-float(maps.clamp(max=0).sum()), abs=1e-3)
    else:
        assert target["worth_for"] is target["worth_against"] is None
    falls = removal["score_without_positive"] < removal["score"]
    assert falls or not target["confirmed"]


@pytest.mark.parametrize("preset", ["tested", "fast"])
def test_the_picture_says_it_and_terms_are_an_option(folder: Path, preset: str) -> None:
    asked = ("photo.jpg", "--preset", preset, "--target", "cat", "--picture", "svg")
    assert run_explain(*asked).exit_code == 0
    picture = (folder / "dmbp-out" / "photo.svg").read_text()
    removal = read_record()["targets"][0]["removal"]
    before, after = removal["probability"], removal["probability_without_positive"]
    decimals = next(k for k in (0, 1) if k or f"{before:.0%}" != f"{after:.0%}")
    assert "<!-- without pixels marked red -->" in picture
    assert re.search(rf"<!-- cat {before:.{decimals}%} → {after:.{decimals}%} -->", picture)
    assert "<!-- Without the tenth of the photo that is marked strongest in red, cat " in picture
    assert "the same pattern elsewhere: " in picture.replace("\n", " ")
    assert f"<!-- for and against: cat ({before:.{decimals}%}) -->" in picture
    assert "<!-- the photo -->" in picture
    assert "patterns" not in picture
    assert run_explain(*asked, "--terms").exit_code == 0
    picture = (folder / "dmbp-out" / "photo.svg").read_text()
    assert "<!-- patterns for it, ∇F⁺ -->" in picture
    assert "<!-- how the score adds up -->" in picture


@pytest.mark.parametrize("preset", ["tested", "fast"])
@pytest.mark.usefixtures("folder")
def test_a_difference_of_classes_is_shown_in_scores(preset: str) -> None:
    """The record has the probability of the class itself beside them."""
    asked = ("--preset", preset, "--target", "cat", "--rather-than", "dog", "--report")
    assert run_explain("photo.jpg", *asked).exit_code == 0
    (target,) = read_record()["targets"]
    assert target["removal"]["score"] == pytest.approx(target["terms"]["output"], abs=1e-4)
    assert target["removal"]["probability"] == pytest.approx(target["probability"], abs=1e-5)
    page = Path("dmbp-out/report.html").read_text()
    assert re.search("marked (strongest in )?red, the score of cat rather than dog ", page)


@pytest.mark.parametrize(
    ("model", "says"),
    [("sure", "predicted class 0 (99%)"), ("unsure", "predicted not class 0 (99%)")],
)
def test_what_a_sigmoid_puts_out_is_a_probability(folder: Path, model: str, says: str) -> None:
    result = run_explain("photo.jpg", model=f"tests.cli.networks:{model}")
    assert result.exit_code == 0, result.output
    (target,) = read_record()["targets"]
    score = torch.tensor(target["terms"]["output"])
    assert target["probability"] == pytest.approx(score.sigmoid().item(), rel=1e-4)
    assert "the model ends in a sigmoid: the scores before it are explained" in result.output
    assert (target["probability"] > 0.9) == (model == "sure")
    assert says in result.output


@pytest.mark.usefixtures("folder")
def test_two_classes_of_one_name_are_asked_about_by_number(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("apple\nApple\nplum\n")
    result = run_explain("photo.jpg", "--classes", "names.txt", "--target", "apple")
    assert result.exit_code == 2
    assert "the classes 0, 1 are all called 'apple': give the number" in result.stderr


@pytest.mark.usefixtures("folder")
def test_kernels_are_compiled_while_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling starts first, for the settings that masks will be learned with."""
    calls: list[object] = []

    def prepare(like: torch.Tensor, **settings: str) -> None:
        calls.append((like.device.type, settings))

    def load(_: ModelSpec) -> None:
        calls.append("load")
        raise InputError("enough")

    monkeypatch.setattr(DMBP, "prepare", prepare)
    monkeypatch.setattr(ModelSpec, "load", load)
    run_explain("photo.jpg", "--objective", "pos")
    assert calls == [("cpu", {"preset": "tested", "objective": "pos"}), "load"]


def test_a_class_asked_about_by_name_and_number_is_drawn_once(folder: Path) -> None:
    targets = ("--target", "hamster", "--target", "cat", "--target", "2")
    result = run_explain("photo.jpg", *targets)
    assert result.exit_code == 0, result.output
    record = read_record()
    assert [target["name"] for target in record["targets"]] == ["hamster", "cat"]


@pytest.mark.parametrize(("line", "sites"), [("secant", ["1", "3*"]), ("pieces:4:2", ["3"])])
def test_lines_and_sites(folder: Path, line: str, sites: list[str]) -> None:
    """They do what the arguments of DMBP do, and the record names them."""
    options = [part for site in sites for part in ("--sites", site)]
    result = run_explain(
        "photo.jpg",
        "--raw",
        "--smooth",
        line,
        *options,
        "--target",
        "1",
        model="tests.cli.networks:smooth",
    )
    assert result.exit_code == 0, result.output
    record = read_record()
    assert record["settings"]["sites"] == ", ".join(sites)
    assert record["settings"]["smooth"] == line
    assert (record["approximation_error"] > 0) == line.startswith("pieces")
    classifier = load_model("tests.cli.networks:smooth")
    with Image.open("photo.jpg") as photo:
        inputs = classifier.preprocessing.tensor(classifier.preprocessing.view(photo))
    explainer = DMBP(classifier.module, iterations=3, smooth=line, sites=sites)
    maps = explainer.attribute(inputs, target=1)
    torch.testing.assert_close(torch.from_numpy(numpy.load("dmbp-out/photo.npy")), maps)


def test_everything_that_can_be_written(folder: Path) -> None:
    result = run_explain(
        *("photo.jpg", "--target", "cat", "--target", "dog", "--report", "--raw", "--gif"),
        *("--picture", "svg", "--colours", "purple-orange", "--overlay", "0.2", "--soften", "0"),
    )
    assert result.exit_code == 0, result.output
    out = folder / "dmbp-out"
    assert sorted(path.name for path in out.iterdir()) == [
        *("photo-0-cat-map.png", "photo-0-cat.gif", "photo-1-dog-map.png", "photo-1-dog.gif"),
        *("photo.json", "photo.npy", "photo.svg", "report.html"),
    ]
    maps = numpy.load(out / "photo.npy")
    assert maps.shape == (2, 3, 32, 32)
    with Image.open(out / "photo-0-cat-map.png") as image:
        levels = numpy.asarray(image).astype(float) - 32768
    pixels = maps[0].sum(0)
    assert numpy.abs(levels / 32767 - pixels / numpy.abs(pixels).max()).max() < 1e-4
    with Image.open(out / "photo-1-dog.gif") as gif:
        assert gif.n_frames == 29
    assert "photo.jpg" in (out / "report.html").read_text()


def test_a_folder_of_photos(folder: Path) -> None:
    (folder / "album").mkdir()
    for name in ("b.jpg", "a.png"):
        (folder / "album" / name).write_bytes((folder / "photo.jpg").read_bytes())
    (folder / "album" / "notes.txt").write_text("no photo")
    result = run_explain("album", "--report", "--out", "results")
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in (folder / "results").iterdir())
    assert names == ["a.json", "a.png", "b.json", "b.png", "report.html"]
    page = (folder / "results" / "report.html").read_text()
    assert page.index("album/a.png") < page.index("album/b.jpg")


def test_a_long_report_has_several_pages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(ReportWriter, page_bytes=1)
    monkeypatch.setattr("dmbp.workflows.explain.ReportWriter", small)
    result = run_explain("photo.jpg", "photo.png", "--report")
    assert result.exit_code == 0, result.output
    assert result.output.endswith("report → dmbp-out/report.html\n")
    pages = sorted(path.name for path in (folder / "dmbp-out").glob("*.html"))
    assert pages == ["report-1.html", "report-2.html", "report.html"]
    contents = (folder / "dmbp-out" / "report.html").read_text()
    assert '<a href="report-2.html#photo-1">photo.png</a>: predicted ' in contents


def test_explanations_are_not_kept_for_the_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may hold thousands of photos, and an explanation takes megabytes."""
    alive: list[int] = []
    made: list[weakref.ref[Explanation]] = []
    real = Explanation.report_photo

    def report_photo(explanation: Explanation) -> ReportPhoto:
        made.append(weakref.ref(explanation))
        gc.collect()
        alive.append(sum(reference() is not None for reference in made))
        return real(explanation)

    monkeypatch.setattr(Explanation, "report_photo", report_photo)
    for name in ("b.jpg", "c.jpg"):
        shutil.copy(folder / "photo.jpg", folder / name)
    result = run_explain("photo.jpg", "b.jpg", "c.jpg", "--report", "--preset", "fast")
    assert result.exit_code == 0, result.output
    assert alive == [1, 1, 1]


def test_what_cannot_be_read_in_a_folder_is_left_out(folder: Path) -> None:
    (folder / "many").mkdir()
    (folder / "many" / "empty.jpg").touch()
    (folder / "many" / "text.png").write_text("hello")
    (folder / "many" / "good.jpg").write_bytes((folder / "photo.jpg").read_bytes())
    result = run_explain("many")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: left out: many/empty.jpg cannot be read: it is empty; ")
    assert "many/text.png is not an image" in result.stderr
    assert [path.name for path in (folder / "dmbp-out").glob("*.png")] == ["good.png"]
    (folder / "many" / "good.jpg").unlink()
    none = run_explain("many")
    assert none.exit_code == 2
    assert "empty.jpg" in none.stderr
    assert "text.png" in none.stderr


@pytest.mark.usefixtures("folder")
def test_an_untested_photo_takes_six_forward_passes() -> None:
    """Prediction and explanation share one; removal takes three: whole, without red, without blue.

    The control takes two: whole, and without the same pattern elsewhere. The first photo also has
    the model captured.
    """
    passes: list[int] = []
    for photos in (["photo.jpg"], ["photo.jpg", "photo.png"]):
        networks.forward_passes.clear()
        fast = (*photos, "--preset", "fast")
        assert run_explain(*fast, model="tests.cli.networks:counted").exit_code == 0
        passes.append(len(networks.forward_passes))
    assert passes[1] == passes[0] + 6


def test_a_damaged_photo_leaves_the_others_to_be_explained(folder: Path, bad_files: Path) -> None:
    """The damage shows only when it is decoded. If it was given by name, it is still an error."""
    (folder / "many").mkdir()
    shutil.copy("photo.jpg", "many/good.jpg")
    shutil.copy(bad_files / "cut.jpg", "many/cut.jpg")
    in_folder = run_explain("many", "--report")
    assert in_folder.exit_code == 0
    assert in_folder.stderr.startswith("note: left out: many/cut.jpg cannot be read")
    assert sorted(path.name for path in Path("dmbp-out").iterdir()) == [
        *("good.json", "good.png", "report.html")
    ]
    by_name = run_explain("many/cut.jpg", "photo.jpg")
    assert by_name.exit_code == 2
    assert by_name.stderr.startswith("dmbp: many/cut.jpg cannot be read")
    assert Path("dmbp-out/photo.png").exists()


@pytest.mark.usefixtures("folder")
def test_photos_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[Path] = []

    def count(path: Path, **options: bool) -> Image.Image:
        decoded.append(path)
        return read_photo(path, **options)

    monkeypatch.setattr("dmbp.workflows.sources.read_photo", count)
    assert run_explain("photo.jpg", "photo.png").exit_code == 0
    assert decoded == [Path("photo.jpg"), Path("photo.png")]


def test_a_network_of_one_channel(folder: Path) -> None:
    for model, files in (("grey", ["--report", "--gif"]), ("grey_module", [])):
        result = run_explain("photo.jpg", *files, model=f"tests.cli.networks:{model}")
        assert result.exit_code == 0, result.stderr
    record = read_record()
    assert record["preprocessing"]["mean"] == [0.449]
    seen = Preprocessing.for_channels(1).view(Image.open("photo.jpg"))
    red, green, blue = numpy.asarray(seen).transpose(2, 0, 1)
    assert numpy.array_equal(red, green)
    assert numpy.array_equal(green, blue)


def test_a_network_that_ignores_its_input_is_pointed_out(folder: Path) -> None:
    result = run_explain("photo.jpg", model="tests.cli.networks:constant")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: 1 of 1 maps are zero everywhere")
    assert len(result.stderr.strip().splitlines()) == 1
    result = run_explain("photo.jpg", "--preset", "fast", model="tests.cli.networks:constant")
    assert result.stderr.startswith("note: 1 of 1 maps are nothing but rounding")


def test_a_record_says_which_weights(folder: Path) -> None:
    state = load_model("tests.cli.networks:good").module.state_dict()
    torch.save({f"_orig_mod.{name}": tensor for name, tensor in state.items()}, folder / "w.pth")
    assert run_explain("photo.jpg", "--weights", "w.pth", "--report").exit_code == 0
    assert read_record()["weights"] == "w.pth"
    assert "<td>w.pth</td>" in (folder / "dmbp-out" / "report.html").read_text()


def test_class_names_as_windows_writes_them(folder: Path) -> None:
    (folder / "names.txt").write_bytes("\ufeffcat\r\ndog\r\nhamster\r\n".encode())
    result = run_explain("photo.jpg", "--classes", "names.txt", "--target", "cat")
    assert result.exit_code == 0, result.stderr


def test_a_single_output_is_a_yes_or_no(folder: Path) -> None:
    result = run_explain("photo.jpg", "--report", model="tests.cli.networks:yes_no")
    assert result.exit_code == 0, result.output
    (target,) = read_record()["targets"]
    output = torch.tensor(target["terms"]["output"])
    assert target["probability"] == pytest.approx(output.sigmoid().item(), abs=1e-4)


def test_a_model_in_another_precision(folder: Path) -> None:
    result = run_explain("photo.jpg", model="tests.cli.networks:double")
    assert result.exit_code == 0, result.output
    result = run("doctor", "tests.cli.networks:double", "--size", "32")
    assert "float64 input 1×3×32×32" in result.output


def test_two_photos_never_share_a_file(folder: Path) -> None:
    (folder / "photo-2.jpg").write_bytes((folder / "photo.jpg").read_bytes())
    result = run_explain("photo-2.jpg", "photo.jpg", "photo.png", "photo.jpg")
    assert result.exit_code == 0, result.output
    names = sorted(path.stem for path in (folder / "dmbp-out").glob("*.png"))
    assert names == ["photo", "photo-2", "photo-3", "photo-4"]


def test_brackets_in_a_name_are_printed_as_they_are(folder: Path) -> None:
    (folder / "with [red] brackets.jpg").write_bytes((folder / "photo.jpg").read_bytes())
    result = run_explain("with [red] brackets.jpg")
    assert "dmbp-out/with [red] brackets.png" in result.output
    assert (folder / "dmbp-out" / "with [red] brackets.png").exists()


def test_quiet_prints_nothing(folder: Path) -> None:
    result = run_explain("photo.jpg", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files and folders that a command cannot use."""
    folder = tmp_path_factory.mktemp("bad")
    noise = Image.effect_noise((60, 40), 50)
    noise.save(folder / "whole.jpg")
    (folder / "cut.jpg").write_bytes((folder / "whole.jpg").read_bytes()[:1500])
    Image.new("L", (1, 1)).save(folder / "dot.png")
    Image.new("1", (20_000, 10_000)).save(folder / "huge.png")
    (folder / "a_file").write_text("")
    (folder / "nothing").mkdir()
    (folder / "taken" / "photo.json").mkdir(parents=True)
    (folder / "names.txt").write_text("a\nb\n")
    squeezenet = import_torchvision().models.squeezenet1_1(weights=None)
    save_file(squeezenet.state_dict(), folder / "squeezenet.safetensors")
    return folder


BAD: dict[str, tuple[list[str], str, str]] = {
    "missing photo": (["nowhere.jpg"], "tests.cli.networks:good", "there is no file nowhere.jpg"),
    "truncated photo": (["cut.jpg"], "tests.cli.networks:good", "cut.jpg cannot be read"),
    "no photo": (["names.txt"], "tests.cli.networks:good", "is not an image"),
    "tiny photo": (["dot.png"], "tests.cli.networks:good", "1×1 pixels"),
    "huge photo": (["huge.png"], "tests.cli.networks:good", "more than 64 megapixels"),
    "one bad of two": (["photo.jpg", "dot.png"], "tests.cli.networks:good", "1×1 pixels"),
    "nan weights": (
        ["photo.jpg"],
        "tests.cli.networks:poisoned",
        "NaN or infinity, first in '0.weight'",
    ),
    "other weights": (
        ["photo.jpg", "--weights", "squeezenet.safetensors"],
        "alexnet",
        "missing, first 'features.3.weight'",
    ),
    "missing weights": (
        ["photo.jpg", "--weights", "no.pth"],
        "resnet18",
        "there is no weights file",
    ),
    "weights for a model": (
        ["photo.jpg"],
        "squeezenet.safetensors",
        "such as resnet50 or my_module:make_model, and --weights",
    ),
    "unknown model": (["photo.jpg"], "resnet500", "did you mean 'resnet50'"),
    "class out of range": (
        ["photo.jpg", "--target", "3"],
        "tests.cli.networks:good",
        "classes 0 to 2",
    ),
    "misspelt class": (
        ["photo.jpg", "--target", "hamstr"],
        "tests.cli.networks:good",
        "mean 'hamster'",
    ),
    "unsupported": (["photo.jpg"], "tests.cli.networks:spectral", "aten.fft_rfft2.default at '2'"),
    "no classes": (
        ["photo.jpg"],
        "tests.cli.networks:tangled",
        "outputs for an image have shape (2, 2, 2, 2), which are neither classes, boxes, maps nor",
    ),
    "device": (
        ["photo.jpg", "--device", "cuda:9"],
        "tests.cli.networks:good",
        "'cuda:9' is not available",
    ),
    "no device": (
        ["photo.jpg", "--device", "tpux"],
        "tests.cli.networks:good",
        "'tpux' is not available",
    ),
    "too few names": (
        ["photo.jpg", "--classes", "names.txt", "--target", "b"],
        "tests.cli.networks:good",
        "2 class names were given for a model with 3 outputs",
    ),
    "a folder in the way": (
        ["photo.jpg", "--out", "taken"],
        "tests.cli.networks:good",
        "a folder has that",
    ),
    "meta": (["photo.jpg", "--device", "meta"], "tests.cli.networks:good", "computes nothing"),
    "over the photo": (
        ["photo.png", "--out", "."],
        "tests.cli.networks:good",
        "over the photo itself",
    ),
    "empty folder": (["nothing"], "tests.cli.networks:good", "no photos in the folder nothing"),
    "iterations": (
        ["photo.jpg", "--iterations", "-2"],
        "tests.cli.networks:good",
        "iterations must be a whole number",
    ),
    "large window": (
        ["photo.jpg", "--window", "2"],
        "tests.cli.networks:good",
        "window is a share of the input's side, above 0 and at most 1, not 2.0",
    ),
    "a window that is not tested": (
        ["photo.jpg", "--preset", "fast", "--window", "0.5"],
        "tests.cli.networks:good",
        "window belong to the preset 'tested'",
    ),
    "misspelt line": (
        ["photo.jpg", "--smooth", "secnt"],
        "tests.cli.networks:smooth",
        "did you mean 'secant'?",
    ),
    "too few pieces": (
        ["photo.jpg", "--smooth", "pieces:0"],
        "tests.cli.networks:smooth",
        "at least 1 piece",
    ),
    "misspelt site": (
        ["photo.jpg", "--sites", "1x"],
        "tests.cli.networks:smooth",
        "the network has no site '1x'; did you mean '1'",
    ),
    "out is a file": (
        ["photo.jpg", "--out", "a_file"],
        "tests.cli.networks:good",
        "cannot write to a_file",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_sentence_and_leaves_nothing(
    folder: Path, bad_files: Path, case: str
) -> None:
    arguments, model, sentence = BAD[case]
    for name in {*arguments, model}.intersection(path.name for path in bad_files.iterdir()):
        copy = shutil.copytree if (bad_files / name).is_dir() else shutil.copy
        copy(bad_files / name, folder / name)
    before = sorted(folder.rglob("*"))
    result = run_explain(*arguments, model=model)
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.startswith("dmbp: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert sorted(folder.rglob("*")) == before


def test_no_room_on_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    result = run_explain("photo.jpg")
    assert result.exit_code == 2
    assert "cannot write to dmbp-out: No space left on device" in result.stderr
    assert not list((folder / "dmbp-out").iterdir())


def test_how_photos_are_prepared(folder: Path) -> None:
    options = ("--size", "20x30", "--fit", "squeeze", "--scale", "255", "--channels", "bgr")
    result = run_explain("photo.jpg", *options, "--mean", "104,117,123", "--report", "--gif")
    assert result.exit_code == 0, result.output
    assert read_record()["preprocessing"] == {
        "fit": "squeeze",
        "resize": [20, 30],
        "crop": [20, 30],
        "interpolation": "bilinear",
        "mean": [104.0, 117.0, 123.0],
        "std": [1.0, 1.0, 1.0],
        "scale": 255.0,
        "channels": "bgr",
    }
    assert "channels bgr" in Path("dmbp-out/report.html").read_text()


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--size", "48x", "--size must be a number of pixels, or height and width such as 48x192"),
        ("--size", "5000", "each at most 4096, not 5000×5000"),
        ("--mean", "a,b,c", "--mean must be one number, or three numbers, one for each channel"),
        ("--std", "1,2", "--std must be one number, or three numbers, one for each channel"),
        ("--std", "0", "std must be above zero in every channel"),
        ("--scale", "0", "--scale must be a number above zero, such as 255, not 0.0"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "compare", "sanity", "doctor"])
def test_wrong_settings_of_the_input(
    folder: Path, command: str, option: str, value: str, sentence: str
) -> None:
    model = f"{NETWORKS}:good"
    photo = ["photo.jpg", "--model", model] if command != "doctor" else [model]
    result = run(command, *photo, option, value)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_patterns_of_a_bgr_network_are_drawn_as_rgb(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pattern of a network with its channels reversed has the same colours."""
    drawn: list[Any] = []

    def keep(rows: Any, *_: Any, **__: Any) -> Any:
        drawn.append(rows[0])
        return Figure()

    monkeypatch.setattr("dmbp.workflows.explanation.draw_panel", keep)
    for model, order in (("good", "rgb"), ("reversed_channels", "bgr")):
        result = run_explain("photo.jpg", "--channels", order, model=f"{NETWORKS}:{model}")
        assert result.exit_code == 0, result.output
    expected, found = drawn
    assert numpy.allclose(found.photo, expected.photo)
    for name in ("positive_map", "negative_map"):
        pattern = getattr(expected, name)
        largest = numpy.abs(pattern).max()
        assert numpy.allclose(getattr(found, name), pattern, atol=1e-3 * largest)
        assert numpy.abs(pattern - pattern[..., ::-1]).max() > 0.1 * largest


def contents(folder: str) -> dict[str, Any]:
    """Return what is in the files of a folder: records without seconds, and pictures' pixels."""
    found: dict[str, Any] = {}
    for path in sorted(Path(folder).iterdir()):
        if path.suffix == ".json":
            found[path.name] = {**read_record(str(path)), "seconds": None}
        elif path.suffix == ".png":
            with Image.open(path) as picture:
                found[path.name] = numpy.asarray(picture.convert("RGB"))
        else:
            text = re.sub(r"explained in [0-9.]+ s", "", path.read_text())
            found[path.name] = re.sub(r"<dd>[0-9.]+ s</dd>", "", text)
    return found


@pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux only")
def test_a_folder_is_the_same_in_several_processes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "album").mkdir()
    for number in range(6):
        noise = numpy.random.default_rng(number).integers(0, 255, (40, 60, 3), dtype=numpy.uint8)
        Image.fromarray(noise).save(folder / "album" / f"{number}.png")
    damaged = (folder / "album" / "3.png").read_bytes()
    (folder / "album" / "3.png").write_bytes(damaged[:3000])
    lines: list[list[str]] = []
    processes = set[int]()
    init = ForkedWorkers.__init__

    def counted(self: Any, answer: Any, count: int) -> None:
        processes.add(count)
        init(self, answer, count)

    monkeypatch.setattr(ForkedWorkers, "__init__", counted)
    for out, cores in (("one", 1), ("two", 2)):
        monkeypatch.setattr("dmbp.workflows.folder.usable_cores", lambda cores=cores: cores)
        done = run_explain("album", "--preset", "fast", "--report", "--out", out)
        assert done.exit_code == 0, done.output
        assert "left out: album/3.png cannot be read" in done.stderr
        lines.append(done.stdout.replace(out, "out").splitlines())
    assert processes == {2}
    assert lines[0] == lines[1]
    assert [line[:11] for line in lines[1][:-1]] == [f"album/{k}.png" for k in range(6) if k != 3]
    one, two = contents("one"), contents("two")
    assert one.keys() == two.keys()
    for name in one:
        if name.endswith(".json"):
            for first, second in zip(one[name]["targets"], two[name]["targets"], strict=True):
                assert first["terms"] == pytest.approx(second["terms"], rel=1e-3)
            assert one[name]["predicted"] == two[name]["predicted"]
        elif name.endswith(".png"):
            assert one[name].shape == two[name].shape
            assert numpy.abs(one[name].astype(int) - two[name]).mean() < 1
    assert two["report.html"].count("<section") == 5
