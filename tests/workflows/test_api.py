"""`dmbp.explain`, `compare`, `sanity` and `doctor` in Python: inputs and models in any form."""

import gc
import weakref
from collections.abc import Callable
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

import dmbp
from dmbp.display import encode_figure, write_figure
from dmbp.errors import DMBPError
from dmbp.models import Classifier
from dmbp.targets import Class
from dmbp.workflows import api
from dmbp.workflows.prediction import ModelSpec
from tests.cli.networks import good, net, spectral, tokens

FEW: Any = {"iterations": 2, "mixtures": 0}


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    pixels = numpy.random.default_rng(0).integers(0, 256, (40, 48, 3), dtype=numpy.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def model() -> Classifier:
    classifier = good()
    classifier.module.eval()
    return classifier


@pytest.fixture(scope="module")
def explanation(photo: Image.Image, model: Classifier) -> Any:
    return dmbp.explain(photo, model, target=["dog", 0], **FEW)


def encoded(photo: Image.Image) -> bytes:
    buffer = BytesIO()
    photo.save(buffer, "PNG")
    return buffer.getvalue()


def test_a_photo_in_any_form_gives_the_same(
    photo: Image.Image, model: Classifier, explanation: Any, tmp_path: Path
) -> None:
    (tmp_path / "photo.png").write_bytes(encoded(photo))
    forms: list[Any] = [
        tmp_path / "photo.png",
        str(tmp_path / "photo.png"),
        encoded(photo),
        numpy.asarray(photo),
        numpy.asarray(photo) / 255,
        photo.convert("RGBA"),
        BytesIO(encoded(photo)),
    ]
    for form in forms:
        found = dmbp.explain(form, model, target=["dog", 0], name="photo", **FEW)
        assert found == explanation, type(form)
    prepared = model.preprocessing.tensor(model.preprocessing.view(photo))
    for tensor in (prepared, prepared[0], prepared.numpy()):
        found = dmbp.explain(tensor, model, target=["dog", 0], **FEW)
        assert torch.equal(found.attribution, explanation.attribution)
        assert "photo" not in found.to_dict()


def test_a_target_in_any_form_gives_the_same(
    photo: Image.Image, model: Classifier, explanation: Any
) -> None:
    def dog(outputs: torch.Tensor) -> torch.Tensor:
        return outputs[1]

    for target in ("dog", 1, numpy.int64(1), Class("dog"), {1: 1.0}, (1,), dog):
        found = dmbp.explain(photo, model, target, **FEW)
        assert torch.allclose(found.attribution[0], explanation.attribution[0], atol=1e-6), target
    rather = dmbp.explain(photo, model, "dog", rather_than="cat", **FEW)
    assert rather.targets == ["dog rather than cat"]
    weighted = dmbp.explain(photo, model, {1: 1.0, 0: -1.0}, **FEW)
    assert torch.allclose(weighted.attribution, rather.attribution, atol=1e-6)


def test_what_an_explanation_tells(explanation: Any, model: Classifier) -> None:
    assert explanation.targets == ["dog", "cat"]
    assert explanation.attribution.shape == (2, 3, 32, 32)
    assert torch.equal(explanation.worth_for, explanation.decomposition.worth_for)
    told = explanation.to_dict()
    assert [target["name"] for target in told["targets"]] == ["dog", "cat"]
    assert told["predicted"]["name"] in model.classes  # type: ignore[operator]
    assert repr(explanation).startswith("<PhotoExplanation of photo: predicted ")


def test_a_result_shows_itself(explanation: Any, tmp_path: Path) -> None:
    explanation.plot(tmp_path / "a.png")
    with (tmp_path / "b.png").open("wb") as file:
        explanation.plot(file)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert explanation._repr_png_() == (tmp_path / "a.png").read_bytes()
    figure, axes = plt.subplots()
    assert explanation.plot(axes, row=1) is figure
    label = explanation.prediction.targets[1].label(decimals=explanation.decimals)
    assert axes.get_title() == f"for and against: {label}"
    plt.close(figure)
    html = explanation._repr_html_()
    assert html.startswith("<iframe srcdoc=")
    assert "<h1" not in html
    page = explanation.report(tmp_path / "report.html").read_text()
    assert "What the model good saw" in page
    assert "dog" in page


def test_a_saved_explanation_draws_the_same_picture(explanation: Any, tmp_path: Path) -> None:
    explanation.save(tmp_path / "e.safetensors")
    loaded = dmbp.load(tmp_path / "e.safetensors")
    assert loaded == explanation.decomposition
    assert loaded != dmbp.load(tmp_path / "e.safetensors").read(reference=None, combine="sum")
    assert encode_figure(loaded.figure(), ".png") == explanation._repr_png_()


def test_several_inputs(photo: Image.Image, model: Classifier, tmp_path: Path) -> None:
    found = dmbp.explain([photo, photo.rotate(90)], model, name="photo", **FEW)
    assert len(found) == 2
    assert found[0] == dmbp.explain(photo, model, name="photo 1", **FEW)
    assert found[0] != found[1]
    assert found[:1] == api.Explanations([found[0]])
    assert "photo 2" in found.report(tmp_path).read_text()
    with pytest.raises(DMBPError, match="a report about several inputs is a folder"):
        found.report(tmp_path / "report.html")
    assert found._repr_html_().count("<iframe") == 2
    assert [told["photo"] for told in found.to_dicts()] == ["photo 1", "photo 2"]


def test_the_users_module_is_left_as_it_is(photo: Image.Image) -> None:
    module = net().train()
    module[0].requires_grad_(False)
    with pytest.warns(UserWarning, match="the model is in training mode"):
        dmbp.explain(photo, module, preprocessing={"size": 32}, **FEW)
    assert all(part.training for part in module.modules())
    assert [p.requires_grad for p in module.parameters()] == [False, False, True, True]
    assert not module[0]._forward_hooks


def test_the_module_lists_and_suggests_names() -> None:
    assert {"explain", "DMBP", "metrics"} <= {*dir(dmbp)}
    with pytest.raises(AttributeError, match="did you mean 'explain'"):
        dmbp.explian  # noqa: B018


def test_without_a_screen_there_is_a_sentence(
    explanation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(DMBPError, match="there is no screen"):
        explanation.show()


def test_a_second_call_is_not_fooled_by_new_weights(photo: Image.Image) -> None:
    module = net().eval()
    first = dmbp.explain(photo, module, 0, preprocessing={"size": 32}, **FEW)
    assert dmbp.explain(photo, module, 0, preprocessing={"size": 32}, **FEW) == first
    with torch.no_grad():
        module[0].weight.mul_(-1)
    changed = dmbp.explain(photo, module, 0, preprocessing={"size": 32}, **FEW)
    again = net().eval()
    again.load_state_dict(module.state_dict())
    fresh = dmbp.explain(photo, again, 0, preprocessing={"size": 32}, **FEW)
    assert changed != first
    assert torch.equal(changed.attribution, fresh.attribution)
    api.forget()


def test_a_model_that_is_let_go_of_is_not_taken_for_the_next(photo: Image.Image) -> None:
    """Models are known by their `id`, which Python gives to another object once they are gone."""
    spec = ModelSpec("tests.cli.networks:good")
    dmbp.compare(photo, spec, "dog", methods=["random"])  # pyright: ignore
    known = weakref.ref(spec)
    del spec
    gc.collect()
    assert known() is not None
    api.forget()
    gc.collect()
    assert known() is None


def test_comparing_methods(photo: Image.Image, model: Classifier) -> None:
    found = dmbp.compare(photo, model, "dog", methods=["gradient", "random"], name="noise")
    assert set(found.scores) == {"gradient", "random"}
    assert list(found.scores.values()) == sorted(found.scores.values(), reverse=True)
    assert found.to_dict()["photo"] == "noise"
    assert repr(found).startswith("<Comparison on noise, insertion: ")
    assert found._repr_png_()[:4] == b"\x89PNG"
    figure, axes = plt.subplots()
    with pytest.raises(DMBPError, match="has several pictures: draw it with figure"):
        found.plot(axes)
    plt.close(figure)


def test_the_sanity_check(photo: Image.Image, model: Classifier) -> None:
    found = dmbp.sanity(photo, model, methods="gradient,random", draws=1)
    assert found.correlations["random"] == pytest.approx(1)
    assert found.correlations["gradient"] < 0.9
    assert found._repr_png_()[:4] == b"\x89PNG"


def test_the_doctor_prints_itself() -> None:
    found = dmbp.doctor(tokens().module.eval(), inputs=torch.randn(1, 3, 32, 32))
    assert found.can_be_explained
    assert "exactness" in repr(found)
    assert found.to_dict()["weights"] == "its own"
    assert not dmbp.doctor(spectral().eval()).can_be_explained


def closed(file: Any) -> Any:
    """A copy of an image that was closed, or a closed file."""
    file = file.copy() if isinstance(file, Image.Image) else file
    file.close()
    return file


MODULE = net()
MISTAKES: list[tuple[Callable[[Image.Image], object], str]] = [
    (lambda p: dmbp.methods()["gradcm"], "there is no method 'gradcm'; did you mean 'gradcam'"),
    (lambda p: dmbp.explain(p, iteratons=3), "no argument 'iteratons'; did you mean 'iterations'"),
    (lambda p: dmbp.DMBP(MODULE, presett="fast"), "DMBP takes no setting 'presett'; did you mean"),
    (
        lambda p: dmbp.methods()["rise"](MODULE, maks=3),
        "RISE takes no setting 'maks'",
    ),
    (lambda p: dmbp.explain(p, preset="papr"), "there is no preset 'papr'; did you mean 'paper'"),
    (lambda p: dmbp.explain("nowhere.jpg"), "there is no file nowhere.jpg"),
    (lambda p: dmbp.explain("https://a.org/b.jpg"), "is an address: download the photo"),
    (lambda p: dmbp.explain(3), "a photo is a path, the bytes of a file, .* not a int"),
    (lambda p: dmbp.explain([]), "the list of photos is empty"),
    (lambda p: dmbp.explain(b"GIF"), "the photo is not an image that can be read"),
    (lambda p: dmbp.explain(p, "resnet5O"), "there is no model 'resnet5O'; did you mean"),
    (lambda p: dmbp.explain(p, 3), "a model is a name, a file, an nn.Module, .* not a int"),
    (lambda p: dmbp.explain(p, MODULE), "how photos are prepared for Sequential is not known"),
    (lambda p: dmbp.explain(p, MODULE, preprocessing={"siz": 3}), "no setting 'siz'; did you mean"),
    (lambda p: dmbp.explain(p, MODULE, preprocessing=3), "preprocessing=3 has no form"),
    (lambda p: dmbp.explain(p, MODULE, classes="cat"), "there is no file of classes cat"),
    (lambda p: dmbp.explain(p, MODULE, weights="w.pth"), "weights are for models by name"),
    (lambda p: dmbp.explain(p, MODULE, device="cuda"), "dmbp does not move it"),
    (lambda p: dmbp.explain(p, target="cot"), "the model has no class 'cot'; did you mean"),
    (lambda p: dmbp.explain(p, target=1.5), "a target is a class's number or name"),
    (lambda p: dmbp.explain(p, target={}), "the target has no class"),
    (lambda p: dmbp.explain(torch.full((3, 32, 32), float("nan"))), "NaN or infinite"),
    (lambda p: dmbp.explain(p, nn.LazyLinear(3)), "lazy layers that have no weights yet"),
    (
        lambda p: dmbp.explain(torch.ones(3, 32, 32, dtype=torch.uint8)),
        "whole numbers",
    ),
    (lambda p: dmbp.explain(torch.ones(0, 3, 32, 32)), "holds no input"),
    (lambda p: dmbp.explain(closed(p)), "the photo cannot be read: Operation on closed image"),
    (lambda p: dmbp.explain(StringIO("photo")), "open it with mode 'rb'"),
    (
        lambda p: dmbp.explain(p, target=torch.tensor([1, 2])),
        "a target for each photo",
    ),
    (lambda p: dmbp.explain(p, target=numpy.array([1, 2])), "a target for each photo"),
    (lambda p: dmbp.compare(p, method="dmbp"), "no argument 'method'; did you mean 'methods'"),
    (lambda p: dmbp.render.show(p, p, titel="a"), "show takes no argument 'titel'; there are"),
    (lambda p: dmbp.render.grid(p, [p]), "give maps by their titles"),
    (lambda p: write_figure(Figure(), closed(BytesIO())), "the open file cannot be written"),
    (lambda p: dmbp.compare([p]), "this takes one photo: call it for each of the list"),
    (lambda p: dmbp.compare(p, target=[1, 2]), "this is about one target, and 2 were given"),
    (lambda p: dmbp.compare(p, methods="gradcm"), "there is no method 'gradcm'"),
    (lambda p: dmbp.compare(p, settings={"rise": {"maks": 1}}), "rise takes no setting 'maks'"),
]


@pytest.mark.filterwarnings("ignore:the model is in training mode")
@pytest.mark.parametrize(("mistake", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence(
    mistake: Callable[[Image.Image], object], sentence: str, photo: Image.Image
) -> None:
    with pytest.raises(DMBPError, match=sentence) as found:
        mistake(photo)
    assert "\n" not in str(found.value)
