"""A model as torch.export is to see it: tensors in, the explained one first; one tensor out.

The caller's model is inside as it is, with its own parameters. Places in the graph are named as
the model names them.

    >>> Adapted(model, output=lambda found: found[:, :3])(images).shape
    torch.Size([1, 3])
"""

from typing import Any

from torch import Tensor, nn
from torch.export import ExportedProgram

from dmbp.linear.held import Held
from dmbp.linear.outputs import Output, picked

INNER = "inner"


class Adapted(nn.Module):
    """`inner` with its further arguments held and one of its outputs picked."""

    def __init__(
        self, inner: nn.Module, *, output: Output = None, held: Held | None = None
    ) -> None:
        super().__init__()
        self.inner = inner
        self.training = inner.training
        self._output: Output = output
        self._held = held or Held()

    def forward(self, explained: Tensor, *others: Tensor) -> Any:
        """The output picked."""
        return picked(self.inner(explained, *self._held.filled(others)), self._output)


def with_own_names(program: ExportedProgram) -> ExportedProgram:
    """The program of an adapted model, its operations placed where the caller's model has them."""
    for node in program.graph.nodes:
        stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or {}
        node.meta["nn_module_stack"] = {
            key: (path.removeprefix(INNER).removeprefix("."), kind)
            for key, (path, kind) in stack.items()
            if path
        }
    return program
