"""Networks that the tests of several engines share."""

import torch
from torch import Tensor, nn

from tests import nets

FAMILIES = [
    "resnet18",
    "vgg11",
    "squeezenet1_1",
    "densenet121",
    "googlenet",
    "mobilenet_v2",
    "shufflenet_v2_x1_0",
    "regnet_x_400mf",
]
"""Torchvision's families of networks, one of each."""


class Mixed(nn.Module):
    """Steps without a fast path: rows that move, a split, strides, groups, dilation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.dilated = nn.Conv2d(4, 4, 3, padding=2, dilation=2)
        self.wide = nn.Conv2d(8, 6, 1, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.fc = nn.Linear(6, 5)
        nets.randomise_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.norm(x + self.grouped(x)))
        first, second = x.split(4, 1)
        x = torch.cat([torch.relu(self.dilated(first)), second * 2], 1)
        x = x.permute(1, 0, 2, 3).flip(0).permute(1, 0, 2, 3)  # rows are not first on the way
        x = x + x
        x = nn.functional.relu6(self.wide(x))
        return self.fc(x.flatten(2).mean(2))


class Pools(nn.Module):
    """Max-pooling after ReLUs: overlapping, padded, adjacent, and ending before the border."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 20, 3, padding=1)
        self.third = nn.Conv2d(20, 6, 3, padding=2)
        self.last = nn.Conv2d(6, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.first(x)), 3, 2, 1)
        x = nn.functional.max_pool2d(torch.relu(self.second(x)), 3, 2)
        x = nn.functional.max_pool2d(torch.relu(self.third(x)), 2)
        return torch.relu(self.last(x)).mean((2, 3))


class Classes(nn.Module):
    """Classes are channels until the end, after a ReLU; max-pooling follows the last site."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 7, 3, stride=2)
        self.last = nn.Conv2d(7, 9, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.last(torch.relu(self.first(x))))
        return nn.functional.max_pool2d(x, 2).mean((2, 3))


class Dense(nn.Module):
    """Batch norms before ReLUs that cannot be folded, and values that are read many times."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2)
        self.norms = nn.ModuleList([nn.BatchNorm2d(width) for width in (6, 10, 14)])
        self.convs = nn.ModuleList([nn.Conv2d(width, 4, 3, padding=1) for width in (6, 10)])
        self.fc = nn.Linear(14, 5)
        nets.randomise_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for norm, conv in zip(self.norms, self.convs, strict=False):
            x = torch.cat([x, conv(torch.relu(norm(x)))], 1)
        return self.fc(torch.relu(self.norms[2](x)).mean((2, 3)))


class Adding(nn.Module):
    """Steps without a fast path that add constants, on activations of very different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.middle = nn.Conv1d(6, 6, 1)
        self.last = nn.Linear(6, 5)
        nn.init.uniform_(self.last.weight, -0.1, 0.4)  # or its ReLU may be closed for all classes
        nets.randomise_statistics(self)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(300 * x))
        x = torch.relu((x + 70.0) / 3 - 2 * x)
        x = self.norm(torch.nn.functional.pad(x, (1, 1), value=20.0))
        x = torch.relu(self.middle(x.flatten(2)))
        return torch.relu(self.last(x.mean(2))) * 0.01 + 3.0


class Twice(nn.Module):
    """An image and its mirror image in one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.relu(self.conv(torch.cat([x, x.flip(3)], 0))).mean((2, 3))
        one, other = both.split(len(x), 0)
        return self.fc(one + other)


class Overwritten(nn.Module):
    """An activation that is overwritten before anything reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
        self.last, self.fc = nn.Conv2d(4, 4, 1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        y.copy_(torch.relu(self.second(x)))
        return self.fc(torch.relu(self.last(y)).mean((2, 3)))


class Block(nn.Module):
    """A residual block wide enough for split convolutions, followed by one with a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.first = nn.Conv2d(64, 64, 3, padding=1)
        self.second = nn.Conv2d(64, 64, 3, padding=1)
        self.third = nn.Conv2d(64, 128, 3, stride=2, padding=1)
        self.last = nn.Linear(128, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.second(torch.relu(self.first(x))) + x)
        return self.last(torch.relu(self.third(x)).mean((2, 3)))


class TwoBranches(nn.Module):
    """A site that two convolutions read, and one that adds them; both could be split."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.left = nn.Conv2d(64, 64, 3, padding=1)
        self.right = nn.Conv2d(64, 64, 5, padding=2)
        self.last = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        return self.last(torch.relu(self.left(x) + self.right(x)).mean((2, 3)))


class PerChannel(nn.Module):
    """The same network on every colour: rows and colours share dimension 0 for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 6, 3), nn.Conv2d(18, 8, 3)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x.reshape(-1, 1, *x.shape[2:])))
        y = y.reshape(x.shape[0], 18, *y.shape[2:])
        return self.fc(torch.relu(self.second(y)).mean((2, 3)))


class ChannelsFirst(nn.Module):
    """Channels move before the rows for a while; there are as many of each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 3, 3), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv(x).permute(1, 0, 2, 3)).permute(1, 0, 2, 3)
        return self.fc(y.mean((2, 3)))


class SequenceFirst(nn.Module):
    """Positions come before rows until the mean over positions at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Linear(3, 7), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.first(x.flatten(2).permute(2, 0, 1))).mean(0))


class Unbound(nn.Module):
    """Rows come second after the channels before them are unbound."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        first, *_, last = self.conv(x).permute(1, 2, 0, 3).unbind(0)
        return self.fc(torch.relu(first - last).permute(1, 0, 2).mean(1))


class Tokens(nn.Module):
    """PyTorch's attention: tokens come before rows inside it, and share a dimension after it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Linear(3, 8), nn.Linear(8, 5)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.flatten(2).transpose(1, 2))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.fc((x + self.mlp(x))[:, 0])


class TokensOutside(nn.Module):
    """At a site, tokens are the outer factor of the rows' dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(3, 6), nn.Linear(6, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).permute(2, 0, 1)
        y = torch.relu(self.first(tokens.reshape(-1, 3)))
        y = torch.tanh(self.second(y)).reshape(*tokens.shape[:2], 4)
        return self.fc(y.mean(0))


class HeadsInside(nn.Module):
    """Rows and heads share a dimension in matrix products; a site follows."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.fc = nn.Linear(3, 24), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        batch, count = x.shape[0], 36
        tokens = self.qkv(nn.functional.avg_pool2d(x, 2).flatten(2).transpose(1, 2))
        q, k, v = (
            part.reshape(batch, count, 2, 4).transpose(1, 2).reshape(batch * 2, count, 4)
            for part in tokens.chunk(3, 2)
        )
        mixed = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), 2), v)
        mixed = mixed.reshape(batch, 2, count, 4).transpose(1, 2).flatten(2)
        return self.fc(torch.relu(mixed).mean(1))


class HeadsOutside(nn.Module):
    """At a site, heads are the outer factor of the rows' dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(3, 8), nn.Linear(4, 4), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(nn.functional.avg_pool2d(x, 3).flatten(2).transpose(1, 2))
        heads = torch.cat(y.reshape(*y.shape[:2], 2, 4).permute(2, 0, 1, 3).unbind(0), 2)
        y = heads.reshape(-1, 16, 2, 4).permute(2, 0, 1, 3).reshape(-1, 16, 4)
        y = torch.relu(self.second(y)).reshape(2, -1, 16, 4)
        return self.fc(y.permute(1, 2, 0, 3).flatten(2).mean(1))


class Windows(nn.Module):
    """Shifted windows share the rows' dimension, as in Swin; sites inside and outside of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inside, self.fc = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 5)
        self.mix, self.norm = nn.Linear(16, 16), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.roll(self.embed(x.permute(0, 2, 3, 1)), (-2, -2), (1, 2))
        y = x.view(-1, 3, 4, 3, 4, 6).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, 6)
        y = torch.relu(self.inside(self.norm(y)))
        y = nn.functional.gelu(self.mix(y.transpose(1, 2)).transpose(1, 2))
        y = y.view(-1, 3, 3, 4, 4, 6).permute(0, 1, 3, 2, 4, 5).reshape(-1, 12, 12, 6)
        x = torch.roll(x + y, (2, 2), (1, 2))
        return self.fc(torch.relu(x).mean((1, 2)))


class PooledColours(nn.Module):
    """Colours share the rows' dimension in convolutions, ReLUs and a max-pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)
        self.third, self.fc = nn.Conv2d(4, 4, 3), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x.view(-1, 1, 12, 12)))
        y = nn.functional.max_pool2d(torch.relu(self.second(y)), 2)
        return self.fc(torch.relu(self.third(y)).mean((2, 3)).view(-1, 12))


class Vector(nn.Module):
    """A batch of one is squeezed away: a site on a vector, followed by a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(3, 6), nn.Linear(6, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.second(torch.relu(self.first(x.mean((2, 3)).squeeze(0)))))
        return self.fc(y).unsqueeze(0)


LAYOUTS = [
    PerChannel,
    ChannelsFirst,
    SequenceFirst,
    Unbound,
    Tokens,
    TokensOutside,
    HeadsInside,
    HeadsOutside,
    Windows,
    PooledColours,
]
"""Networks whose rows leave dimension 0, or share it with something else."""
