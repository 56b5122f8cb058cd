"""Targets with a name: what they read, how they are written, saved, and refused."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import TargetError
from dmbp.linear.targets import read_target
from dmbp.targets import (
    BoundTarget,
    Box,
    Class,
    Margin,
    NamedTarget,
    Region,
    Similarity,
    Step,
    TargetContext,
    Value,
    output_kind,
    target_from_text,
)
from dmbp.workflows.explained_target import explained_targets
from tests.cli import networks

NAMES = ("sky", "cat", "sea lion")
MAPS = torch.stack([torch.zeros(4, 4), torch.arange(16.0).view(4, 4), torch.full((4, 4), 7.5)])
"""Scores of three classes at 4 × 4 places: the cat wins in the lower half."""

READ = torch.tensor([[0.0, 9, 0], [0, 8, 0], [5, 0, 0], [0, 0, 4], [0, 3, 2.0]])
"""Scores of three classes at five steps: 1 1 – 2 1."""


def bind(
    target: NamedTarget,
    outputs: Tensor,
    size: tuple[int, ...] = (8, 8),
    activation: str = "softmax",
) -> BoundTarget:
    return target.bind(TargetContext(outputs, size, NAMES, activation))  # pyright: ignore


TEXTS = [
    "class:cat",
    "class:2",
    "margin:cat>sea lion",
    "margin:1>rivals",
    "value:2",
    "value:0,7",
    "step:3",
    "step:3=cat",
    "step:#2",
    "step:#0=1",
    "region:",
    "region:cat",
    "region:cat@box=40,30.5,90,120",
    "region:@point=64,80",
    "region:1@mask=2x3:eNrTBQAAZgBk",
    "box:",
    "box:0",
    "box:cat",
    "box:class=7",
    "box:7@near=0.1234567890123,1234.56789",
    "box:cat@near=64,80",
    "similarity:image=other photo.jpg",
    "similarity:prompt=a photo of a cat",
    "similarity:prompt=a cat + a dog, 2*3",
    "similarity:embedding=AACAPwAAAEA=",
    "1*class:cat + -0.5*class:dog",
    "0.3333333333333333*region:cat@point=0.1,2 + 1e-07*value:0,7",
    "1*similarity:prompt=a cat + a dog + -1*similarity:image=cat + dog.png + 2*step:#1",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_target_is_read_as_it_was_written(text: str) -> None:
    if "mask" in text:
        text = Region(1, mask=torch.tensor([[1, 0, 1], [0, 0, 1]])).text
    target = target_from_text(text)
    assert target.text == text
    again = target_from_text(target.text)
    assert again == target
    assert hash(again) == hash(target)


WRONG = {
    "cat": "write one as KIND:WHAT",
    "clas:cat": "did you mean 'class'",
    "class:": "the name of a class is empty",
    "margin:cat": "margin:cat>dog",
    "value:-1": "whole number from 0 on",
    "value:1.5": "whole number from 0 on",
    "step:x": "a step is a whole number",
    "step:#x": "the number of a character",
    "region:cat@bx=1,2,3,4": "did you mean 'box'",
    "region:cat@box=1,2,3": "is 4 numbers such as 40,30,90,120",
    "region:cat@point=1,a": "is 2 numbers such as 40,30",
    "region:cat@mask=9x9:AAAA": "damaged",
    "region:cat@mask=99999x99999:AAAA": "damaged",
    "box:cat@near=1": "is 2 numbers",
    "box:cat@far=1,2": "there is only near",
    "similarity:cat": "similarity:image=FILE",
    "similarity:embedding=***": "is not base64",
    "x*class:cat + class:dog": "the weight 'x'",
    "0*class:cat": "needs one with a weight other than 0",
    "nan*class:cat + class:dog": "finite number",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_text_that_is_no_target_is_one_sentence(text: str) -> None:
    with pytest.raises(TargetError, match=WRONG[text].replace("*", r"\*")) as caught:
        target_from_text(text)
    assert "\n" not in str(caught.value)


def test_a_region_is_the_mean_over_its_places() -> None:
    lower = bind(Region("cat"), MAPS)
    assert lower.name == "cat"
    assert float(lower(MAPS)) == pytest.approx(sum(range(8, 16)) / 8)
    assert lower.region is not None
    assert lower.region.float().mean() == 0.5  # at the size of the input, 8 × 8
    assert lower.region[4:].all()
    point = bind(Region(point=(7.9, 0.1)), MAPS)
    assert point.name == "sea lion at 7.9,0.1"  # 7.5 is more than 3
    assert float(point(MAPS)) == 7.5
    mask = torch.zeros(4, 4)
    mask[0, 1] = mask[3, 3] = 1
    assert float(bind(Region(1, mask=mask), MAPS)(MAPS)) == (1 + 15) / 2
    assert float(bind(Region(0), -MAPS)(MAPS)) == 0


def test_a_box_counts_where_the_class_is_predicted_in_it() -> None:
    # Pixels 2 to 6 of 8 are the places 1 and 2 of 4: 5 and 6 are less than the sea lion's 7.5.
    cat = bind(Region("cat", box=(2, 2, 6, 6)), MAPS)
    assert float(cat(MAPS)) == (9 + 10) / 2
    assert cat.score_words.endswith("over the places in the box where it is predicted")
    assert cat.region is not None
    assert cat.region.nonzero().tolist() == [[k, j] for k in (4, 5) for j in range(2, 6)]
    assert cat.weights is not None  # so that the target stays linear
    # Where it is predicted nowhere, all of the box counts.
    sky = bind(Region("sky", box=(2, 2, 6, 6)), MAPS + torch.tensor([1, 0, 0]).view(3, 1, 1))
    assert float(sky(MAPS)) == 0
    assert sky.region is not None
    assert sky.region.sum() == 16
    # The background is asked about only if there is nothing else in the box.
    shifted = MAPS - torch.tensor([0, 8, 8]).view(3, 1, 1)
    assert bind(Region(box=(0, 0, 8, 6)), shifted).name == "cat in the box 0,0,8,6"
    assert bind(Region(box=(0, 0, 8, 4)), shifted).name == "sky in the box 0,0,8,4"


def test_a_probability_is_read_along_the_classes() -> None:
    found = bind(Region("cat", point=(7, 7)), MAPS)
    assert found.probability is not None
    expected = float(MAPS[:, 3, 3].softmax(0)[1])
    assert float(found.probability(MAPS, None)) == pytest.approx(expected)
    assert float(found.probability(MAPS, "sigmoid")) == pytest.approx(1 / (1 + math.exp(-15)))
    sigmoid = bind(Region("cat", point=(1, 1)), MAPS, activation="sigmoid")
    assert sigmoid.probability is not None
    assert float(sigmoid.probability(MAPS, None)) == 0.5


def test_characters_are_counted_as_they_are_read() -> None:
    names = [bind(Step(character=k), READ).name for k in range(3)]
    assert names == ["cat as 1st character", "sea lion as 2nd character", "cat as 3rd character"]
    assert float(bind(Step(character=0), READ)(READ)) == 9  # the step with the highest score
    assert float(bind(Step(1, "sky"), READ)(READ)) == 0
    assert bind(Step(2), READ).name == "sky at step 2"
    assert float(bind(Step(4), READ[:, None])(READ[:, None])) == 3


def test_classes_margins_and_values() -> None:
    outputs = torch.tensor([1.0, 4.0, 2.0])
    assert float(bind(Class("lion"), outputs)(outputs)) == 2
    assert float(bind(Margin("cat", over="sky"), outputs)(outputs)) == 3
    rivals = bind(Margin("cat"), outputs)
    share = math.e / (1 + math.e)  # of the sea lion among the rivals
    assert float(rivals(outputs)) == pytest.approx(4 - share * 2 - (1 - share) * 1)
    assert bind(Value(2), outputs).probability is None
    assert float(bind(Value((1, 0, 2)), MAPS.view(3, 2, 8))(MAPS.view(3, 2, 8))) == 2


def test_similarity_is_a_cosine() -> None:
    outputs = torch.tensor([3.0, 4.0])
    assert float(bind(Similarity([0.0, 2.0]), outputs)(outputs)) == pytest.approx(0.8)
    with pytest.raises(TargetError, match="has 3 numbers, but the model has 2 outputs"):
        bind(Similarity([1.0, 2.0, 3.0]), outputs)
    with pytest.raises(TargetError, match="not all 0"):
        bind(Similarity([0.0, 0.0]), outputs)
    with pytest.raises(TargetError, match="no text encoder"):
        bind(Similarity(prompt="a cat"), outputs)


def test_targets_are_added_and_weighted() -> None:
    total = 2 * Class("cat") - Class("sky") + 0.5 * Value(2)
    outputs = torch.tensor([1.0, 4.0, 2.0])
    bound = bind(total, outputs)
    assert float(bound(outputs)) == 8
    assert bound.weights is not None
    assert bound.weights.tolist() == [-1, 2, 0.5]
    assert bound.name == "2 · cat − sky + 0.5 · sea lion"
    curved = bind(Similarity([1.0, 0, 0]) - Class(0), outputs)
    assert curved.weights is None
    assert float(curved(outputs)) == pytest.approx(1 / math.sqrt(21) - 1)
    regions = bind(Region(1, point=(0, 0)) + Region(2, point=(7, 7)), MAPS)
    assert regions.region is not None
    assert regions.region.sum() == 8  # two places of 2 × 2 pixels
    with pytest.raises(TargetError, match="only targets can be added"):
        Class("cat") + 1  # pyright: ignore


UNFIT = [
    (Class("cat"), MAPS, r"Class is for outputs \(classes,\)"),
    (Class("dog"), READ[0], "the model has no class 'dog'"),
    (Class(3), READ[0], "classes 0 to 2"),
    (Class("9" * 5000), READ[0], "out of range"),
    (Class(1.5), READ[0], "a number or a name"),  # pyright: ignore
    (Value(3), READ[0], "there is no value 3"),
    (Value((0, 5)), READ[0], "there is no value"),
    (Step(5), READ, "the outputs have steps 0 to 4"),
    (Step(character=3), READ, "the model reads characters 0 to 2"),
    (Step(character=0), torch.zeros(4, 3), "the model reads no character"),
    (Step(0), MAPS, "Step is for outputs"),
    (Region("cat"), READ[0], "Region is for outputs"),
    (Region("cat"), -MAPS, "predicts cat nowhere"),
    (Region("cat", box=(5, 5, 2, 9)), MAPS, "is empty"),
    (Region("cat", box=(50, 50, 60, 60)), MAPS, "lies outside the image"),
    (Region("cat", point=(-1, 3)), MAPS, "lies outside the image"),
    (Region("cat", mask=torch.zeros(4, 4)), MAPS, "the mask is empty"),
    (Region("cat", mask=torch.ones(3, 5)), MAPS, r"the mask has shape \(3, 5\)"),
    (Region("cat", mask=torch.ones(2, 4, 4)), MAPS, "a mask has shape"),
    (Box(0), READ[0], "Box is for detectors"),
]


@pytest.mark.parametrize(("target", "outputs", "sentence"), UNFIT)
def test_a_target_that_does_not_fit_is_one_sentence(
    target: NamedTarget, outputs: Tensor, sentence: str
) -> None:
    with pytest.raises(TargetError, match=sentence) as caught:
        bind(target, outputs)
    assert len(str(caught.value)) < 250


def test_what_cannot_be_a_target_is_refused_when_it_is_made() -> None:
    for make, sentence in (
        (lambda: Region(1, box=(0, 0, 1, 1), point=(0, 0)), "not several of them"),
        (lambda: Region(1, box=(0, 1)), "is 4 numbers"),  # pyright: ignore
        (lambda: Step(), "either a position or a character"),
        (lambda: Step(1, character=1), "either a position or a character"),
        (lambda: Box(1, near=(0, 0)), "not both"),
        (lambda: Similarity(), "an embedding, an image or a prompt"),
    ):
        with pytest.raises(TargetError, match=sentence):
            make()


@pytest.mark.parametrize(
    ("outputs", "size", "kind", "default", "verdict"),
    [
        (MAPS, (8, 8), "map", "region:", "predicted areas: cat 50%, sea lion 50%"),
        (READ, (32, 320), "steps", "step:#0", "read cat, sea lion, cat"),
    ],
)
def test_what_a_model_says_and_what_is_asked_by_default(
    outputs: Tensor, size: tuple[int, int], kind: str, default: str, verdict: str
) -> None:
    context = TargetContext(outputs, size, NAMES)
    found = output_kind(context)
    assert (found.name, found.default(context).text) == (kind, default)
    assert found.verdict(context, 0) == verdict
    with pytest.raises(TargetError, match="such as value:0,0,0,0"):
        output_kind(TargetContext(torch.zeros(2, 3, 4, 5), (8, 8)))


class Segmenter(nn.Module):
    """Scores of four classes at a quarter of the image's places."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


@pytest.fixture(scope="module")
def segmenter() -> nn.Module:
    torch.manual_seed(0)
    return Segmenter().eval()


IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_an_explanation_is_that_of_the_same_function(segmenter: nn.Module) -> None:
    explainer = dmbp.DMBP(segmenter, preset="fast", iterations=3)
    mask = torch.zeros(16, 16)
    mask[4:12, 4:8] = 1
    named = explainer.attribute(IMAGES, target=Region(2, mask=mask))
    written = explainer.attribute(IMAGES, target=lambda outputs: outputs[2, 2:6, 2:4].mean())
    torch.testing.assert_close(named, written)


def test_rows_with_windows_of_their_own_equal_each_alone(segmenter: nn.Module) -> None:
    small, all_of_it = Region(2, box=(4, 4, 8, 8)), Region(2, box=(0, 0, 16, 16))
    explainer = dmbp.DMBP(segmenter, iterations=2)
    together = explainer.explain(IMAGES, target=[[small, all_of_it, 1 * small], [small]])
    alone = [
        explainer.explain(IMAGES[image : image + 1], target=target).attribution
        for image, target in ((0, small), (0, all_of_it), (0, small), (1, small))
    ]
    torch.testing.assert_close(together.attribution, torch.cat(alone))
    coarse = dmbp.DMBP(segmenter, iterations=2, window=0.25).attribute(IMAGES[:1], target=small)
    assert not torch.allclose(coarse, alone[0])


def test_metrics_follow_a_targets_probability(segmenter: nn.Module) -> None:
    mask = torch.zeros(16, 16)
    mask[4:8, 4:8] = 1
    target = Region(2, mask=mask)
    maps = torch.randn(IMAGES.shape, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        outputs = segmenter(IMAGES)
    for activation, probability in (
        ("softmax", outputs.softmax(1)),
        ("sigmoid", outputs.sigmoid()),
    ):
        curve = dmbp.metrics.insertion_curve(
            segmenter, IMAGES, target, maps, steps=2, activation=activation
        )
        torch.testing.assert_close(curve[:, -1], probability[:, 2, 2:4, 2:4].mean((1, 2)))
        removed = dmbp.metrics.removal(segmenter, IMAGES, target, maps, activation=activation)
        torch.testing.assert_close(removed.probability, curve[:, -1])
        torch.testing.assert_close(removed.score, outputs[:, 2, 2:4, 2:4].mean((1, 2)))


FORMS: dict[str, list[NamedTarget]] = {
    "good": [Class(1), Margin(1, over=0), Margin(2), Value(2), 2 * Class(0) - 1 / 3 * Class(1)],
    "regression": [Value(0), Value((2,)), -1 * Value(1)],
    "quarter_maps": [
        *(Region(1), Region(), Region(2, box=(4, 4, 8.125, 80 / 7)), Region(point=(1 / 3, 30))),
        *(Region(1, mask=torch.eye(16)), Value((0, 1, 2))),
        1 / 7 * Region(1, point=(9, 9)) - 1e-7 * Region(2, mask=torch.eye(32)),
    ],
    "detector": [Box(0), Box(), Box("1"), Box("0", near=(9, 9)), Box(near=(1 / 3, 7)), 2 * Box(1)],
    "reader": [Step(3), Step(3, 2), Step(character=0), Step(0, 1) + Step(character=0, subject=2)],
    "encoder": [Similarity(torch.rand(16)), Similarity(torch.ones(16)) - 0.1 * Value(3)],
}
"""Every form of target that a network without names of classes can be asked about."""


@pytest.mark.parametrize("network", FORMS)
def test_every_form_is_the_same_after_it_was_saved(network: str, tmp_path: Path) -> None:
    targets = FORMS[network]
    classifier = getattr(networks, network)()
    image = 3 * torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    explainer = dmbp.DMBP(classifier.module.eval(), preset="fast", iterations=1)
    found = explainer.explain(image, target=targets)
    found.save(tmp_path / "found.safetensors")
    loaded = dmbp.load(tmp_path / "found.safetensors")
    written = json.loads(json.dumps([target.text for target in targets]))
    for again in (loaded.targets, [target_from_text(text) for text in written]):
        assert [k.text for k in again] == written  # pyright: ignore
        other = explainer.explain(image, target=list(again))  # pyright: ignore
        assert other.output.equal(found.output)
        assert other.attribution.equal(found.attribution)
    loaded.plot(tmp_path / "after.png", activation=classifier.activation)


def test_a_function_is_saved_by_its_name(segmenter: nn.Module, tmp_path: Path) -> None:
    def brightest(outputs: Tensor) -> Tensor:
        return outputs[2].amax()

    explainer = dmbp.DMBP(segmenter, preset="fast", iterations=1)
    explainer.explain(IMAGES[:1], target=brightest).save(tmp_path / "found.safetensors")
    loaded = dmbp.load(tmp_path / "found.safetensors")
    (name,) = loaded.targets
    assert "brightest" in str(name)
    loaded.plot(tmp_path / "after.png")
    with pytest.raises(TargetError, match="brightest"):
        explainer.explain(IMAGES[:1], target=name)  # pyright: ignore


def test_a_reader_with_as_many_steps_as_a_detector_has_cells_is_a_reader() -> None:
    outputs = torch.randn(80, 7)  # 48 × 320 pixels have 80 cells of 16 and 32 pixels
    names = tuple("-abcdef")
    assert output_kind(TargetContext(outputs, (48, 320), names)).name == "steps"
    nameless = TargetContext(outputs, (48, 320))
    assert output_kind(nameless).name == "boxes"
    with pytest.raises(TargetError, match="ask about one of its boxes, such as box:0"):
        Step(3).bind(nameless)


class Largest(NamedTarget):
    """The largest score of a class, without a text of its own."""

    def __init__(self, index: int) -> None:
        self.index = index

    def bind(self, context: TargetContext) -> BoundTarget:
        name = f"most {context.class_name(self.index)}"
        return BoundTarget(self, name, score=lambda outputs: outputs[self.index].amax())


def test_targets_are_asked_once_and_called_what_they_are() -> None:
    details = {"embed_prompt": lambda _: torch.ones(48)}
    context = TargetContext(MAPS, (8, 8), NAMES, details=details)
    prompt = Similarity(prompt="a 5* hotel")
    asked = [Largest(1), Largest(2), Region(1), prompt, 2 * prompt, "region:1"]
    found = explained_targets(networks.quarter_maps(), context, asked, [])
    assert [target.name for target in found[:3]] == ["most cat", "most sea lion", "cat"]
    assert [target.record()["kind"] for target in found[2:]] == ["region", "similarity", "sum"]


def test_a_target_of_ones_own_takes_a_few_lines(segmenter: nn.Module) -> None:
    class Contrast(NamedTarget):
        def bind(self, context: TargetContext) -> BoundTarget:
            return BoundTarget(self, "contrast", score=lambda k: k.amax() - k.amin())

    rows = read_target(Contrast(), outputs=READ.flatten()[None], shape=(5, 3))
    assert rows.scores(READ.flatten()[None]).tolist() == [9]
    named = dmbp.DMBP(segmenter, preset="fast", iterations=2).attribute(IMAGES, target=Contrast())
    assert named.shape == IMAGES.shape
    assert named.abs().sum() > 0
