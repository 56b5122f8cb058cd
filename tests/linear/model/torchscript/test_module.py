"""TorchScript modules are explained as the modules that they were made from."""

import io
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import CaptureError
from dmbp.linear.model.torchscript.module import without_torchscript
from dmbp.linear.model.torchscript.operations import OPERATIONS, operate
from tests import nets
from tests.tolerance import FLOAT32, relative

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]

IMAGES = (2, 3, 16, 16)


def saved_and_loaded(script: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    buffer = io.BytesIO()
    torch.jit.save(script, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


MAKERS: dict[str, Callable[[nn.Module], torch.jit.ScriptModule]] = {
    "scripted": torch.jit.script,
    "traced": lambda model: torch.jit.trace(model, torch.randn(IMAGES)),
    "traced with one image": lambda model: torch.jit.trace(model, torch.randn(1, 3, 16, 16)),
    "loaded": lambda model: saved_and_loaded(torch.jit.script(model)),
    "traced and loaded": lambda model: saved_and_loaded(
        torch.jit.trace(model, torch.randn(IMAGES))
    ),
    "frozen": lambda model: torch.jit.freeze(torch.jit.script(model)),
}


class Branches(nn.Module):
    """Conditions and loops that depend on settings and sizes, and a state that is not a tensor."""

    def __init__(self, repeats: int = 2) -> None:
        super().__init__()
        self.repeats = repeats
        self.scale = 0.5
        self.shift = torch.randn(8, 1, 1)  # neither a parameter nor a buffer
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor, factor: float = 2.0) -> Tensor:
        batch, channels, height, width = x.shape
        if channels != 3 or height < 4:
            raise ValueError(f"{channels} channels, {height} rows")
        x = self.norm(self.stem(x)) + self.shift
        steps: list[Tensor] = []
        for step in range(self.repeats):
            x = torch.relu(x) * self.scale if step % 2 == 0 else nn.functional.silu(x)
            steps.append(x)
        if self.training:
            x = nn.functional.dropout(x)
        total = torch.stack(steps).sum(0).view(batch, 8, height * width)
        with torch.no_grad():
            size = float(total.shape[-1])
        return self.fc(total.sum(-1) / size * factor)


class Tokens(nn.Module):
    """A small vision transformer, whose layers have a fused operation for inference."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=True, activation="gelu", norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.fc(self.encoder(tokens).mean(1))


NETWORKS = (nets.ResidualNet, nets.FunctionalNet, nets.InPlaceNet, nets.ReusedNet, Branches)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("maker", MAKERS)
def test_the_same_linear_network(maker: str, network: type[nn.Module]) -> None:
    model, inputs = network().eval(), torch.randn(IMAGES)
    script = MAKERS[maker](model)
    ours, original = (dmbp.linearize(each, inputs, target=1) for each in (script, model))
    assert ours.exactness <= FLOAT32
    assert original.pullback().abs().max() > 0
    assert relative(ours.pullback(), original.pullback()) <= FLOAT32
    if maker != "frozen":  # which merges all modules into one
        assert [site.name for site in ours.sites] == [site.name for site in original.sites]


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("maker", ["scripted", "traced", "traced without gradients"])
def test_a_transformer(maker: str, norm_first: bool) -> None:
    """Without gradients, each encoder layer is traced as a single operation."""
    model, inputs = Tokens(norm_first).eval(), torch.randn(IMAGES)
    original = dmbp.linearize(model, inputs, target=1).pullback()
    with torch.set_grad_enabled(maker != "traced without gradients"):
        is_scripted = maker == "scripted"
        traced = torch.jit.trace(model, inputs, check_trace=False)
    script = torch.jit.script(model) if is_scripted else traced
    has_fused = "_transformer_encoder_layer_fwd" in str(script.inlined_graph)
    assert has_fused or maker == "traced"
    found = dmbp.linearize(script, inputs, target=1).pullback()
    assert relative(found, original) <= FLOAT32


def test_attention_for_inference() -> None:
    """The fused operation that a trace without gradients records."""
    attention, tokens = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.randn(3, 5, 8)
    weights = (attention.in_proj_weight, attention.in_proj_bias)
    weights += (attention.out_proj.weight, attention.out_proj.bias)
    for mask, kind in ((None, None), (torch.randn(5, 5) > 1, 0), (torch.randn(3, 5) > 1, 1)):
        arguments = (tokens, tokens, tokens, 8, 2, *weights, mask, True, True, kind)
        with torch.no_grad():
            expected = torch._native_multi_head_attention(*arguments)
            found = operate("aten::_native_multi_head_attention", "", (), *arguments)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_default_explanation_is_that_of_the_module() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(1, 3, 16, 16)
    script = torch.jit.script(model)
    maps = [dmbp.DMBP(each, iterations=5).attribute(inputs, target=1) for each in (model, script)]
    assert maps[0].abs().max() > 0
    assert relative(maps[1], maps[0]) <= FLOAT32


def test_a_part_of_a_module_may_be_torchscript() -> None:
    model, inputs = nn.Sequential(nets.ResidualNet(), nn.Linear(5, 4)).eval(), torch.randn(IMAGES)
    mixed = nn.Sequential(torch.jit.script(model[0]), model[1]).eval()
    before = dict(mixed.named_modules())
    ours, original = (dmbp.linearize(each, inputs, target=1) for each in (mixed, model))
    assert torch.equal(ours.pullback(), original.pullback())
    assert all(module is before[name] for name, module in mixed.named_modules())


def test_tensors_are_shared_and_the_mode_is_kept() -> None:
    script = saved_and_loaded(torch.jit.script(nets.ResidualNet().train()))
    plain = without_torchscript(script)
    assert plain.training
    found, expected = dict(plain.named_parameters()), dict(script.named_parameters())
    assert found.keys() == expected.keys()
    assert all(found[name].data_ptr() == expected[name].data_ptr() for name in expected)
    with pytest.warns(UserWarning, match="training mode"):
        dmbp.linearize(script, torch.randn(IMAGES), target=1)
    assert script.training
    eager = nets.ResidualNet()
    assert without_torchscript(eager) is eager


class Scores(NamedTuple):
    features: Tensor
    logits: Tensor


class NamesScores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nets.ResidualNet()

    def forward(self, x: Tensor) -> Scores:
        scores = self.net(x)
        return Scores(scores * 2, scores)


def test_outputs_with_names() -> None:
    model, inputs = NamesScores().eval(), torch.randn(IMAGES)
    script = saved_and_loaded(torch.jit.script(model))
    value = dmbp.linearize(script, inputs, target=1).value()
    assert torch.allclose(value, model(inputs).logits[:, 1])


class ByValue(nets.FunctionalNet):
    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        if x.sum() > 0:
            x = x * 2
        return self.fc(x.mean((2, 3)))


def test_a_branch_on_values_is_refused_with_its_line() -> None:
    script = saved_and_loaded(torch.jit.script(ByValue().eval()))
    with pytest.raises(CaptureError, match=r"values of .*test_module\.py, line \d+"):
        dmbp.linearize(script, torch.randn(IMAGES), target=0)


def test_an_operation_that_torch_does_not_have() -> None:
    with pytest.raises(CaptureError, match=r"runs aten::no_such_thing, which torch\.export cannot"):
        operate("aten::no_such_thing", "", (), torch.zeros(1))


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("aten::__range_length", (0, 7, 2), 4),
        ("aten::__range_length", (7, 0, -2), 4),
        ("aten::__range_length", (3, 3, 1), 0),
        ("aten::__derive_index", (2, 5, -2), 1),
        ("prim::DictConstruct", ("a", 1, "b", 2), {"a": 1, "b": 2}),
        ("aten::slice.t", ([1, 2, 3, 4], 1, None, 2), [2, 4]),
        ("prim::dtype", (torch.zeros(1, dtype=torch.bfloat16),), 15),
        ("aten::size", (torch.zeros(2, 3), -1), 3),
        ("aten::Int", (torch.tensor(3.9),), 3),
        ("aten::format", ("{} of {}", 1, 2), "1 of 2"),
    ],
)
def test_operations_on_plain_values(name: str, arguments: tuple, expected: object) -> None:
    assert OPERATIONS[name](*arguments) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("aten::add", (3, 4, 2), 11),
        ("aten::div", (7, 2, "floor"), 3),
        ("aten::div", (7, 2), 3.5),
        ("aten::floor_divide", (-7, 2), -4),
        ("aten::__or__", (False, True), True),
    ],
)
def test_arithmetic_without_tensors(name: str, arguments: tuple, expected: object) -> None:
    assert operate(name, "Tensor", (), *arguments) == expected


class Forks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.jit.wait(torch.jit.fork(self.stem, x)).mean((2, 3))


class KeepsState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(1)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        scores = x.mean((2, 3)) + self.last
        self.last = scores.sum()
        return scores


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (Forks, r"runs prim::fork, .*; explain the nn\.Module that the program was made from"),
        (KeepsState, r"replaces the tensor 'last' in every call, .*; explain a model that takes"),
    ],
)
def test_programs_that_cannot_be_followed(network: type[nn.Module], sentence: str) -> None:
    script = saved_and_loaded(torch.jit.script(network().eval()))
    with pytest.raises(CaptureError, match=sentence):
        dmbp.linearize(script, torch.randn(IMAGES), target=0)
