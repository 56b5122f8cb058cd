"""`dmbp doctor`: what it says of models that work, and of those that are refused."""

import json
import math
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from dmbp.cli import app
from dmbp.cli.doctor import FROZEN, Diagnosis
from dmbp.errors import UnsupportedOperation
from dmbp.linear.capture.export import capture
from dmbp.linear.freeze.freeze import freeze
from dmbp.linear.rules.table import RULES
from dmbp.workflows.examination import OWN_RULE, SUGGESTIONS, examine

MODELS = """
import torch
from torch import nn

def stack(*layers): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *layers)
def good(): return stack(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
def grey(): return nn.Sequential(nn.Conv2d(1, 4, 3), *good()[1:])
def affine(): return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3))
def maps(): return stack()
def spectral():
    class Spectral(nn.Module):
        def forward(self, x): return torch.fft.rfft2(x).abs().mean((2, 3))
    return stack(Spectral())
def branching():
    class Branching(nn.Module):
        def forward(self, x): return x.mean((2, 3)) if x.sum() > 0 else x.amax((2, 3))
    return stack(Branching())
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doctor_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


class Attending(nn.Module):
    """Queries and keys drop out, the values carry."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(2).unflatten(1, (3,)).transpose(1, 2)[..., :1].expand(-1, -1, 8)
        mixed = nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.last(nn.functional.gelu(self.norm(mixed))).mean(1)


def test_what_is_counted() -> None:
    found = examine(Attending().eval(), torch.randn(1, 3, 4, 4))
    assert found.refusal is None
    assert found.operations["norm"] == {"aten.layer_norm.default": 1}
    assert found.operations["product"] == {"aten.scaled_dot_product_attention.default": 1}
    assert found.operations["affine"]["aten.linear.default"] == 2
    assert found.dropped == {"aten.linear.default": 2}  # queries and keys
    assert [site.operation for site in found.sites] == ["scaled_dot_product_attention", "gelu"]
    assert found.learning is not None
    assert found.learning.mask_elements == 2 * 16 * 8
    assert found.learning.mask_bytes == 4 * found.learning.mask_elements
    assert found.learning.seconds_an_iteration > 0


def test_every_kind_of_rule_is_explained() -> None:
    assert set(FROZEN) == {rule.kind for rule in RULES.values()} - {"decision"}


def test_every_suggestion_is_about_an_operation() -> None:
    for start in SUGGESTIONS:
        assert hasattr(torch.ops.aten, start.removeprefix("aten.")) or start == "aten.fft_"


def test_a_model_that_works() -> None:
    result = doctor("doctor_models:good", "--size", "20")
    assert result.exit_code == 0, result.output
    for words in ("its own weights, float32 input 1×3×20×20", "gate 1", "relu", "1×4×18×18"):
        assert words in result.output
    assert "fast: float32 on cpu" in result.output


def test_json() -> None:
    result = doctor("doctor_models:good", "--size", "20", "--json")
    record = json.loads(result.output)
    assert record["input"] == [1, 3, 20, 20]
    assert record["operations"]["gate"] == {"aten.relu.default": 1}
    assert record["sites"][0] == {"name": "1", "operation": "relu", "shape": [1, 4, 18, 18]}
    assert record["learning"]["mask_elements"] == math.prod([1, 4, 18, 18])
    assert set(record["learning"]["memory"] or {}) in ({"bytes", "what"}, set())
    assert record["exactness"] <= record["tolerance"]


def test_many_sites_are_cut_short_unless_asked_for() -> None:
    short, whole = (
        doctor("resnet18", "--size", "32", *more).output for more in ([], ["--all-sites"])
    )
    assert "random weights" in short
    assert "17 sites" in short
    assert "… 12 more" in short
    assert "layer2.0.relu:2" not in short
    assert "layer2.0.relu:2" in whole


def test_lines_and_sites_may_be_chosen() -> None:
    chosen = json.loads(
        doctor("resnet18", "--size", "32", "--sites", "layer4*", "--sites", "relu", "--json").output
    )
    names = [site["name"] for site in chosen["sites"]]
    assert names[0] == "relu"
    assert len(names) == 5
    assert all(name.startswith("layer4") for name in names[1:])
    wrong = doctor("resnet18", "--size", "32", "--sites", "layr4*")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "no site 'layr4*'; did you mean 'layer4*'" in wrong.stderr
    assert "'secant'?" in doctor("resnet18", "--smooth", "secants").stderr


def test_a_network_of_one_channel() -> None:
    record = json.loads(doctor("doctor_models:grey", "--size", "16", "--json").output)
    assert record["input"] == [1, 1, 16, 16]
    assert record["exactness"] <= 1e-4


def test_a_refusal_names_operation_module_and_remedy() -> None:
    result = doctor("doctor_models:spectral")
    assert result.exit_code == 2
    lines = [line.split(maxsplit=1) for line in result.output.splitlines() if line]
    told = {line[0]: line[1] for line in lines if len(line) == 2}
    assert told["operation"] == "aten.fft_rfft2.default"
    assert told["module"] == "2"
    assert told["suggestion"].startswith("a Fourier transform is linear")
    record = json.loads(doctor("doctor_models:spectral", "--json").output)
    (refused,) = record["refusal"]["operations"]
    assert refused["operation"] == "aten.fft_rfft2.default"
    assert "dmbp doctor" not in record["refusal"]["message"]


class Several(nn.Module):
    """Operations without a rule one behind the other, beside each other and behind a decision."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Bessel()

    def forward(self, x: Tensor) -> Tensor:
        ranks = torch.searchsorted(torch.linspace(-1, 1, 5), x)  # whole numbers
        spectrum = self.body(torch.fft.rfft2(x).abs()) + torch.special.i1(ranks.float())[..., :5]
        again = torch.fft.rfft2(spectrum).abs().mean((2, 3))
        return (
            again
            + torch.special.i1e(torch.randn(3))
            + nn.functional.huber_loss(x, torch.zeros_like(x), reduction="none").mean((2, 3))
        )


class Bessel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(x)


def test_every_operation_without_a_rule_is_named() -> None:
    """Once a place; not what depends on no input, nor what breaks up into rules."""
    found = examine(Several().eval(), torch.randn(1, 3, 8, 8))
    assert found.refusal is not None
    assert [(one.operation, one.module) for one in found.refusal.operations] == [
        ("aten.searchsorted.Tensor", ""),
        ("aten.fft_rfft2.default", ""),
        ("aten.special_bessel_j0.default", "body"),
    ]
    assert [one.suggestion == OWN_RULE for one in found.refusal.operations] == [True, False, True]
    assert (
        "2 more cannot be frozen either; run `dmbp doctor` to list them all."
        in found.refusal.message
    )


def test_every_operation_that_its_rule_refuses_is_named() -> None:
    """One behind the other; those without a rule come first."""
    layers = (nn.Conv2d(3, 4, 3), nn.Dropout(), nn.ReLU(), nn.Dropout())
    images = torch.randn(2, 3, 8, 8)
    for more, expected in (
        ((), ["dropout", "dropout"]),
        ((nn.BatchNorm2d(4),), ["_native_batch_norm_legit_functional"]),
    ):
        model = nn.Sequential(*layers, *more, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        refusal = examine(torch.export.export(model.train(), (images,)), images).refusal
        assert refusal is not None
        assert [one.operation for one in refusal.operations] == [
            f"aten.{name}.default" for name in expected
        ]
        assert all("model.eval()" in one.suggestion for one in refusal.operations)


def test_a_fault_in_many_places_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(3, 3, 1), nn.Dropout())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(2, 3, 8, 8)
    found = examine(torch.export.export(model.train(), (images,)), images)
    Diagnosis("net", "random", found).show(Console(width=200))
    told = capsys.readouterr().out
    assert "8 operations of the model cannot be frozen" in told
    assert told.count("suggestion") == told.count("operation    ") == 1
    assert "modules      1, 3, 5, … 3 more, 13, 15\n" in told


def test_what_is_refused_writes_nothing_into_the_model() -> None:
    """Batch norm in training mode would move its running mean; only the model's own run does."""
    net = nn.BatchNorm2d(3)

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = net

        def forward(self, x: Tensor) -> Tensor:
            mean, variance = net.running_mean, net.running_var
            return nn.functional.batch_norm(x, mean, variance, training=True).mean((2, 3))

    model, images = Normed().eval(), torch.randn(2, 3, 8, 8)
    captured = capture(model, images)
    assert net.running_mean is not None
    before = net.running_mean.clone()
    with pytest.raises(UnsupportedOperation, match="statistics of the batch"):
        freeze(captured, images)
    assert torch.equal(net.running_mean, before)


def test_memory_grows_with_the_image() -> None:
    """What masks, their optimiser and activations take; nothing where nothing can be measured."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3))
    ).eval()
    learned = [examine(model, torch.randn(1, 3, side, side)).learning for side in (128, 512)]
    peaks = [None if one is None else one.memory for one in learned]
    if not Path("/proc/self/clear_refs").exists():
        assert peaks == [None, None]
        return
    small, large = (peak.bytes for peak in peaks if peak is not None)
    assert learned[1] is not None
    assert large > 2 * small
    assert large > 2 * learned[1].mask_bytes  # and the state of their optimiser


def test_memory_that_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dmbp.workflows.examination._CLEAR", Path("/nowhere/clear_refs"))
    result = doctor("doctor_models:good", "--size", "20")
    assert "memory       not measured on this system" in result.output


def test_torch_says_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """Where an export fails, torch prints the whole graph."""
    result = doctor("doctor_models:branching")
    assert result.exit_code == 2
    assert "does forward() branch on tensor values?" in result.output
    assert result.stderr == ""
    assert capfd.readouterr().err == ""


def test_other_refusals() -> None:
    assert "output has shape (1, 4, 222, 222)" in doctor("doctor_models:maps").output
    affine = doctor("doctor_models:affine", "--size", "8")
    assert affine.exit_code == 0
    assert "the model is affine" in affine.output
    unknown = doctor("resnet500")
    assert unknown.exit_code == 2
    assert "did you mean 'resnet50'" in unknown.stderr

    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.bessel_j0(x).mean((2, 3))

    refusal = examine(Odd().eval(), torch.randn(1, 3, 8, 8)).refusal
    assert refusal is not None
    (refused,) = refusal.operations
    assert (refused.operation, refused.module) == ("aten.special_bessel_j0.default", "")
    assert refused.suggestion == OWN_RULE
