"""How often each method runs the network: `python -m benchmarks.pass_counts`.

Counts the images that pass the strided convolutions of the built-in model, forwards and backwards,
while a method explains one photograph, and divides by the number of these convolutions. (The fast
engine runs the backward pass of other convolutions as a forward pass with turned kernels, and the
first convolution only once.) The method has explained another image before, so capturing the
network is not counted. A method that stops at a late layer, such as GradCAM, has no whole backward
pass.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import dmbp
from dmbp.attribution import Method
from dmbp.data import sample_photos
from dmbp.errors import DMBPError
from dmbp.models import load_model


class PassCounter(TorchDispatchMode):
    """Counts images in every call of a convolution with the weights' shape of a strided one."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
        shapes = [m.weight.shape for m in convolutions]
        self.weights = [
            m.weight.shape
            for m in convolutions
            if m is not convolutions[0]
            if m.stride[0] > 1 and m.kernel_size[0] > 1 and shapes.count(m.weight.shape) == 1
        ]
        self.forward = self.backward = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        tensors = [value for value in args if isinstance(value, Tensor)]
        if "convolution" in name and any(value.shape in self.weights for value in tensors):
            if "backward" in name:
                self.backward += len(tensors[0])
            else:
                self.forward += len(tensors[0])
        return function(*args, **(kwargs or {}))

    @property
    def passes(self) -> tuple[int, int]:
        """Images that passed the whole network forwards and backwards."""
        return round(self.forward / len(self.weights)), round(self.backward / len(self.weights))


def count(method: Method, network: nn.Module, images: Tensor, target: int) -> tuple[int, int]:
    """Return on how many images a method runs the network forwards and backwards."""
    method.attribute(images + 0.01, target=target)
    with PassCounter(network) as counter:
        method.attribute(images, target=target)
    return counter.passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", default=",".join(dmbp.methods()), help="names, with commas")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = load_model("voc160")
    photo, _ = sample_photos()["collage"]
    images = model.preprocessing.tensor(model.preprocessing.view(photo))
    print("| method | forward | backward |\n| --- | --- | --- |")
    for name in options.methods.split(","):
        try:
            method = dmbp.methods()[name](model.module)
            passes = count(method, model.module, images, model.classes.index("cat"))
            print(f"| {name} | {passes[0]} | {passes[1]} |", flush=True)
        except DMBPError as refusal:
            print(f"| {name} | refused: {refusal} | |", flush=True)


if __name__ == "__main__":
    main()
