"""Where the masks start (the paper's appendix, "Initializing filter masks").

From the last layer backwards, two backward passes run side by side, one through σ and one through
1−σ. At each site, before they pass it, both gradients in the activation are known, and

    σ = sigmoid(2)   where both are positive      more of this raises y⁺ and y⁻: leave it to y⁺
        sigmoid(−2)  where both are negative      more of this lowers them: leave it to y⁻
        0.5          where they disagree

Starting at 0.5 everywhere instead costs most of the quality: an insertion score of 0.49 against
0.64 on 200 photographs with ResNet50.
"""

import torch
from torch import Tensor

from dmbp.engine import Logits
from dmbp.engine.gates import start_at_gate
from dmbp.engine.plan import plan_of
from dmbp.linear import LinearNetwork
from dmbp.linear.piece import Piece
from dmbp.linear.step import Step

START = 2.0
"""sigmoid(±2) ≈ 0.88, 0.12."""


@torch.no_grad()
def initial_logits(net: LinearNetwork) -> Logits:
    """The scalars that the masks of every site of `net` start from."""
    logits: dict[str, Tensor] = {}

    def at_gate(step: Step, gradient: Tensor) -> Tensor:
        """Set σ by the signs of both gradients, then pass them through σ and 1−σ."""
        assert isinstance(step.function, Piece)
        assert step.site is not None
        logits[step.site.name], passed = start_at_gate(gradient, step.function.slope, START)
        return passed

    plan_of(net).visit_gates(at_gate)
    # What is overwritten later has no gradient, and no say.
    return {
        site.name: logits[site.name] if site.name in logits else net.inputs.new_zeros(site.shape)
        for site in net.sites
    }
