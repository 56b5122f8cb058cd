"""The table of methods: its names, and its methods as Quantus calls them."""

import gc
import weakref
from typing import get_args

import numpy
import pytest
import torch

import dmbp
from dmbp.attribution import COMPARED, METHODS, parse_method_names
from dmbp.attribution.registry import MethodName
from dmbp.attribution.settings import check_settings
from dmbp.errors import InputError
from tests import nets


def test_names() -> None:
    assert parse_method_names("all") == list(METHODS)
    assert parse_method_names("default") == list(COMPARED)
    assert set(COMPARED) <= set(METHODS)
    assert parse_method_names("gradcam, RISE,guided-backprop,rise") == [
        "gradcam",
        "rise",
        "guided_backprop",
    ]
    with pytest.raises(InputError, match=r"no method 'gradcan'; did you mean 'gradcam'\?"):
        parse_method_names("gradcan")
    with pytest.raises(InputError, match="no method is named; choose from gradient, "):
        parse_method_names(" , ")


def test_the_public_table_is_a_copy_that_cannot_be_changed() -> None:
    table = dmbp.methods()
    assert dict(table) == dict(METHODS)
    with pytest.raises(TypeError, match="does not support item assignment"):
        table["mine"] = METHODS["dmbp"]  # type: ignore[index]


def test_the_names_for_editors_are_those_of_the_table() -> None:
    assert list(get_args(MethodName)) == list(METHODS)


def test_a_rows_settings_can_be_overridden() -> None:
    model = nets.MLP().eval()
    paper = dmbp.methods()["dmbp_paper"]
    assert paper(model).settings.iterations == 200
    assert paper(model, iterations=7).settings.iterations == 7
    assert paper(model, iterations=7).settings.combine == "sum"


def test_explain_func() -> None:
    """Quantus calls it by keyword with NumPy arrays, and passes more than it needs."""
    model, inputs = nets.VGGLike().eval(), torch.randn(2, 3, 16, 16)
    explain = dmbp.explain_func("gradient", reference="blur")
    maps = explain(model=model, inputs=inputs.numpy(), targets=numpy.array([1, 2]), device="cpu")
    expected = METHODS["gradient"](model, reference="blur").attribute(inputs, target=[1, 2])
    assert isinstance(maps, numpy.ndarray)
    assert numpy.array_equal(maps, expected.sum(1, keepdim=True).numpy())


@pytest.mark.parametrize("method", ["gradient", "gradcam", "dmbp_fast"])
def test_explain_func_adds_channels_up(method: str) -> None:
    """Quantus' localisation metrics compare maps with masks of one channel."""
    model, inputs = nets.VGGLike().eval(), torch.randn(2, 3, 16, 16)
    assert dmbp.explain_func(method)(model, inputs, [1, 2]).shape == (2, 1, 16, 16)
    kept = dmbp.explain_func(method, keep_channels=True)(model, inputs, [1, 2])
    expected = METHODS[method](model).attribute(inputs, target=[1, 2])
    assert numpy.array_equal(kept, expected.numpy())


def test_explain_func_keeps_the_features_of_vectors() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    maps = dmbp.explain_func("gradient")(model.eval(), torch.randn(2, 6), [1, 2])
    assert maps.shape == (2, 6)


def test_explain_func_of_an_unknown_method() -> None:
    with pytest.raises(InputError, match="did you mean 'gradcam'"):
        dmbp.explain_func("gradcam2")


def test_weights_may_change_between_calls() -> None:
    """Quantus' randomisation metrics change them."""
    model, inputs = nets.VGGLike().eval(), torch.randn(2, 3, 16, 16)
    explain = dmbp.explain_func("guided_backprop")
    before = explain(model=model, inputs=inputs, targets=[1, 2])
    with torch.no_grad():
        model.classifier[2].weight.mul_(-1)
    after = explain(model=model, inputs=inputs, targets=[1, 2])
    expected = METHODS["guided_backprop"](model).attribute(inputs, target=[1, 2])
    assert not numpy.allclose(before, after)
    assert numpy.array_equal(after, expected.sum(1, keepdim=True).numpy())


def test_earlier_models_are_released() -> None:
    """Quantus' randomisation metrics make many copies."""
    explain = dmbp.explain_func("gradient")
    models = [nets.VGGLike().eval() for _ in range(2)]
    gone = weakref.ref(models[0])
    for model in models:
        explain(model=model, inputs=torch.randn(1, 3, 16, 16), targets=[1])
    del model, models
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("rise", {"masks": 10**9}, "masks must be from 1 to 100,000, not 1000000000"),
        ("rise", {"cells": 10**9}, "cells must be from 1 to 1,000"),
        ("rise", {"masks": 16**5000}, "not a value that is too long to show"),
        ("integrated_gradients", {"steps": 10**9}, "steps must be from 1 to 1,000"),
        ("smoothgrad", {"samples": 10**9}, "samples must be from 1 to 1,000"),
        ("smoothgrad", {"noise": 1e30}, "noise must be from 0 to 1,000"),
        ("blur_ig", {"steps": 10**9}, "steps must be from 1 to 1,000"),
        ("blur_ig", {"max_sigma": 1e9}, "max_sigma must be from 0.01 to 1,000"),
        ("lpr", {"iterations": 10**9}, "iterations must be from 0 to 10,000"),
        ("lpr", {"learning_rate": 1e9}, "learning_rate must be above 0 and at most 1,000"),
        ("dmbp", {"iterations": 10**9}, "iterations must be a whole number from 0 to 10,000"),
    ],
)
def test_what_a_method_repeats_is_limited(
    method: str, settings: dict[str, float], sentence: str
) -> None:
    """A number that was typed by mistake would run forever, or take all memory."""
    with pytest.raises(InputError, match=sentence):
        check_settings(method, settings)
