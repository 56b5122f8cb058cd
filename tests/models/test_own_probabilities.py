"""Outputs that are probabilities already are seen to be."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.models import Classifier
from dmbp.models.classifier import outputs_of


class Clamped(nn.Module):
    """A sigmoid kept away from zero and one."""

    def forward(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores).clamp(1e-6, 1 - 1e-6)


class Doubled(nn.Module):
    """What is no probability any more."""

    def forward(self, scores: Tensor) -> Tensor:
        return 2 * torch.sigmoid(scores)


@pytest.mark.parametrize(
    ("last", "activation"),
    [
        (nn.Sigmoid(), "none"),
        (nn.Softmax(1), "none"),
        (Clamped(), "none"),
        (Doubled(), "softmax"),
        (nn.LogSoftmax(1), "softmax"),
        (nn.Identity(), "softmax"),
    ],
)
def test_what_a_network_ends_in(last: nn.Module, activation: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), last).eval()
    inputs = torch.randn(2, 3, 2, 2)
    outputs, classifier = outputs_of(Classifier("a model", module), inputs)
    assert torch.equal(outputs, module(inputs))
    assert classifier.activation == activation
