"""How each operation of a network is frozen at an input: the table that capture looks things up in.

A row names an ATen operation and says what stands for it in the linear network:

| kind     | frozen at x as                                                      | carries a mask |
| -------- | ------------------------------------------------------------------- | -------------- |
| affine   | itself; arguments it is not linear in are held                      | no             |
| gate     | slope ⊙ z + offset, element by element; the offset counts as a bias | yes: a site    |
| smooth   | the tangent, or another line, in the same form                      | if activation  |
| product  | one factor held, the other carries                                  | if it is gated |
| norm     | the deviation held, the mean linear                                 | no             |
| choice   | the winner's index                                                  | no             |
| decision | its value at x: a comparison, a shape, an index, a softmax          | no             |

Activations that a model writes out are made one operation before, which is smooth (`regions.py`).
An operation that is not in the table is refused by name. To add one, write its row in the file of
its kind (`affine.py`, `gates.py`, `smooth.py`, `products.py`, `attention.py`, `norms.py`,
`choices.py`, `decisions.py`); `CONTRIBUTING.md` shows how.
"""

from collections.abc import Mapping

from dmbp.linear.affine import AFFINE
from dmbp.linear.attention import ATTENTION
from dmbp.linear.choices import CHOICES
from dmbp.linear.decisions import DECISIONS
from dmbp.linear.gates import GATES
from dmbp.linear.norms import NORMS
from dmbp.linear.products import PRODUCTS
from dmbp.linear.rule import Rule
from dmbp.linear.smooth import SMOOTH

RULES: Mapping[str, Rule] = {
    **AFFINE,
    **GATES,
    **SMOOTH,
    **PRODUCTS,
    **ATTENTION,
    **NORMS,
    **CHOICES,
    **DECISIONS,
}


def operation_name(target: object) -> str:
    """The key of an operation in the table: `aten.add.Tensor`, `getitem`."""
    return str(target) if "." in str(target) else getattr(target, "__name__", str(target))
