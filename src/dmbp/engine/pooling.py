"""Max-pooling whose windows are square, which GPUs have kernels for."""

from dataclasses import dataclass

from torch import Tensor

from dmbp.linear.choices import Gather
from dmbp.linear.step import Step

MAX_POOL = "aten.max_pool2d.default"


@dataclass(frozen=True)
class Pooling:
    """Square windows of a max-pooling."""

    step: Step
    kernel: int
    stride: int
    padding: int

    @property
    def overlaps(self) -> bool:
        """Whether a pixel may be in several windows."""
        return self.kernel > self.stride

    @property
    def index(self) -> Tensor:
        """The winners' places in what is read."""
        assert isinstance(self.step.function, Gather)
        return self.step.function.index


def square_windows(step: Step) -> Pooling | None:
    """The windows of a step, where it is a max-pooling and they are square."""
    if step.operation != MAX_POOL or not isinstance(step.function, Gather) or step.keywords:
        return None
    given = [list(a) if isinstance(a, list | tuple) else a for a in step.arguments[1:]]
    kernel = given[0]
    stride = given[1] if len(given) > 1 and given[1] else kernel
    padding = given[2] if len(given) > 2 else [0, 0]
    dilation = given[3] if len(given) > 3 else [1, 1]
    square = all(len(set(pair)) == 1 for pair in (kernel, stride, padding))
    if not square or list(dilation) != [1, 1] or kernel[0] ** 2 > 255:
        return None
    return Pooling(step, kernel[0], stride[0], padding[0])
