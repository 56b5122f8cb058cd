"""Real weights on real photos: exact, right about the photo, and in agreement with a prototype."""

from pathlib import Path

import pytest
import torch

import dmbp
from dmbp.metrics import insertion, reinitialisation
from tests.prototype import compare, prototype
from tests.real import photographs, resnet50, vgg16_voc
from tests.tolerance import FLOAT32, relative

PROTOTYPE = 1e-3
"""Allowed for terms after some float32 iterations, since two implementations round differently."""


def test_resnet50_is_exact_and_recognises_the_photos(shared: Path) -> None:
    classifier = resnet50(shared)
    inputs, classes = photographs(shared, classifier.preprocessing, 8)
    net = dmbp.linearize(classifier.module, inputs, target=classes)
    with torch.no_grad():
        outputs = classifier.module(inputs)
    assert net.exactness <= FLOAT32
    assert int((outputs.argmax(1) == classes).sum()) >= 7
    assert torch.equal(net.value(), outputs.gather(1, classes[:, None])[:, 0])


@pytest.mark.slow
def test_resnet50_agrees_with_the_prototype(shared: Path) -> None:
    assert_agreement(resnet50(shared), shared, iterations=6)


@pytest.mark.slow
def test_vgg16_agrees_with_the_prototype(shared: Path) -> None:
    assert_agreement(vgg16_voc(shared), shared, iterations=3)


def test_maps_find_what_the_real_resnet50_looks_at(shared: Path) -> None:
    """GradCAM beats a random order, and guided backprop survives re-initialisation."""
    classifier = resnet50(shared)
    inputs, classes = photographs(shared, classifier.preprocessing, 4)
    scores = {
        name: insertion(
            classifier.module,
            inputs,
            classes,
            dmbp.methods()[name](classifier.module).attribute(inputs, target=classes),
            steps=8,
        ).mean()
        for name in ("gradcam", "random")
    }
    assert scores["gradcam"] > scores["random"] + 0.1
    guided = dmbp.methods()["guided_backprop"]
    assert reinitialisation(guided, classifier.module, inputs[:2], classes[:2]).min() >= 0.95


def assert_agreement(classifier: dmbp.models.Classifier, shared: Path, iterations: int) -> None:
    inputs, target = photographs(shared, classifier.preprocessing, 1)
    target = target if classifier.name.startswith("resnet50") else torch.tensor([6])  # car
    ours, theirs = compare(classifier, inputs, target, prototype(shared), iterations)
    for name in ("y", "y+", "y-"):
        assert relative(ours[name], theirs[name]) <= PROTOTYPE
