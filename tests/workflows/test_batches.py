"""Photos that are explained together: the same as one by one, in the same order."""

from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from dmbp import DMBP
from dmbp.errors import TargetError
from dmbp.models import Classifier
from dmbp.workflows import batches
from dmbp.workflows.batches import explain_photo, explain_together
from dmbp.workflows.explanation import Explanation
from dmbp.workflows.sources import Photo
from tests.cli.networks import smooth

TOLERANCE = 1e-4
"""Of attributions in single precision: a batch changes the order of sums."""


def photo(number: int, targets: tuple[str, ...] = ()) -> Photo:
    noise = numpy.random.default_rng(number).integers(0, 255, (40, 48, 3), dtype=numpy.uint8)
    return Photo(f"photo {number}", f"photo-{number}", Image.fromarray(noise), targets)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    found = smooth()
    found.module.eval()
    return found


@pytest.fixture(scope="module")
def explainer(classifier: Classifier) -> DMBP:
    return DMBP(classifier.module, preset="fast", iterations=4)


def names(found: list[Any]) -> list[str]:
    return [one.prediction.name for one in found]


def test_a_batch_equals_single_photos(
    classifier: Classifier, explainer: DMBP, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = [photo(1), photo(2, ("1", "0")), photo(3), photo(4), photo(5)]
    sizes: list[int] = []
    explain = DMBP.explain

    def counted(self: DMBP, inputs: torch.Tensor, **options: Any) -> Any:
        sizes.append(len(inputs))
        return explain(self, inputs, **options)

    monkeypatch.setattr(DMBP, "explain", counted)
    together = list(explain_together(photos, classifier, explainer))
    assert sizes == [4, 1]
    alone: list[Explanation[Any]] = [explain_photo(k, classifier, explainer) for k in photos]
    assert names(together) == names(alone) == [k.name for k in photos]
    for one, other in zip(together, alone, strict=True):
        assert one.decomposition.image == other.decomposition.image
        assert one.decomposition.targets == other.decomposition.targets
        assert one.attribution.shape == other.attribution.shape
        scale = float(other.attribution.abs().max())
        torch.testing.assert_close(
            one.attribution, other.attribution, rtol=TOLERANCE, atol=TOLERANCE * scale
        )
        history, own = one.decomposition.history, other.decomposition.history
        torch.testing.assert_close(history.positive, own.positive, rtol=TOLERANCE, atol=1e-3)
        assert one.to_dict()["predicted"] == other.to_dict()["predicted"]


def test_large_photos_are_not_held_together(
    classifier: Classifier, explainer: DMBP, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MOST_PIXELS", 3 * 40 * 48)
    read: list[int] = []

    def photos() -> Any:
        for number in range(7):
            read.append(number)
            yield photo(number)

    for count, _ in enumerate(explain_together(photos(), classifier, explainer)):
        assert len(read) <= count + 4


def test_an_error_comes_after_the_photos_before_it(
    classifier: Classifier, explainer: DMBP, monkeypatch: pytest.MonkeyPatch
) -> None:
    decompose = batches._decompose

    def failing(batch: Any, *others: Any) -> Any:
        if any(one.photo.name == "photo 2" for one in batch):
            raise TargetError("not this one")
        return decompose(batch, *others)

    monkeypatch.setattr(batches, "_decompose", failing)
    explained = explain_together([photo(k) for k in range(4)], classifier, explainer)
    assert [next(explained).prediction.name for _ in range(2)] == ["photo 0", "photo 1"]
    with pytest.raises(TargetError, match="not this one"):
        next(explained)
