"""A last convolution and ReLU, cut down to the channels that the score depends on.

Where classes are channels until the end, as in SqueezeNet, a question about one class leaves the
masks of all other classes' channels without effect: they stay as they start, and are not computed.
On a GPU they are: a recording is for all classes, and saves more than they cost.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dmbp.engine.folding import CONVOLUTION, convolution_arguments
from dmbp.engine.streams import in_order
from dmbp.engine.tail import Tail
from dmbp.linear.piece import Piece
from dmbp.linear.step import Step


@dataclass(frozen=True)
class Narrowed:
    """Steps and tail of fewer channels; `channels` are those kept, by the site's name."""

    steps: Mapping[int, Step]
    tail: Tail
    channels: Mapping[str, Tensor]

    def start(self, name: str, logits: Tensor) -> Tensor:
        """Of a site's logits, those of channels kept."""
        kept = self.channels.get(name)
        return logits if kept is None else logits[:, kept]

    def whole(self, name: str, learned: Tensor, start: Tensor | None) -> Tensor:
        """All logits of a site, from those learned and, where it is narrow, where all started."""
        if start is None:
            return learned
        return start.index_copy(1, self.channels[name], learned.to(start.dtype))


def narrowed(steps: Sequence[Step], tail: Tail, fixed: set[int]) -> Narrowed:
    """What is left of the steps before a tail; `fixed` steps are not touched."""
    changed: dict[int, Step] = {}
    gradients = dict(tail.gradients)
    channels: dict[str, Tensor] = {}
    for gate, convolution in _ends(steps, tail, fixed):
        assert gate.site is not None
        gradient = gradients[gate.output]
        kept = (gradient != 0).any(3).any(2).any(0).nonzero()[:, 0]
        if not 0 < len(kept) < gradient.shape[1]:
            continue
        changed[convolution.output] = _convolution_of(convolution, kept)
        changed[gate.output] = _gate_of(gate, kept)
        gradients[gate.output] = in_order(gradient[:, kept])
        channels[gate.site.name] = kept
    return Narrowed(changed, replace(tail, gradients=gradients), channels)


def _ends(steps: Sequence[Step], tail: Tail, fixed: set[int]) -> list[tuple[Step, Step]]:
    """Gates that only the tail reads, each with the convolution that only it reads."""
    made = {step.output: step for step in steps if step.output not in fixed}
    readers = Counter(index for step in steps for index in step.reads)
    found: list[tuple[Step, Step]] = []
    for end, gradient in tail.gradients.items():
        gate = made.get(end)
        if gate is None or gate.site is None or readers[end] > 0 or gradient.dim() != 4:
            continue
        convolution = made.get(gate.reads[0])
        if convolution is None or readers[convolution.output] > 1:
            continue
        plain = convolution.operation == CONVOLUTION and not convolution.keywords
        if plain and convolution_arguments(convolution)[-1] == 1:
            found.append((gate, convolution))
    return found


def _convolution_of(step: Step, kept: Tensor) -> Step:
    weight, bias, *rest = convolution_arguments(step)
    bias = None if bias is None else bias[kept]
    arguments = [step.arguments[0], weight[kept], bias, *rest]
    return replace(step, arguments=arguments, shape=_fewer(step, kept))


def _gate_of(step: Step, kept: Tensor) -> Step:
    piece = step.function
    assert isinstance(piece, Piece)

    def part(tensor: Tensor) -> Tensor:
        return tensor[:, kept] if tensor.dim() == 4 and tensor.shape[1] > 1 else tensor

    offset = None if piece.offset is None else part(piece.offset)
    return replace(step, function=Piece(part(piece.slope), offset), shape=_fewer(step, kept))


def _fewer(step: Step, kept: Tensor) -> tuple[int, ...]:
    assert step.shape is not None
    return (step.shape[0], len(kept), *step.shape[2:])
