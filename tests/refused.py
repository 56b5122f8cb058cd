"""Models that cannot be explained, or only just, each with the habit of real code that it shows.

`CASES` is read by the tests of the sentences that refuse them, and by `benchmarks.refusals`, which
prints the sentences.
"""

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests import nets

IMAGES = (2, 3, 16, 16)


class Habit(nets.FunctionalNet):
    """A network whose features pass through `habit` before the last layer."""

    def __init__(self, habit: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.habit = habit

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.a(x))
        return self.fc(self.habit(x).mean((2, 3)))


class Layers(nn.Module):
    """A convolution, a layer of one's own and a classifier."""

    def __init__(self, layer: nn.Module, *, features: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layer = layer
        self.fc = nn.Linear(features, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.layer(self.stem(x).relu()).mean((2, 3)))


class Vector(nn.Module):
    """A convolution, its mean over the image, and a layer that takes vectors of eight numbers."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x).relu().mean((2, 3)))


def dynamic_int8() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nets.FunctionalNet().eval(), {nn.Linear})


def static_int8() -> nn.Module:
    quantization = torch.ao.quantization
    model = nn.Sequential(
        quantization.QuantStub(),
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
        quantization.DeQuantStub(),
    ).eval()
    model.qconfig = quantization.get_default_qconfig("fbgemm")
    prepared = quantization.prepare(model)
    prepared(torch.randn(IMAGES))
    return quantization.convert(prepared)


class Int8Linear(nn.Module):
    """Weights of eight bits and, if `activations`, inputs that are rounded to eight bits too."""

    def __init__(self, *, activations: bool) -> None:
        super().__init__()
        self.activations = activations
        self.register_buffer("weight", torch.randint(-127, 127, (5, 8), dtype=torch.int8))
        self.register_buffer("scale", torch.full((5, 1), 0.01))

    def forward(self, x: Tensor) -> Tensor:
        if not self.activations:
            return functional.linear(x, self.weight.to(x.dtype) * self.scale)
        step = x.abs().amax(1, keepdim=True) / 127
        whole = (x / step).round().to(torch.int8)
        product = whole.int() @ self.weight.int().t()
        return product.to(x.dtype) * step * self.scale.t()


class FakeQuantised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127)


class ComplexLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 5, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.weight.dtype) @ self.weight).abs()


class Fourier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft2(x).abs()


class ComplexActivations(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.complex(x, x.flip(1)).abs()


class ByValue(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * 2
        return x * 3


class ByItem(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.max().item()


class ByAssertion(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        assert x.min() >= 0, "the features must not be negative"
        return x


class ByMask(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        positive = x[x > 0]
        return x - positive.mean()


class ByNonzero(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.nonzero(x[0, 0].sum(1) > 0)[:, 0]
        return x[:, :, rows]


class ByLoop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.abs().max()) + 1):
            x = x * 0.5
        return x


class ByNumpy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.detach().numpy().mean())


class ByList(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        weights = x.mean((0, 2, 3)).tolist()
        return x * max(weights)


class ByCond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y * 3, (x,))


class ByWhile(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        (halved,) = while_loop(lambda y: y.abs().max() > 1, lambda y: (y * 0.5,), (x,))
        return halved


class SparseLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 8).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.weight, x.t()).t()


class SparseActivations(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 5))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(x.to_sparse(), self.weight)


class AddsNoise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class AddsNoiseOfItsOwn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(8, 1, 1)


class DropsAlways(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x, 0.5)


class Samples(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.bernoulli(torch.sigmoid(x))


class RoundStraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        return x.sign() * x.abs().sqrt().round()

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return gradient


class DoubleByHand(torch.autograd.Function):
    @staticmethod
    def forward(context, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        return gradient * 2


class Applies(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


@torch.library.custom_op("dmbp_tests::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy() * 2)


@torch.library.custom_op("dmbp_tests::thrice", mutates_args=())
def thrice(x: Tensor) -> Tensor:
    return torch.from_numpy(x.detach().numpy() * 3)


@thrice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class CustomOperation(nn.Module):
    def __init__(self, operation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.operation(x)


class Detector(nn.Module):
    """Returns a dictionary of boxes for each image, as torchvision's detectors do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
        scores = self.stem(x).relu().mean((2, 3))
        return [{"boxes": torch.zeros(8, 4), "scores": row} for row in scores]


class Labels(nn.Module):
    """Returns the number of the best class instead of scores."""

    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(1, keepdim=True)


class Detached(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor(x.detach().tolist())


class PlainTensor(nn.Module):
    """Holds a weight that is neither a parameter nor a buffer, on another device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.shift = torch.ones(8, 1, 1, device=device)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def partly_on_meta() -> nn.Module:
    model = nets.VGGLike()
    model.features[3].to("meta")
    return model


def half_lstm() -> nn.Module:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(48, 5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x.flatten(1, 2).transpose(1, 2).flatten(2).view(-1, 16, 48))[0][:, -1]

    return Recurrent()


class HalfKernel(nn.Module):
    """Calls an operation that has no kernel in half precision on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.linalg.inv(torch.eye(8, dtype=x.dtype))


class Float8Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(5, 8).to(torch.float8_e4m3fn))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype))


class ForwardMode(nn.Module):
    """A normalisation that computes batch statistics whatever the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        return functional.batch_norm(x, norm.running_mean, norm.running_var, training=True)


class KeepsState(nn.Module):
    """Adds what it saw in the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        mixed = x + 0.1 * self.last
        self.last = mixed.mean()
        return mixed


class NeedsMask(nets.FunctionalNet):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x * mask)


CASES: Mapping[str, Callable[[], nn.Module]] = {
    "int8, dynamic (torch.ao)": dynamic_int8,
    "int8, static (torch.ao)": static_int8,
    "int8 weights, dequantised in forward()": lambda: Vector(Int8Linear(activations=False)),
    "int8 weights and activations": lambda: Vector(Int8Linear(activations=True)),
    "fake quantisation": lambda: Layers(FakeQuantised()),
    "float8 weights": lambda: Vector(Float8Linear()),
    "batch norm without running statistics": lambda: Layers(
        nn.BatchNorm2d(8, track_running_stats=False)
    ),
    "batch norm with training=True": lambda: Layers(ForwardMode()),
    "complex weights": lambda: Vector(ComplexLinear()),
    "Fourier transform": lambda: Layers(Fourier()),
    "complex activations": lambda: Layers(ComplexActivations()),
    "if x.sum() > 0": lambda: Layers(ByValue()),
    "assert x.min() >= 0": lambda: Layers(ByAssertion()),
    "x * x.max().item()": lambda: Layers(ByItem()),
    "x.tolist()": lambda: Layers(ByList()),
    "x.numpy()": lambda: Layers(ByNumpy()),
    "range(int(x.max()))": lambda: Layers(ByLoop()),
    "x[x > 0]": lambda: Layers(ByMask()),
    "torch.nonzero": lambda: Layers(ByNonzero()),
    "torch.cond": lambda: Layers(ByCond()),
    "while_loop": lambda: Layers(ByWhile()),
    "meta device": lambda: nets.FunctionalNet().to("meta"),
    "partly on the meta device": partly_on_meta,
    "an attribute on the meta device": lambda: Layers(PlainTensor("meta")),
    "sparse weights": lambda: Vector(SparseLinear()),
    "sparse activations": lambda: Vector(SparseActivations()),
    "torch.randn_like": lambda: Layers(AddsNoise()),
    "torch.rand": lambda: Layers(AddsNoiseOfItsOwn()),
    "torch.bernoulli": lambda: Layers(Samples()),
    "dropout in evaluation mode": lambda: Layers(DropsAlways()),
    "autograd.Function of supported operations": lambda: Layers(Applies(DoubleByHand)),
    "autograd.Function that rounds": lambda: Layers(Applies(RoundStraightThrough)),
    "custom operation": lambda: Layers(CustomOperation(twice)),
    "custom operation with register_fake": lambda: Layers(CustomOperation(thrice)),
    "list of detections": Detector,
    "labels instead of scores": lambda: Vector(Labels()),
    "output made of Python numbers": lambda: Vector(Detached()),
    "state that is kept between calls": lambda: Layers(KeepsState()),
    "a second input": NeedsMask,
    "lazy module": lambda: Vector(nn.LazyLinear(5)),
    "half precision without a kernel": lambda: Vector(HalfKernel()).half(),
    "LSTM": half_lstm,
}
"""A function that makes each model, by what is particular about it."""


def make(case: str) -> tuple[nn.Module, Tensor]:
    """Return a case's model in evaluation mode, and inputs in its precision."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is deprecated, lazy modules are new
        model = CASES[case]().eval()
    is_half = any(parameter.dtype == torch.half for parameter in model.parameters())
    return model, torch.randn(IMAGES, dtype=torch.half if is_half else torch.float32)
