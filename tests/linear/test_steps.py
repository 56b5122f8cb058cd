"""Which activations are sites, and how a selection keeps some of them."""

import pytest
import torch

import dmbp
from dmbp.errors import InputError
from tests import nets
from tests.tolerance import FLOAT64, relative

IMAGES = (2, 3, 16, 16)


def test_sites_are_selected_by_pattern_or_name() -> None:
    model, inputs = nets.VGGLike().eval(), torch.randn(IMAGES)

    def names(sites: object) -> list[str]:
        return [site.name for site in dmbp.linearize(model, inputs, sites=sites).sites]

    assert names(None) == ["features.1", "features.4", "classifier.1"]
    assert names("features*") == ["features.1", "features.4"]
    assert names(["classifier.1", "features.1"]) == ["features.1", "classifier.1"]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (nets.SqueezeExciteNet, ["act", "hardswish", "mul"]),
        (nets.TinyViT, ["scaled_dot_product_attention", "gelu"]),
        (nets.TinyConvNeXt, ["gelu"]),
    ],
)
def test_sites_are_activations_and_mixes_of_values(make: type, expected: list[str]) -> None:
    """A gate's own branch is frozen and has no sites, nor has a product of a value that is one."""
    found = dmbp.linearize(make().eval(), torch.randn(IMAGES)).sites
    assert [site.name for site in found if ":" not in site.name] == expected


@pytest.mark.parametrize(
    ("make", "carrying", "frozen"),
    [
        (nets.SqueezeExciteNet, "aten.mul.Tensor", ("hardsigmoid", "aten.sigmoid", "avg_pool")),
        (nets.TinyViT, "aten.scaled_dot_product_attention.default", ("softmax",)),
        (nets.TinyConvNeXt, "aten.div.Tensor", ("norm.ScalarOpt", "div")),
    ],
)
def test_the_branch_of_a_frozen_factor_is_removed(
    make: type, carrying: str, frozen: tuple[str, ...]
) -> None:
    steps = dmbp.linearize(make().eval(), torch.randn(IMAGES)).frozen.steps
    assert all(len(step.reads) == 1 for step in steps if step.operation == carrying)
    assert not [step.operation for step in steps if any(name in step.operation for name in frozen)]


def test_activations_without_a_mask_are_frozen_all_the_same() -> None:
    model, inputs = nets.VGGLike().double().eval(), torch.randn(IMAGES, dtype=torch.float64)
    some = dmbp.linearize(model, inputs, target=1, sites="classifier*")
    every = dmbp.linearize(model, inputs, target=1)
    masks = {site.name: torch.rand(site.shape, dtype=torch.float64) for site in some.sites}
    assert relative(some.value(masks), every.value(masks)) <= FLOAT64
    assert relative(some.pullback(masks), every.pullback(masks)) <= FLOAT64


def test_dmbp_learns_at_the_selected_sites() -> None:
    model, inputs = nets.VGGLike().double().eval(), torch.randn(IMAGES, dtype=torch.float64)
    some = dmbp.DMBP(model, iterations=4, sites="features.4").explain(inputs, target=1)
    every = dmbp.DMBP(model, iterations=4).explain(inputs, target=1)
    total = some.positive_output + some.negative_output + some.nuisance_output
    assert relative(total, model(inputs)[:, 1]) <= FLOAT64
    assert not torch.allclose(some.attribution, every.attribution)


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ("feature.1", "no site 'feature.1'; did you mean 'features.1'"),
        (["features.1", "conv*"], r"no site 'conv\*'; there are features\*, features.1\*"),
        (3, "sites must be a name, a pattern or a list of them, not 3"),
    ],
)
def test_unknown_sites_are_refused(sites: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dmbp.DMBP(nets.VGGLike().eval(), sites=sites).attribute(torch.randn(IMAGES), target=1)
