"""Small networks; tools based on hooks silently get most of them wrong."""

import torch
from torch import Tensor, nn
from torch.nn import functional

NEED_ATTENTION = ("attention_rollout", "attention_gradient")
"""The methods for networks with attention, which most of these do not have."""


class FunctionalNet(nn.Module):
    """ReLUs as a function, a method and a torch function, but not as modules."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 8, 3, padding=1)
        self.c = nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.a(x))
        x = self.b(x).relu()
        x = torch.relu(self.c(x))
        return self.fc(x.mean((2, 3)))


class ReusedNet(nn.Module):
    """One ReLU module called three times, as in torchvision's ResNet blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(3 if k == 0 else 8, 8, 3, padding=1) for k in range(3)]
        )
        self.relu = nn.ReLU()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = self.relu(conv(x))
        return self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class InPlaceNet(nn.Module):
    """In-place activations: one on a tensor that is read again, one on a view."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.a(x))
        y = self.b(x)
        functional.relu(y, inplace=True)
        y = y + x  # reads what the previous line wrote
        y[:, :4].clamp_(max=0.3)  # writes through a view
        y += 0.1
        return self.fc(y.flatten(2).mean(2))


class LeakyNet(nn.Module):
    """LeakyReLU and a PReLU for each channel: slopes other than zero and one."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.leaky = nn.LeakyReLU(0.2)
        self.b = nn.Conv2d(8, 8, 3, padding=1)
        self.prelu = nn.PReLU(8)
        self.fc = nn.Linear(8, 5)
        nn.init.uniform_(self.prelu.weight, -0.5, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.prelu(self.b(self.leaky(self.a(x))))
        return self.fc(x.mean((2, 3)))


class MLP(nn.Sequential):
    """Takes vectors instead of images, and starts with two linear layers."""

    def __init__(self, width: int = 24) -> None:  # with fewer units, all of them may be closed
        super().__init__(
            nn.Linear(7, width),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 4),
        )


class VGGLike(nn.Module):
    """Convolutions with bias, max-pooling and a hidden fully connected layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.classifier = nn.Sequential(nn.Linear(128, 10), nn.ReLU(), nn.Linear(10, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


class ResidualNet(nn.Module):
    """Two residual blocks with batch norm, whose statistics are not trivial."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv3, self.bn3 = nn.Conv2d(6, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.conv4, self.bn4 = nn.Conv2d(6, 8, 1, 2, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, 5)
        randomise_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        x = functional.relu(self.bn2(self.conv2(x)) + x)
        x = functional.relu(self.bn3(self.conv3(x)) + self.bn4(self.conv4(x)))
        return self.fc(x.mean((2, 3)))


class FireNet(nn.Module):
    """Two activated branches concatenated, overlapping max-pooling, a ReLU before the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2)
        self.squeeze = nn.Conv2d(8, 4, 1)
        self.one = nn.Conv2d(4, 6, 1)
        self.three = nn.Conv2d(4, 6, 3, padding=1)
        self.last = nn.Conv2d(12, 5, 1)
        nn.init.constant_(self.last.bias, 0.3)  # or a class may be zero everywhere

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.stem(x)), 3, 2, ceil_mode=True)
        x = functional.relu(self.squeeze(x))
        branches = [functional.relu(self.one(x)), functional.relu(self.three(x))]
        x = functional.relu(self.last(torch.cat(branches, 1)))
        return x.mean((2, 3))


class ReLUByComparison(nn.Module):
    """A ReLU written as a product with a comparison: exact at x, but without a site."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.fc((x * (x > 0)).mean((2, 3)))


class SmoothNet(nn.Module):
    """Smooth activations that are not multiplied, and a generalised mean at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.gelu(self.a(x)), 2)
        x = functional.softplus(self.b(x) + torch.tanh(x))
        return self.fc(x.pow(3.0).mean((2, 3)).pow(1 / 3))


class CompositeNet(nn.Module):
    """Activations that are written out: quick GELU, Softsign, a squared ReLU, a square."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3, padding=1)
        self.third, self.fc = nn.Conv2d(6, 6, 3), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x * torch.sigmoid(1.702 * x)
        x = x + functional.softsign(self.second(x))
        x = functional.relu(self.third(x * x)) ** 2
        return self.fc(x.mean((2, 3)))


class SqueezeExciteNet(nn.Module):
    """Depthwise convolutions, SiLU, a gate for each channel, a SiLU that is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.project = nn.Conv2d(8, 8, 1)
        self.act, self.gate = nn.SiLU(inplace=True), nn.Hardsigmoid()
        self.fc = nn.Linear(8, 5)
        randomise_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.stem(x)))
        y = functional.hardswish(self.depthwise(x))
        average = functional.adaptive_avg_pool2d(y, 1)
        y = self.gate(self.excite(torch.relu(self.squeeze(average)))) * y
        y = self.project(y) + x
        return self.fc((y * torch.sigmoid(y)).mean((2, 3)))


class TinyViT(nn.Module):
    """Patches, a class token, two blocks of attention and GELU with layer norm before each."""

    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(5)])
        self.mixes = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(2)])
        self.outs = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
        self.wide = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(2)])
        self.narrow = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(2)])
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        for k in range(2):
            x = x + self.outs[k](self._attend(self.mixes[k](self.norms[2 * k](x))))
            x = x + self.narrow[k](functional.gelu(self.wide[k](self.norms[2 * k + 1](x))))
        return self.head(self.norms[4](x)[:, 0])

    def _attend(self, mixed: Tensor) -> Tensor:
        parts = mixed.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(*parts.unbind(0))
        return found.transpose(1, 2).flatten(2)


class WrittenOutViT(TinyViT):
    """TinyViT with attention in steps."""

    def _attend(self, mixed: Tensor) -> Tensor:
        query, key, values = mixed.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        probabilities = self.weigh(query @ key.transpose(2, 3) / query.shape[-1] ** 0.5)
        return (probabilities @ values).transpose(1, 2).flatten(2)

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class TinyConvNeXt(nn.Module):
    """Alternating channel orders, layer norm, GELU, global response norm, a small scale."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.rand(width))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = functional.gelu(self.wide(y))
        size = y.norm(2, (1, 2), keepdim=True)
        y = y + 0.5 * y * (size / (size.mean(-1, keepdim=True) + 1e-6))
        x = x + (self.scale * self.narrow(y)).permute(0, 3, 1, 2)
        return self.head(self.last(x.mean((2, 3))))


class Spectral(nn.Module):
    """Uses an operation that has no rule."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft2(x).abs()


IMAGE_NETWORKS: list[type[nn.Module]] = [
    FunctionalNet,
    ReusedNet,
    InPlaceNet,
    LeakyNet,
    VGGLike,
    ResidualNet,
    FireNet,
    SqueezeExciteNet,
    TinyViT,
    TinyConvNeXt,
]
"""Networks that take images of any size and have sites."""

WITH_PRODUCTS = (SqueezeExciteNet, TinyViT, TinyConvNeXt)
"""Networks that multiply activations, so that there is no slope between two inputs."""


def randomise_statistics(model: nn.Module) -> None:
    """Set batch norm's means, variances, weights and biases to values that all matter."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
