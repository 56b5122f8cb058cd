"""Models that cannot be explained are refused in a sentence that says why, where and what to do."""

import re
from collections.abc import Mapping

import pytest
import torch
from torch import nn

import dmbp
from dmbp.errors import DMBPError, place_in, place_of
from dmbp.linear.rules.refusals import OWN_NAMESPACES, REFUSALS, cause_of
from dmbp.linear.rules.table import RULES
from tests import refused

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

LINE = r"refused\.py, line \d+"

EXPLAINED = (
    "int8 weights, dequantised in forward()",
    "float8 weights",
    "torch.nonzero",
    "autograd.Function of supported operations",
    "LSTM",
)
"""Models that dmbp explains although they look as if it could not."""

INTERNALS = re.compile(
    r"torch\._|symbol|guard|u0|zuf|SymInt|[Ff]ake(Tensor| impl)|unhinted|dispatch|__\w+__|"
    r"PackedParams|\n|Please|github"
)
"""Words of PyTorch's own messages that say nothing to a user."""

EXPECTED: Mapping[str, str] = {
    "int8, dynamic (torch.ao)": r"'fc' is quantised .* explain the network in floating point",
    "int8, static (torch.ao)": r"'1' is quantised .* explain the network in floating point",
    "int8 weights and activations": rf"round\.default at 'head' \({LINE}\).*slope is zero; explain",
    "fake quantisation": rf"fake_quantize\S+ at {LINE} .*rounds activations.*before it was",
    "batch norm without running statistics": r"at 'layer' .*no running statistics.*instance norm",
    "batch norm with training=True": rf"\({LINE}\).*statistics of the batch.*=self\.training",
    "complex weights": r"at 'head' .* into complex numbers .*; write complex numbers as",
    "Fourier transform": r"fft_rfft2.* are complex numbers; .* matrices of cosines and sines",
    "complex activations": r"aten\.complex.* are complex numbers; write complex numbers as pairs",
    "if x.sum() > 0": rf"decides by the values of a tensor at {LINE} .*; use torch\.where",
    "assert x.min() >= 0": rf"decides by the values of a tensor at {LINE} .*; use torch\.where",
    "x * x.max().item()": rf"max\.default at 'layer' \({LINE}\).*combines all images.*; give it",
    "x.tolist()": rf"decides by the values of a tensor at {LINE} .*; use torch\.where",
    "x.numpy()": rf"computes with NumPy at {LINE}, .*; use torch instead",
    "range(int(x.max()))": rf"decides by the values of a tensor at {LINE} .*; use torch\.where",
    "x[x > 0]": rf"mean\.default at 'layer' \({LINE}\).*combines all images.*; give it",
    "torch.cond": rf"^cond at 'layer' \({LINE}\).*values of a tensor decide.*torch\.where",
    "while_loop": rf"^while_loop at 'layer' \({LINE}\).*values of a tensor decide.*torch\.where",
    "meta device": r"'a\.weight' is on the meta device and has no data: load its weights",
    "partly on the meta device": r"'features\.3\.weight' is on the meta device .*: load its",
    "an attribute on the meta device": rf"\({LINE}\) is on the meta device and has no data; load",
    "sparse weights": r"'head\.weight' is a sparse tensor.*\.to_dense\(\)",
    "sparse activations": rf"_to_sparse\S* at {LINE} .*sparse tensor; use dense tensors",
    "torch.randn_like": rf"\({LINE}\).*draws random numbers.*; draw them in training only",
    "torch.rand": rf"aten\.rand\S+ at 'layer' \({LINE}\).*draws random numbers.*; draw them in",
    "torch.bernoulli": rf"at 'layer' \({LINE}\).*draws random numbers.*; draw them in",
    "dropout in evaluation mode": rf"\({LINE}\).*draws random numbers.*training=self\.training\)",
    "autograd.Function that rounds": rf"at 'layer' \({LINE}\).*slope is zero; explain",
    "custom operation": rf"custom operation dmbp_tests::twice at {LINE}, .*PyTorch's own",
    "custom operation with register_fake": r"thrice.*a custom operation, .*PyTorch's own",
    "list of detections": r"returns a list without a tensor of shape .*pass output=",
    "labels instead of scores": rf"argmax.*\({LINE}\).*return the scores instead of the label",
    "output made of Python numbers": r"does not depend on the input; .*compute the scores with",
    "state that is kept between calls": r"keeps from the call before; explain a model that takes",
    "a second input": r"takes other inputs, too: 'mask'; pass them as additional_forward_args",
    "lazy module": r"'head\.weight' is not initialised yet: run the model once",
    "half precision without a kernel": rf"\({LINE}\) has no kernel for torch\.float16.*\.float\(\)",
}
"""What the sentence says about each model."""


def test_every_model_has_an_expectation() -> None:
    assert {*EXPECTED, *EXPLAINED} == {*refused.CASES}


@pytest.mark.parametrize("case", EXPECTED)
def test_the_sentence_names_cause_place_and_way_out(case: str) -> None:
    model, inputs = refused.make(case)
    with pytest.raises(DMBPError, match=EXPECTED[case]) as caught:
        dmbp.linearize(model, inputs, target=0)
    sentence = str(caught.value)
    assert not INTERNALS.search(sentence), sentence
    assert not re.search(r"[.?] [A-Z]", sentence), "it is more than one sentence"


@pytest.mark.parametrize("case", EXPLAINED)
def test_models_that_are_explained(case: str) -> None:
    model, inputs = refused.make(case)
    net = dmbp.linearize(model, inputs, target=0)
    assert torch.allclose(net.value(), model(inputs)[:, 0], atol=1e-5)
    assert net.pullback().abs().max() > 0


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_int8_network() -> None:
    model, inputs = refused.make("int8, dynamic (torch.ao)")
    with pytest.raises(DMBPError, match=r"'fc' is quantised .* explain the network in floating"):
        dmbp.linearize(torch.jit.script(model), inputs, target=0)


def test_every_row_is_about_an_operation_that_exists() -> None:
    names = {f"aten.{name}" for name in dir(torch.ops.aten)}
    names |= {name.rpartition("::")[2] for name in torch._C._dispatch_get_all_op_names()}
    full = {f"aten.{name}" for name in names} | names
    for start in REFUSALS:
        if start.startswith("aten."):
            assert any(f"{name}.default".startswith(start) for name in full), start


def test_operations_of_no_row() -> None:
    assert cause_of("aten.special_bessel_j0.default").reason == "it has no rule"
    assert "custom operation" in cause_of("my_library.fused.default").reason
    assert "custom operation" not in cause_of("getitem").reason
    assert all(name.startswith(OWN_NAMESPACES) or "." not in name for name in RULES)


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        ('File "/home/me/net.py", line 12, in forward\n  x = f(x)', "net.py, line 12"),
        (r'File "C:\work\net.py", line 3, in forward', "net.py, line 3"),
        (
            'File "/a/net.py", line 1, in forward\n File "/x/site-packages/torch/nn.py", line 9',
            "net.py, line 1",
        ),
        ('File "/x/site-packages/torch/nn/modules/conv.py", line 9', ""),
        ('File "/home/me/torch/dmbp/net.py", line 5', "net.py, line 5"),
        ('File "<string>", line 1', ""),
        ("", ""),
    ],
)
def test_the_users_own_line(stack: str, place: str) -> None:
    assert place_in(stack) == place


def test_the_line_of_an_error() -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(x, torch.zeros(3, 7))

    try:
        Net()(torch.zeros(2, 5))
    except RuntimeError as error:
        place = place_of(error)
    assert re.fullmatch(r"test_refusals\.py, line \d+", place)
