"""Real weights on real photographs: exact, right about the photo, and agreed with independently."""

from pathlib import Path

import torch
from benchmarks.prototype import compare, prototype
from benchmarks.real import photographs, resnet50, vgg16_voc

import dmbp
from tests.tolerance import FLOAT32, relative

PROTOTYPE = 1e-3
"""Terms after some iterations in float32, where two implementations round differently."""


def test_resnet50_is_exact_and_recognises_the_photos(shared: Path) -> None:
    classifier = resnet50(shared)
    inputs, classes = photographs(shared, classifier.preprocessing, 8)
    net = dmbp.linearize(classifier.module, inputs, target=classes)
    with torch.no_grad():
        outputs = classifier.module(inputs)
    assert net.exactness <= FLOAT32
    assert int((outputs.argmax(1) == classes).sum()) >= 7
    assert torch.equal(net.value(), outputs.gather(1, classes[:, None])[:, 0])


def test_resnet50_agrees_with_the_prototype(shared: Path) -> None:
    _agrees(resnet50(shared), shared, iterations=12)


def test_vgg16_agrees_with_the_prototype(shared: Path) -> None:
    _agrees(vgg16_voc(shared), shared, iterations=5)


def _agrees(classifier: dmbp.models.Classifier, shared: Path, iterations: int) -> None:
    inputs, target = photographs(shared, classifier.preprocessing, 1)
    target = target if classifier.classes is not None else torch.tensor([6])
    ours, theirs = compare(classifier, inputs, target, prototype(shared), iterations)
    for name in ("y", "y+", "y-"):
        assert relative(ours[name], theirs[name]) <= PROTOTYPE
