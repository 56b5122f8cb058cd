"""What is found out about a model, whether it can be explained or not."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.errors import UnsupportedOperation
from dmbp.linear.capture.export import capture
from dmbp.linear.freeze.freeze import freeze
from dmbp.linear.rules.refusals import ADD_RULE
from dmbp.workflows.examination import examine


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
    assert [one.suggestion == ADD_RULE for one in found.refusal.operations] == [True, False, True]
    assert found.refusal.message.endswith(
        "; 2 more cannot be frozen either: run `dmbp doctor` to list them all"
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


def test_an_operation_at_the_top_of_the_model_has_no_module() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.bessel_j0(x).mean((2, 3))

    refusal = examine(Odd().eval(), torch.randn(1, 3, 8, 8)).refusal
    assert refusal is not None
    (refused,) = refusal.operations
    assert (refused.operation, refused.module) == ("aten.special_bessel_j0.default", "")
    assert refused.suggestion == ADD_RULE
