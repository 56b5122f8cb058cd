"""Muon: momentum whose update is replaced, matrix by matrix, by the nearest orthogonal one.

A convolution's weight counts as the matrix (out channels, in channels × height × width). Keller
Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Jordan's coefficients of the quintic iteration x ← a·x + b·x³ + c·x⁵ on the singular values, which
# brings all of them near 1 in five steps.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay for convolution weights.

    An update has about the root mean square 1 / sqrt(fan in), the scale of a fresh weight, so the
    learning rate reads as the relative change in one step.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": learning_rate, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(_groups_of_one_shape(parameters), defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            self._step_group(group)

    def _step_group(self, group: dict) -> None:
        parameters: list[nn.Parameter] = group["params"]
        gradients = [parameter.grad for parameter in parameters]
        momenta = [self._momentum(parameter) for parameter in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        directions = torch._foreach_lerp(gradients, momenta, group["momentum"])

        stacked = torch.stack([direction.flatten(1) for direction in directions])
        updates = orthogonalise(stacked).to(stacked.dtype).unbind(0)
        shaped = [
            update.view(parameter.shape)
            for update, parameter in zip(updates, parameters, strict=True)
        ]
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, shaped, alpha=-group["lr"])

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return state["momentum"]


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of a stack of matrices (count, rows, columns) near 1."""
    a, b, c = COEFFICIENTS
    wide = matrices.shape[1] <= matrices.shape[2]
    x = matrices if wide else matrices.mT
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x if wide else x.mT


def _groups_of_one_shape(parameters: Iterable[nn.Parameter]) -> list[dict]:
    """Group weights by shape, to orthogonalise each group as one batch of matrices."""
    groups: dict[torch.Size, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.shape, []).append(parameter)
    return [{"params": group} for group in groups.values()]
