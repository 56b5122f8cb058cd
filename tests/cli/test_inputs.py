"""`dmbp explain` with volumes, images of many bands or 16 bits, signals and tables."""

import re
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from torch import nn

from dmbp.models.classifier import GREY_MEAN, GREY_STD
from tests import blobs
from tests.cli.commands import read_record, run, run_explain
from tests.cli.networks import grey, net
from tests.models.test_exported_program import save


def volumes() -> nn.Module:
    return blobs.volume_network()


def signals() -> nn.Module:
    return blobs.signal_network()


def tables() -> nn.Module:
    return blobs.table_network()


def ten_bands() -> nn.Module:
    return net(channels=10)


def four_bands() -> nn.Module:
    return net(channels=4)


HERE = "tests.cli.test_inputs"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    generator = numpy.random.default_rng(0)
    volume, signal = blobs.volumes(), blobs.signals()
    numpy.save("scan.npy", volume.inputs[int((volume.classes == 1).nonzero()[0]), 0].numpy())
    row = int((signal.classes == 1).nonzero()[0])
    numpy.savetxt("heart.csv", signal.inputs[row].T.numpy(), header="lead I", comments="")
    names = ",".join(f"measure {k}" for k in range(blobs.FEATURES))
    table = generator.normal(size=(2, blobs.FEATURES))
    numpy.savetxt("patients.csv", table, header=names, comments="", delimiter=",")
    numpy.save("field.npy", generator.random((10, 24, 28)).astype(numpy.float32))
    four = (255 * generator.random((24, 28, 4))).astype(numpy.uint8)
    Image.fromarray(four).save("four.png")
    return tmp_path


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("name", "model", "shape", "more"),
    [
        ("scan.npy", "volumes", [1, 32, 32, 32], ()),
        ("heart.csv", "signals", [1, 1000], ("--raw", "--colours", "purple-orange")),
        ("field.npy", "ten_bands", [10, 24, 28], ("--bands", "3,2,1", "--target", "2")),
        ("four.png", "four_bands", [4, 24, 28], ("--preset", "fast", "--terms")),
    ],
)
def test_inputs_that_are_no_photos(
    name: str, model: str, shape: list[int], more: tuple[str, ...]
) -> None:
    found = run_explain(name, *more, "--report", model=f"{HERE}:{model}")
    assert found.exit_code == 0, found.output
    stem = name.split(".")[0]
    assert f"{name}: predicted class" in found.stdout
    record = read_record(f"dmbp-out/{stem}.json")
    assert (record["input"], record["shape"]) == (name, shape)
    assert record["targets"][0]["removal"]["score"] is not None
    with Image.open(f"dmbp-out/{stem}.png") as picture:
        assert picture.size[0] > 1000
    page = Path("dmbp-out/report.html").read_text()
    assert name in page
    assert ("depth" in page) == (name == "scan.npy")
    if "--raw" in more:
        assert numpy.load(f"dmbp-out/{stem}.npy").shape == (1, *shape)


@pytest.mark.usefixtures("files")
def test_each_row_of_a_table_is_explained() -> None:
    found = run_explain("patients.csv", "--picture", "svg", model=f"{HERE}:tables")
    assert found.exit_code == 0, found.output
    assert "patients.csv row 2: predicted" in found.stdout
    text = Path("dmbp-out/patients-row-1.svg").read_text()
    assert re.search(r"measure \d+ = -?\d", text)
    assert "strongest of 30" in text
    assert read_record("dmbp-out/patients-row-2.json")["names"][3] == "measure 3"


def test_a_program_that_takes_volumes(files: Path) -> None:
    save(volumes(), files / "scan.pt2", torch.zeros(1, 1, 32, 32, 32))
    found = run_explain("scan.npy", "--quiet", model="scan.pt2")
    assert found.exit_code == 0, found.output
    wrong = run("explain", "photo.png", "--model", "scan.pt2")
    assert "there is no" in wrong.stderr
    Image.new("RGB", (32, 32)).save(files / "photo.png")
    wrong = run("explain", "photo.png", "--model", "scan.pt2")
    assert "has 3×32×32 numbers, which scan.pt2 does not take. It takes inputs of shape 1×32" in (
        wrong.stderr
    )


def test_images_of_sixteen_bits_keep_them(files: Path) -> None:
    """All values are below 256 of 65535: eight bits would leave nothing."""
    values = numpy.random.default_rng(0).integers(0, 200, (224, 224)).astype(numpy.uint16)
    Image.fromarray(values).save(files / "scan.png")
    found = run_explain("scan.png", "--raw", model="tests.cli.networks:grey")
    assert found.exit_code == 0, found.output
    size = 256  # the side that photos are scaled to before they are cropped
    image = Image.fromarray((values / 65535).astype(numpy.float32)).resize((size, size), 2)
    pixels = torch.from_numpy(numpy.array(image))[16:240, 16:240]
    with torch.no_grad():
        expected = grey().eval()(((pixels - GREY_MEAN[0]) / GREY_STD[0])[None, None]).softmax(1)
    predicted = read_record("dmbp-out/scan.json")["predicted"]
    assert predicted["probability"] == pytest.approx(float(expected.max()), abs=1e-6)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("heart.csv", "volumes"),
            "heart.csv has 1000×1 numbers, which .* does not take. It takes",
        ),
        (("scan.npy", "volumes", "--gif"), "--gif is for photos, and scan.npy is none"),
        (("scan.npy", "volumes", "--whole-photo"), "--whole-photo is for photos"),
        (("scan.npy", "volumes", "--mean", "0.5"), "--mean is for photos: the numbers of scan.npy"),
        (("field.npy", "ten_bands", "--bands", "3,2,x"), "--bands takes numbers of bands"),
        (("field.npy", "ten_bands", "--bands", "3,2,11"), "there is no band 11: .* bands 1 to 10"),
        (("field.npy", "ten_bands", "--bands", "1,2"), "shows one band, or three"),
        (("gone.npy", "volumes"), "there is no file gone.npy"),
        (("scan.npy", "volumes", "--target", "9"), "class 9 is out of range"),
    ],
)
def test_what_cannot_be_explained_is_one_sentence(
    arguments: tuple[str, ...], sentence: str
) -> None:
    name, model, *more = arguments
    found = run_explain(name, *more, model=f"{HERE}:{model}")
    assert found.exit_code == 2
    assert len(found.stderr.splitlines()) == 1, found.stderr
    assert re.search(sentence, found.stderr), found.stderr


@pytest.mark.usefixtures("files")
def test_a_table_of_many_rows_is_refused() -> None:
    numpy.savetxt("many.csv", numpy.zeros((33, blobs.FEATURES)), delimiter=",")
    found = run_explain("many.csv", model=f"{HERE}:tables")
    assert found.exit_code == 2
    assert "many.csv has 33 rows; at most 32 are explained at once" in found.stderr


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("command", ["compare", "sanity", "boxes"])
def test_commands_of_photos_say_so(command: str) -> None:
    found = run(command, "scan.npy", "--model", f"{HERE}:volumes")
    assert found.exit_code == 2
    assert found.stderr.startswith("dmbp: scan.npy is no photo, and this command takes one")
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(("model", "shape"), [("volumes", "1×1×32×32×32"), ("signals", "1×1×1024")])
def test_the_doctor_examines_models_of_other_inputs(model: str, shape: str) -> None:
    found = run("doctor", f"{HERE}:{model}")
    assert found.exit_code == 0, found.output
    assert shape in found.stdout
    assert "photos" not in found.stdout
