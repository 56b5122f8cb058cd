"""Where the masks start (the paper's appendix, "Initializing filter masks").

From the last layer backwards, two backward passes run side by side, one through σ and one through
1−σ. At each site, before they pass it, both gradients in the activation are known, and

    σ = sigmoid(2)   where both are positive      more of this raises y⁺ and y⁻: leave it to y⁺
        sigmoid(−2)  where both are negative      more of this lowers them: leave it to y⁻
        0.5          where they disagree

Starting at 0.5 everywhere instead costs most of the quality: an insertion score of 0.49 against
0.64 on 200 photographs with ResNet50.
"""

from typing import Any

import torch
from torch import Tensor

from dmbp.engine import Logits
from dmbp.linear import LinearNetwork, Site

START = 2.0
"""sigmoid(±2) ≈ 0.88, 0.12."""


class _SetBySigns(torch.autograd.Function):
    """The identity on both streams; going back, sets the site's logits and applies the masks."""

    @staticmethod
    def forward(
        ctx: Any, positive: Tensor, negative: Tensor, name: str, logits: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Pass both streams on."""
        ctx.name, ctx.logits = name, logits
        return positive.view_as(positive), negative.view_as(negative)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Set σ by the signs of both gradients, then pass them through σ and 1−σ."""
        positive, negative = gradients
        agree = torch.sign(positive) == torch.sign(negative)
        logit = START * torch.sign(positive) * agree
        ctx.logits[ctx.name] = logit
        mask = torch.sigmoid(logit)
        return positive * mask, negative * (1 - mask), None, None


@torch.enable_grad()
def initial_logits(net: LinearNetwork) -> Logits:
    """The scalars that the masks of every site of `net` start from."""
    logits: dict[str, Tensor] = {}

    def at_site(site: Site, streams: list[Tensor]) -> list[Tensor]:
        return list(_SetBySigns.apply(*streams, site.name, logits))

    inputs = [net.inputs.detach().clone().requires_grad_() for _ in range(2)]
    scores = net.propagate(inputs, at_site)
    torch.autograd.grad([score.sum() for score in scores], inputs)
    return {site.name: logits[site.name] for site in net.sites}
