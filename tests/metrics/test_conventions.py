"""Metrics take models as the methods do: several outputs, several inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dmbp import metrics
from dmbp.attribution import METHODS
from dmbp.errors import InputError, ModelError
from tests import nets

IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
MASKS = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(1))
MAPS = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(2))


@dataclass
class Found:
    """An output as libraries of models return it."""

    scores: Tensor
    features: Tensor


class Model(nn.Module):
    """Scores of a masked image, scaled, in some form beside two features."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any] = lambda scores, _: scores) -> None:
        super().__init__()
        self.inner, self.form = nets.ResidualNet(), form

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Any:
        seen = x if mask is None else x * mask
        return self.form(scale * self.inner(seen), seen.mean((2, 3))[:, :2])


FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Any]] = {
    "a dict": (lambda s, f: {"scores": s, "features": f}, "scores"),
    "a dataclass": (Found, "scores"),
    "a tuple": (lambda s, f: (f, s), 1),
    "a function": (lambda s, f: [[s], f], lambda found: found[0][0]),
    "logits": (lambda s, f: {"logits": s, "features": f}, None),
}

Metric = Callable[..., Tensor]
METRICS: dict[str, Metric] = {
    "insertion": lambda net, x, **more: metrics.insertion(net, x, 1, MAPS, steps=4, **more),
    "insertion_curve": lambda net, x, **more: metrics.insertion_curve(
        net, x, [0, 1, 2], MAPS, steps=4, internal_batch_size=4, **more
    ),
    "deletion": lambda net, x, **more: metrics.deletion(net, x, 1, MAPS, steps=4, **more),
    "complementary_insertion": lambda net, x, **more: metrics.complementary_insertion(
        net, x, [[0], [1, 2], [3]], MAPS, steps=4, **more
    ),
    "removal": lambda net, x, **more: (
        metrics.removal(
            net, x, [0, 1, 2], MAPS, internal_batch_size=2, **more
        ).score_without_positive
    ),
    "reinitialisation": lambda net, x, **more: metrics.reinitialisation(
        METHODS["gradient"], net, x, [0, 1, 2], **more
    ),
}


def like(model: Model, form: Callable[[Tensor, Tensor], Any]) -> Model:
    other = Model(form).eval()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", METRICS)
def test_one_of_several_outputs(name: str, form: str) -> None:
    make, output = FORMS[form]
    plain = Model().eval()
    found = METRICS[name](like(plain, make), IMAGES, output=output)
    torch.testing.assert_close(found, METRICS[name](plain, IMAGES))


@pytest.mark.parametrize("name", METRICS)
def test_other_inputs_go_with_their_images(name: str) -> None:
    """A mask for each image and a number for all act as if the model contained them."""

    class Inside(nn.Module):
        def __init__(self, model: Model, mask: Tensor) -> None:
            super().__init__()
            self.model, self.mask = model, mask

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x, self.mask, 0.5)

    model = Model().eval()
    found = METRICS[name](model, IMAGES, additional_forward_args=(MASKS, 0.5))
    shared = METRICS[name](Inside(model, MASKS[1]).eval(), IMAGES)
    torch.testing.assert_close(found[1], shared[1])
    assert not torch.allclose(found[0], shared[0])


@pytest.mark.parametrize("name", METRICS)
def test_outputs_that_do_not_exist(name: str) -> None:
    model = Model(FORMS["a dict"][0]).eval()
    with pytest.raises(ModelError, match="say which one to explain, for example output='scores'"):
        METRICS[name](model, IMAGES)
    with pytest.raises(InputError, match="without an output 'score': it has 'scores', 'features'"):
        METRICS[name](model, IMAGES, output="score")


@pytest.mark.parametrize(
    ("old", "new"),
    [("replaced", "replace_pixels"), ("reinitialised", "with_reinitialised_layer")],
)
def test_old_names_still_work_for_one_release(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"dmbp\.metrics\.{old} is now .*{new}"):
        assert getattr(metrics, old) is getattr(metrics, new)
    with pytest.raises(AttributeError, match="no attribute 'insertoin'"):
        metrics.insertoin  # noqa: B018
