"""Maps in training: of the weights as they are, within a budget, and without a trace."""

import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import InputError
from dmbp.integrations import MapLogger, log_maps, movement
from dmbp.integrations.cost import Cost
from dmbp.integrations.map_logger import side_by_side
from dmbp.integrations.sinks import Picture, Pictures, Scalars
from tests.integrations.networks import CLASSES, images, network, train

FAST: Mapping[str, Any] = {"method": "dmbp", "iterations": 2, "mixtures": 2}
"""DMBP as it is by default, with fewer passes."""


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.numbers: dict[int, dict[str, float]] = {}
        self.shown: dict[int, dict[str, Picture]] = {}
        self.texts: dict[str, str] = {}

    def log(self, scalars: Scalars, pictures: Pictures, step: int) -> None:
        self.numbers[step] = dict(scalars)
        self.shown[step] = dict(pictures)

    def write_text(self, tag: str, text: str) -> None:
        self.texts[tag] = text


def unlimited(**others: Any) -> MapLogger:
    settings: dict[str, Any] = {"method": "gradient", "every": 1, "most_seconds_share": None}
    return MapLogger(images(), CLASSES, **{**settings, **others})


def test_what_is_logged() -> None:
    kept, model = Kept(), network()
    maps = unlimited(to=kept, every=2, names=["red", "green"])
    found = []
    train(model, 5, after=lambda step: found.append(maps.step(model, step)))
    logged = [item for item in found if item is not None]
    assert [item.step for item in logged] == [0, 2, 4]
    assert list(kept.numbers) == list(kept.shown) == [0, 2, 4]
    groups = ["moved", "moved_since_first", "score"]
    tags = {f"dmbp/{group}/{name}" for group in groups for name in ("red", "green")}
    assert set(kept.numbers[2]) == tags | {"dmbp/share", "dmbp/skipped"}
    assert not any("moved" in tag for tag in kept.numbers[0])
    assert kept.numbers[4]["dmbp/moved/green"] == movement(logged[1].maps, logged[2].maps)[1] > 0
    assert kept.numbers[4]["dmbp/moved_since_first/red"] == pytest.approx(
        1 - dmbp.metrics.rank_correlation(logged[0].maps[:1, None], logged[2].maps[:1, None]).item()
    )
    model.eval()
    assert maps.finish(model, 5) == kept.texts["dmbp/summary"]
    with torch.no_grad():
        expected = model(images())[[0, 1], CLASSES]
    last = torch.tensor([kept.numbers[5][f"dmbp/score/{k}"] for k in ("red", "green")])
    torch.testing.assert_close(last, expected)
    assert maps.summary.startswith("maps of 2 images were logged 4 times, at steps 0 to 5, in ")


def test_the_picture_is_the_photo_beside_its_map() -> None:
    kept, model = Kept(), network()
    photos = [numpy.full((16, 16, 3), 0.5), numpy.zeros((16, 16, 3))]
    photos[0][0, 0] = 1.0
    unlimited(to=kept, photos=photos, names=["a", "b"]).step(model, 0)
    picture = kept.shown[0]["dmbp/maps/a"]
    side = 16 * 14
    assert picture.shape == (side, 2 * side + 14, 3)
    assert (picture[:14, :14] == 255).all()
    assert (picture[14:side, :side] == 128).all()
    assert not (picture[:, -side:] == picture[:, -side:, :1]).all()  # the map has colours
    red = side_by_side(photos[1], numpy.pad(numpy.ones((4, 4)), 6))[side // 2, -side // 2]
    assert int(red[0]) > int(red[2]) + 80


Change = Callable[[nn.Sequential], object]


def _train_once(model: nn.Sequential, **options: Any) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    train(model, 1, optimiser=torch.optim.SGD(trained, lr=1e-4, **options))


def _train_fused(model: nn.Sequential) -> None:
    """PyTorch does not count what a fused optimiser writes; statistics stay as they are."""
    model.eval()
    _train_once(model, fused=True)


def _write_data(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1 + 1e-5)


def _replace_parameter(model: nn.Sequential) -> None:
    model[3].weight = nn.Parameter(model[3].weight.detach() * (1 + 1e-5))


def _move_statistics(model: nn.Sequential) -> None:
    model[1].running_mean.data.add_(1e-4)


def _replace_layer(model: nn.Sequential) -> None:
    model[2] = nn.LeakyReLU(1e-5)


CHANGES: Mapping[str, Change] = {
    "optimiser": _train_once,
    "fused optimiser": _train_fused,
    "data": _write_data,
    "another parameter": _replace_parameter,
    "statistics": _move_statistics,
    "another layer": _replace_layer,
}


@pytest.fixture(scope="module")
def logger_in_use() -> tuple[MapLogger, nn.Sequential]:
    maps, model = unlimited(**FAST), network()
    for step in range(2):
        maps.step(model, step)
    return maps, model


@pytest.mark.parametrize("change", CHANGES)
def test_weights_are_never_stale(
    change: str, logger_in_use: tuple[MapLogger, nn.Sequential]
) -> None:
    """Changes far smaller than what counts as rounding when outputs are compared."""
    maps, model = logger_in_use
    step = len(maps.logged_steps)
    CHANGES[change](model)
    logged = maps.step(model, step)
    assert logged is not None
    fresh = log_maps(model, images(), CLASSES, to=None, **FAST)
    torch.testing.assert_close(logged.maps, fresh.maps, rtol=0, atol=0)
    assert logged.scores == fresh.scores


def test_the_graph_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMBP_CACHE", "off")
    exports = []
    export = torch.export.export
    monkeypatch.setattr(
        torch.export, "export", lambda *a, **k: exports.append(None) or export(*a, **k)
    )
    maps, model = unlimited(**FAST), network()
    train(model, 1, after=lambda step: maps.step(model, step))
    first = len(exports)
    assert first > 0
    maps.step(network(), 2)
    assert len(exports) == 2 * first  # another model


class Drawing(nn.Module):
    """Draws random numbers of every kind, also in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (1 + 1e-3 * (random.random() + numpy.random.rand() + torch.rand(())))


@pytest.mark.parametrize("method", [FAST, {"method": "gradient"}], ids=["dmbp", "gradient"])
def test_training_is_the_same_with_maps(method: Mapping[str, Any]) -> None:
    """Bit by bit: weights, statistics, random numbers, and the gradients that are accumulated."""

    def trained(maps: MapLogger | None) -> tuple[nn.Sequential, list[object]]:
        model = network()
        if method["method"] == "gradient":  # such a model has no linear network
            model.insert(0, Drawing())
        random.seed(0)
        numpy.random.seed(0)
        train(model, 4, after=lambda k: None if maps is None else maps.step(model, k))
        return model, [random.random(), float(numpy.random.rand()), float(torch.rand(()))]

    maps = unlimited(**{**method, "every": 2})
    (without, numbers), (model, others) = trained(None), trained(maps)
    assert maps.logged_steps == [0, 2, 4]
    assert numbers == others
    torch.testing.assert_close(model.state_dict(), without.state_dict(), rtol=0, atol=0)
    assert [m.training for m in model.modules()] == [m.training for m in without.modules()]
    for ours, theirs in zip(model.parameters(), without.parameters(), strict=True):
        assert ours.requires_grad == theirs.requires_grad
        assert (ours.grad is None) == (theirs.grad is None)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)


def test_autocast_and_grad_mode_around_it_change_nothing() -> None:
    model = network()
    plain = log_maps(model, images(), CLASSES, to=None, **FAST)
    for around in (torch.autocast("cpu", torch.bfloat16), torch.no_grad(), torch.inference_mode()):
        with around:
            logged = unlimited(**FAST).step(model, 0)
            assert logged is not None
            assert torch.equal(logged.maps, plain.maps), around
    assert all(p.grad is None for p in model.parameters())


def test_models_in_half_precision_and_on_another_device_get_images_like_them() -> None:
    logged = unlimited().step(network().bfloat16(), 0)
    assert logged is not None
    assert logged.maps.dtype == torch.float32


def test_wrappers_are_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of DistributedDataParallel, and what `accelerate` and `compile()` put into a model."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = network()
        plain = unlimited().step(model, 0)
        logged = unlimited().step(nn.parallel.DistributedDataParallel(model), 0)
    finally:
        torch.distributed.destroy_process_group()
    assert plain is not None
    assert logged is not None
    assert torch.equal(plain.maps, logged.maps)

    def forbidden(*_: object) -> Tensor:
        raise AssertionError("this runs in training only")

    model._original_forward = model.forward
    model.forward = model._compiled_call_impl = forbidden
    patched = unlimited().step(model, 0)
    assert patched is not None
    assert torch.equal(plain.maps, patched.maps)
    assert model.forward is model._compiled_call_impl is forbidden


def test_only_the_first_process_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for rank, logs in ((1, False), (0, True)):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        kept = Kept()
        maps, model = unlimited(to=kept), network()
        assert (maps.step(model, 0) is not None) == logs
        assert bool(maps.finish(model, 1)) == bool(kept.numbers) == bool(kept.texts) == logs


class Spectral(nn.Module):
    """An operation that no linear network has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.fft.rfft2(x).abs().mean((1, 2, 3))[:, None])


def _not_finite() -> nn.Module:
    model = network()
    with torch.no_grad():
        model[3].weight.fill_(torch.nan)
    return model


def _sharded() -> nn.Module:
    model = network()
    model[0].weight.ds_id = 0
    return model


FAILURES: Mapping[str, tuple[Callable[[], nn.Module], str]] = {
    "weights are NaN": (_not_finite, "not finite|NaN"),
    "cannot be captured": (Spectral, "aten.*fft.* cannot be frozen"),
    "sharded": (_sharded, "sharded over processes"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_one_warning_and_no_error(failure: str) -> None:
    make, said = FAILURES[failure]
    model, kept = make(), Kept()
    maps = unlimited(to=kept, **FAST)
    with pytest.warns(UserWarning, match=f"step 0, and training goes on: .*({said})") as caught:
        assert maps.step(model, 0) is None
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "\n" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert maps.step(model, 1) is None  # a second one is told at the end only
        assert "2 attempts failed: step 1: " in maps.finish(model, 1)
    assert kept.numbers == {}
    assert model.training


def test_a_sink_that_fails_does_not_stop_the_training() -> None:
    class Full(Kept):
        def log(self, scalars: Scalars, pictures: Pictures, step: int) -> None:
            raise OSError("no space left on device")

    maps = unlimited(to=Full())
    with pytest.warns(UserWarning, match="training goes on: no space left on device"):
        maps.step(network(), 0)


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def costing(clock: Clock, seconds: list[float], *, share: float | None) -> MapLogger:
    """A logger whose maps take `seconds`, the first of them to capture the graph."""
    maps = unlimited(every=10, most_seconds_share=share)
    maps.cost = Cost(share, clock=clock)
    explained = maps._explained
    made, waiting = explained.maps, iter(seconds)

    def wait(_: nn.Module) -> None:
        clock.now += next(waiting)

    def slow(model: nn.Module) -> tuple[Tensor, Tensor]:
        wait(model)
        return made(model)

    explained.prepare, explained.maps = wait, slow
    return maps


def test_maps_stay_within_their_share_of_the_training() -> None:
    """A step takes a second, maps two, and the capture three: 5 + 2 + 2 s are 9 % of 100 s."""
    clock, model = Clock(), network()
    maps = costing(clock, [3.0] + [2.0] * 99, share=0.09)
    shares = []
    for step in range(1001):
        if maps.step(model, step) is not None and step:
            shares.append(maps.cost.share)
        clock.now += 1.0
    said = maps.finish(model, 1001)
    assert maps.logged_steps[:3] == [0, 100, 130]
    assert maps.logged_steps[-1] == 1001  # time was kept for the last ones
    assert max(shares) <= 0.09
    assert 0.085 < maps.cost.share <= 0.09
    assert sorted(maps.logged_steps + maps.skipped_steps) == [*range(0, 1001, 10), 1001]
    assert "in 89.0 s, which is 8.9% of the training's 1001.0 s (at most 9.0% were asked" in said
    assert f"; {len(maps.skipped_steps)} due steps were skipped to save time (10 to 1000)" in said


def test_a_training_too_short_for_its_first_maps_says_so() -> None:
    clock, model = Clock(), network()
    maps = costing(clock, [3.0] + [2.0] * 9, share=0.05)
    maps.step(model, 0)
    clock.now += 50.0
    said = maps.finish(model, 5)
    assert maps.logged_steps == [0]
    assert "in 5.0 s, which is 10.0% of the training's 50.0 s" in said
    assert "(at most 5.0% were asked for; the first maps are always made)" in said
    assert "1 due step were skipped" not in said
    assert "1 due step was skipped to save time (5), most_seconds_share=None makes all" in said


def test_maps_without_a_destination_are_said_to_be_written_nowhere() -> None:
    model, nowhere = network(), "; they were written nowhere, because to= was not given"
    for to in (None, Kept()):
        maps = MapLogger(images(), [0, 1], to=to, method="gradient")
        maps.step(model, 0)
        assert maps.finish(model, 1).endswith(nowhere) == (to is None)


def test_attempts_that_fail_count_as_well() -> None:
    clock, model = Clock(), network()
    maps = costing(clock, [], share=0.05)

    def refuse(_: nn.Module) -> None:
        clock.now += 3.0
        raise RuntimeError("no graph")

    maps._explained.prepare = refuse
    with pytest.warns(UserWarning, match="training goes on"):
        maps.step(model, 0)
    for step in range(1, 1000):  # where another warning would be an error
        clock.now += 1.0
        maps.step(model, step)
    assert 5 < len(maps.failures) < 20
    assert maps.cost.share <= 0.05


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"images": torch.zeros(3, 8, 8)}, r"images \(images, channels, height, width\), not of"),
        ({"images": None}, "not of NoneType"),
        ({"targets": None}, "name one target for each image"),
        ({"targets": [0, 1, 1]}, "3 targets were given for 2 images"),
        ({"every": 0}, "every must be a whole number of steps, 1 or more, not 0"),
        ({"every": 2.5}, "every must be a whole number"),
        ({"most_seconds_share": 5}, "between 0 and 1, or None, not 5"),
        ({"method": "gradcm"}, "did you mean 'gradcam'"),
        ({"iteration": 3}, "dmbp takes no setting 'iteration'; did you mean 'iterations'"),
        ({"names": ["a", "a"]}, "2 images need as many different names"),
        ({"photos": [torch.zeros(3, 16, 16)]}, "1 photos were given for 2 images"),
        ({"to": "runs"}, "maps cannot be logged to 'runs': pass a SummaryWriter"),
    ],
)
def test_mistakes_are_found_before_the_training(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        MapLogger(**{"images": images(), "targets": CLASSES, **arguments})


def test_movement() -> None:
    one = torch.arange(16.0).view(1, 4, 4)
    zero = torch.zeros(1, 4, 4)
    assert movement(one, 3 * one + 1) == (0.0,)
    assert movement(one, -one) == (2.0,)
    assert movement(zero, one) == (1.0,)
    assert movement(zero, zero) == (0.0,)
    mixed = movement(torch.cat([one, one]), torch.cat([one, torch.rand(1, 4, 4)]))
    assert mixed[0] == 0 < mixed[1]
