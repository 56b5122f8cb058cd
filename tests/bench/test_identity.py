"""What makes two models, or two kinds of preprocessing, different cells."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from dmbp.bench.identity import TaskModel, load_task_model, weights_digest
from dmbp.bench.plan import read_plan
from dmbp.bench.run.driver import RunOptions, run_plan
from dmbp.bench.store import Store
from dmbp.bench.units import SkippedTasks, _seen, missing_units
from dmbp.errors import InputError, TargetError
from dmbp.models import Classifier, Preprocessing, load_model
from dmbp.models.digest import DIGESTED_NAMES
from tests.bench.tiny import Tiny, make_plan, tiny

MODULES_WITH_NETWORKS = ("exported_program", "onnx.graph", "voc160")


def digest(module: nn.Module) -> str:
    return weights_digest(Classifier("a model", module))


class Leaky(Tiny):
    """The same weights, another activation."""

    def __init__(self) -> None:
        super().__init__()
        self[1] = nn.LeakyReLU(0.5)


class Halved(Tiny):
    """The same parts, another computation."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) / 2


def test_models_with_the_same_weights_are_distinguished() -> None:
    assert digest(Tiny()) == digest(Tiny())
    assert len({digest(module) for module in (Tiny(), Leaky(), Halved())}) == 3
    slope = Leaky()
    slope[1] = nn.LeakyReLU(0.4)
    assert digest(slope) != digest(Leaky())
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    other = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    other.load_state_dict(traced.state_dict())
    assert digest(traced) != digest(other)


class Scaled(Tiny):
    """The same parts and source, other numbers: a setting, a buffer not saved, a tensor."""

    def __init__(self, size: float = 1.0, shift: float = 0.0, power: float = 1.0) -> None:
        super().__init__()
        self._size = size
        self.register_buffer("shift", torch.tensor(shift), persistent=False)
        self.power = torch.tensor(power)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs * self._size + self.shift) ** self.power


def test_numbers_that_are_not_in_the_state_dict_count() -> None:
    assert digest(Scaled()) == digest(Scaled())
    others = (Scaled(), Scaled(size=2.0), Scaled(shift=1.0), Scaled(power=2.0))
    assert len({digest(module) for module in others}) == 4


def test_how_a_module_is_printed_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes with torch's versions; two machines would not find each other's results."""
    before = digest(Tiny())
    monkeypatch.setattr(nn.Conv2d, "extra_repr", lambda self: "another")
    assert digest(Tiny()) == before


def test_the_model_in_the_box_is_known_to_earlier_versions() -> None:
    """Its digest is part of every key: it may change only with the network or its weights."""
    assert digest(load_model("voc160").module) == "c3a425d2a3c97a2d"


def test_our_own_modules_may_be_renamed() -> None:
    """Every module class that a classifier may be made of is digested under a name that stays."""
    for name in DIGESTED_NAMES:
        module, _, kind = name.rpartition(".")
        assert issubclass(getattr(import_module(module), kind), nn.Module)
    parts = [import_module(f"dmbp.models.{name}") for name in MODULES_WITH_NETWORKS]
    found = {
        f"{kind.__module__}.{kind.__qualname__}"
        for part in parts
        for kind in vars(part).values()
        if isinstance(kind, type) and issubclass(kind, nn.Module)
    }
    assert {name for name in found if name.startswith("dmbp.")} <= DIGESTED_NAMES.keys()


def test_the_preprocessing_is_in_the_key(tmp_path: Path) -> None:
    plan = read_plan(make_plan(tmp_path, photos=2))
    store = Store(tmp_path / "s.sqlite")

    def keys(classifier: Classifier) -> set[str]:
        units = missing_units(
            plan,
            store,
            identify=lambda _: TaskModel(classifier).identity,
            skipped=SkippedTasks(plan),
        )
        return {
            unit.cell(target, part.variant).key
            for unit in units
            for part in unit.parts
            for target in part.targets
        }

    own = tiny()
    seen = own.preprocessing
    for changed in (
        replace(seen, interpolation=Image.Resampling.NEAREST),
        replace(seen, crop=17),
        replace(seen, crop=(16, 17)),
        replace(seen, scale=255.0),
        replace(seen, channels="bgr"),
        replace(seen, std=(1.0, 1.0, 1.0)),
    ):
        assert keys(own).isdisjoint(keys(replace(own, preprocessing=changed)))


def test_results_from_before_there_were_ranges_and_orders_are_found() -> None:
    """The key of a cell has the settings that it always had, unless there are others."""
    seen = Preprocessing(176, 160)
    assert _seen(seen) == [176, 160, "crop", seen.mean, seen.std, seen.interpolation]
    assert _seen(replace(seen, scale=255.0))[6:] == [255.0, "rgb"]
    assert _seen(replace(seen, multiple=16))[6:] == [1.0, "rgb", None, 16]


def test_a_task_says_how_photos_are_prepared(tmp_path: Path) -> None:
    path = make_plan(tmp_path, photos=2)
    keys = 'size = [12, 20]\nfit = "squeeze"\nmean = 104\nscale = 255\nchannels = "bgr"\n'
    text = path.read_text().replace("tests.bench.tiny:tiny", "tests.cli.networks:good")
    path.write_text(text + keys)
    plan = read_plan(path)
    seen = load_task_model(plan.tasks[0], "cpu").identity.preprocessing
    assert (seen.size, seen.fit, seen.channels) == ((12, 20), "squeeze", "bgr")
    assert (seen.mean, seen.std, seen.scale) == ((104,) * 3, (1,) * 3, 255)
    assert run_plan(plan, tmp_path / "s.sqlite", RunOptions()).failed == 0
    for wrong, sentence in [
        ("size = 0", "'size' of task .* must be a number of pixels"),
        ('channels = "rbg"', '"rgb" or "bgr"'),
        ('layout = "nhcw"', "no layout 'nhcw'; did you mean"),
    ]:
        path.write_text(text + wrong)
        with pytest.raises(InputError, match=sentence):
            read_plan(path)


def test_the_order_of_metrics_does_not_matter(tmp_path: Path) -> None:
    path = make_plan(tmp_path, photos=2)
    store = tmp_path / "s.sqlite"
    path.write_text(path.read_text().replace('["IM"]', '["IM", "deletion"]'))
    run_plan(read_plan(path), store, RunOptions())
    path.write_text(path.read_text().replace('["IM", "deletion"]', '["deletion", "IM"]'))
    assert run_plan(read_plan(path), store, RunOptions()).done == 0


def test_a_list_of_classes_of_the_wrong_length(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, photos=2)
    plan.write_text(plan.read_text() + 'classes = "names.txt"\n')
    (tmp_path / "names.txt").write_text("cat\ndog\nhamster\n")
    with pytest.raises(TargetError, match="3 class names were given for a model with 2 outputs"):
        run_plan(read_plan(plan), tmp_path / "s.sqlite", RunOptions())
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    assert run_plan(read_plan(plan), tmp_path / "s.sqlite", RunOptions()).done == 4


@pytest.mark.parametrize(
    ("model", "activation"), [("tiny", "softmax"), ("likely", "sigmoid"), ("grey", "softmax")]
)
@pytest.mark.filterwarnings("ignore:the model ends in a sigmoid")
def test_a_last_activation_is_the_models_own(tmp_path: Path, model: str, activation: str) -> None:
    plan = read_plan(make_plan(tmp_path, photos=2, model=model))
    assert load_task_model(plan.tasks[0], "cpu").classifier.activation == activation
    assert run_plan(plan, tmp_path / "s.sqlite", RunOptions()).done == 4
