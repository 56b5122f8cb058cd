"""Networks whose images leave the first dimension: the fast engine learns the same masks."""

import pytest
import torch
from torch import Tensor, nn

from dmbp.attribution.dmbp import DMBP
from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.engine import AutogradEngine, CpuEngine, engine_for, plan_for
from dmbp.engine.plan.rewrites import PartOfLinear
from dmbp.engine.plan.streams import ROWS_FIRST, RowLayout
from dmbp.linear import Linearizer, LinearNetwork
from dmbp.models.torchvision_models import import_torchvision
from tests.tolerance import relative

AGREED = 1e-10
"""In double precision, after twenty iterations."""

SINGLE = 1e-3
"""In single precision, after three iterations of a deep network: RMSProp makes as much of gradients
that are rounding alone as of any others."""

LEARN = {"loss": OBJECTIVES["all"], "learning_rate": 0.05}


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
    """As many channels as rows, and for a while before them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 3, 3), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv(x).permute(1, 0, 2, 3)).permute(1, 0, 2, 3)
        return self.fc(y.mean((2, 3)))


class SequenceFirst(nn.Module):
    """Positions before rows, and the mean over positions at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Linear(3, 7), nn.Linear(7, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.first(x.flatten(2).permute(2, 0, 1))).mean(0))


class Unbound(nn.Module):
    """Rows come second, once the channels before them are taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        first, *_, last = self.conv(x).permute(1, 2, 0, 3).unbind(0)
        return self.fc(torch.relu(first - last).permute(1, 0, 2).mean(1))


class Tokens(nn.Module):
    """torchvision's attention: tokens before images, both folded into one dimension behind it."""

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
    """Tokens are the outer factor of the dimension that images are in, at a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(3, 6), nn.Linear(6, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).permute(2, 0, 1)
        y = torch.relu(self.first(tokens.reshape(-1, 3)))
        y = torch.tanh(self.second(y)).reshape(*tokens.shape[:2], 4)
        return self.fc(y.mean(0))


class HeadsInside(nn.Module):
    """Images and heads in one dimension at a matrix product of each, a mask behind it."""

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
    """Heads before images in one dimension."""

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
    """Windows, shifted, folded with images as in Swin; masks inside and outside of them."""

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
    """Colours folded with images under convolutions, ReLUs and a max-pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)
        self.third, self.fc = nn.Conv2d(4, 4, 3), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x.view(-1, 1, 12, 12)))
        y = nn.functional.max_pool2d(torch.relu(self.second(y)), 2)
        return self.fc(torch.relu(self.third(y)).mean((2, 3)).view(-1, 12))


class Vector(nn.Module):
    """A batch of one that is squeezed away: a mask on a vector, and a matrix behind it."""

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


def network(model: nn.Module, rows: int) -> LinearNetwork:
    images = torch.randn(rows, 3, 12, 12, dtype=torch.float64)
    return Linearizer(model.double().eval()).linearize(images, target=list(range(rows)))


def assert_agree(net: LinearNetwork, iterations: int, tolerance: float) -> None:
    plan = plan_for(net)
    logits = initial_logits(plan)
    reference = AutogradEngine(plan, logits, **LEARN)
    fast = engine_for(plan, logits, **LEARN)
    assert isinstance(fast, CpuEngine)
    for _ in range(iterations):
        expected, found = reference.step(), fast.step()
        assert relative(found.positive, expected.positive) <= tolerance
        assert relative(found.negative, expected.negative) <= tolerance
    for name, tensor in reference.logits.items():
        masks = torch.sigmoid(fast.logits[name]), torch.sigmoid(tensor)
        assert relative(*masks) <= tolerance
    ends = [engine.readout() for engine in (fast, reference)]
    assert relative(ends[0].positive_map, ends[1].positive_map) <= tolerance
    assert relative(ends[0].negative_map, ends[1].negative_map) <= tolerance


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("model", LAYOUTS)
def test_the_reference_engine_agrees(model: type[nn.Module], rows: int) -> None:
    torch.manual_seed(0)
    assert_agree(network(model(), rows), iterations=20, tolerance=AGREED)


@pytest.mark.parametrize("model", LAYOUTS)
def test_a_batch_is_its_images(model: type[nn.Module]) -> None:
    torch.manual_seed(0)
    images = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    explainer = DMBP(model().double().eval(), iterations=20)
    together = explainer.explain(images, target=[0, 1, 2])
    for k in range(3):
        alone = explainer.explain(images[k : k + 1], target=k)
        assert relative(alone.attribution, together.attribution[k : k + 1]) <= AGREED


def test_a_batch_dimension_squeezed_away() -> None:
    torch.manual_seed(0)
    assert_agree(network(Vector(), 1), iterations=20, tolerance=AGREED)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ChannelsFirst, {RowLayout(1)}),
        (PerChannel, {RowLayout(0, 1, 3), ROWS_FIRST}),
        (TokensOutside, {RowLayout(0, 144, 1)}),
        (HeadsOutside, {RowLayout(0, 2, 1)}),
        (HeadsInside, {RowLayout(0, 1, 2), ROWS_FIRST}),
        (Windows, {RowLayout(0, 1, 9), ROWS_FIRST}),
        (Tokens, {ROWS_FIRST}),
    ],
)
def test_where_rows_are_at_masks(model: type[nn.Module], expected: set[RowLayout]) -> None:
    """The networks above are what they are called."""
    plan = plan_for(network(model(), 3))
    sites = {planned.layout for planned in plan.steps if planned.step.site is not None}
    assert sites == expected


@pytest.mark.parametrize(("model", "kept"), [(Tokens, 8), (HeadsInside, 8)])
def test_queries_and_keys_are_not_computed(model: type[nn.Module], kept: int) -> None:
    """Of three times as many outputs; layers that are read as a whole stay whole."""
    plan = plan_for(network(model(), 2))
    layers = [p.step for p in plan.steps if p.step.operation == "aten.linear.default"]
    found = [step for step in layers if isinstance(step.function, PartOfLinear)]
    assert [len(step.arguments[1]) for step in found] == [kept]
    assert [step.function for step in found] == [PartOfLinear(2 * kept, 0)]


@pytest.mark.parametrize(("name", "settings"), [("vit_b_16", {"image_size": 64}), ("swin_t", {})])
def test_torchvisions_transformers(name: str, settings: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = getattr(import_torchvision().models, name)(weights=None, **settings).eval()
    for parameter in model.parameters():  # torchvision's last layer starts at zero
        nn.init.normal_(parameter, std=0.05)
    net = Linearizer(model).linearize(torch.randn(2, 3, 64, 64), target=[0, 1])
    assert_agree(net, iterations=3, tolerance=SINGLE)
