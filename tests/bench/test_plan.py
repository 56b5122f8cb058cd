"""Plans: those that come with the package can be read, and wrong ones get one sentence."""

from pathlib import Path

import pytest

from dmbp.bench.paper import TABLES
from dmbp.bench.plan import read_plan
from dmbp.bench.run.driver import RunOptions, run_plan
from dmbp.bench.store import Store
from dmbp.data.dataset import read_dataset
from dmbp.errors import InputError
from dmbp.models import model_names
from tests.bench.conftest import PLAN
from tests.bench.tiny import make_plan
from tests.conftest import ROOT

PLANS = sorted((ROOT / "plans").glob("*.toml"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_plans_of_the_package_can_be_read(path: Path) -> None:
    """Methods, settings, metrics and kinds of datasets are checked as a plan is read."""
    plan = read_plan(path)
    table = TABLES[plan.paper]
    assert {variant.label for variant in plan.variants} >= set(table.methods)
    for task in plan.tasks:
        assert task.model.partition(":")[0] in [*model_names(), "benchmarks.planted.models"]
        assert not table.lines or all((task.name, m) in table.lines for m in task.metrics)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_whole_plans_have_every_line_of_the_papers(path: Path) -> None:
    plan = read_plan(path)
    lines = {(task.name, metric) for task in plan.tasks for metric in task.metrics}
    missing = {line for line in TABLES[plan.paper].lines if line not in lines and line[1]}
    assert missing == ({("INet/VGG", m) for _, m in missing} if "small" in path.stem else set())


@pytest.mark.parametrize("path", [p for p in PLANS if "small" in p.stem], ids=lambda p: p.stem)
def test_small_plans_find_their_photos(path: Path, shared: Path) -> None:
    for task in read_plan(path).tasks:
        samples = read_dataset(task.dataset, task.path).samples
        assert len(samples) >= 150
        assert all(sample.path.is_file() for sample in samples)
        assert task.weights is not None
        assert task.weights.exists()


def test_there_are_plans() -> None:
    assert len(PLANS) == 7


def with_settings(folder: Path, settings: str) -> Path:
    path = make_plan(folder, photos=1)
    methods = f'methods = [{{ name = "dmbp", settings = {{ iterations = 1, {settings} }} }}]'
    path.write_text("\n".join([methods, *path.read_text().splitlines()[2:]]))
    return path


def test_smooth_and_sites_are_settings(tmp_path: Path) -> None:
    chosen = 'smooth = "pieces:4:2", sites = ["1"]'
    plan = read_plan(with_settings(tmp_path, chosen))
    assert run_plan(plan, tmp_path / "results.sqlite", RunOptions()).done == 1
    (row,) = Store(tmp_path / "results.sqlite").rows()
    assert row.cell.settings == {"iterations": 1, "smooth": "pieces:4:2", "sites": ["1"]}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ('smooth = "secnt"', "settings of dmbp in .*plan.toml: .* did you mean 'secant'"),
        ('smooth = "pieces:none"', "written as pieces:16 or"),
        ("sites = 4", "dmbp.sites in .*plan.toml must be a string or a list, not 4"),
        ("sites = []", "sites is an empty list: leave it out to select all activations"),
        (
            'learning_rate = "high"',
            "dmbp.learning_rate in .*plan.toml must be a number, not 'high'",
        ),
    ],
)
def test_wrong_settings_get_one_sentence(tmp_path: Path, settings: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_plan(with_settings(tmp_path, settings))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("gradient", "gradiant"), "no method 'gradiant' in .*plan.toml; did you mean 'gradient'"),
        (
            ('"IM"', '"MI"'),
            "task 'VOC/RN50' in .*plan.toml: there is no metric 'MI'; there are 37, such as IM",
        ),
        (
            ("steps = 4", "steps = 0"),
            "'steps' of task .* in .*plan.toml must be a whole number from 1 to 10,000, not 0",
        ),
        (
            ("steps = 4", 'steps = "four"'),
            "'steps' of task 'VOC/RN50' in .* must be a whole number from 1 to 10,000, not 'four'",
        ),
        (("steps = 4", "colour = 4"), "task 'VOC/RN50' in .* takes no entry 'colour'"),
        (('name = "VOC/RN50"', ""), "task 1 in .* needs 'name'"),
        (("[[tasks]]", "[[task]]"), "the plan .* takes no entry 'task'; did you mean 'tasks'"),
        (("methods = [", "methods = "), "is not a plan"),
        (
            ("[[tasks]]", "[settings.gradcam]\nsize = 3\n[[tasks]]"),
            "gradcam in .* takes no setting 'size'",
        ),
        (
            ("[[tasks]]", "[settings]\ngradcam = 3\n[[tasks]]"),
            r"\[settings.gradcam\] in .* must be a table, not 3",
        ),
        (('"random"', '"gradcam"'), "two methods of the plan are called 'GC': give one a label"),
        (('"random"', "{ label = 'x' }"), "method 3 in .* needs 'name'"),
        (('"random"', "{ name = 'rise', size = 3 }"), "method 'rise' in .* takes no entry 'size'"),
        (
            ('"random"', "{ name = 'rise', label = 3 }"),
            "'label' of method 'rise' in .* must be a string, not 3",
        ),
        (
            ('"random"', "{ name = 'rise', settings = { maks = 3 } }"),
            "rise in .* takes no setting 'maks'; did you mean 'masks'",
        ),
        (
            ("[[tasks]]", "paper = 'tables'\n[[tasks]]"),
            "plan.toml: there is no table of the paper 'tables'",
        ),
        (('"IM"', '"IM", "IM"'), "task 'VOC/RN50' needs at least one metric, each once"),
        (
            ('"random"', "{ name = 'dmbp', settings = { iterations = -1 } }"),
            "settings of dmbp in .*: iterations must be",
        ),
        (
            ('"random"', "{ name = 'dmbp', settings = { iterations = 'x' } }"),
            "dmbp.iterations in .* must be a whole number, not 'x'",
        ),
    ],
)
def test_wrong_plans_get_one_sentence(plan: Path, change: tuple[str, str], said: str) -> None:
    plan.write_text(PLAN.replace(*change))
    with pytest.raises(InputError, match=said):
        read_plan(plan)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "is not a plan: its lists are nested too deeply"),
        ("a = " + "{a = " * 3000 + "1" + "}" * 3000, "is not a plan: its lists are nested too"),
        ("a = " + "9" * 5000, "is not a plan: .*4300 digits"),
        ("methods = [07:32:00]", "an item of 'methods' of the plan .* must be a table, not a time"),
        ("[[tasks]]\nname = 1979-05-27", "'name' of task 1 .* a date"),
        ("methods = [{name = 'rise', settings = {masks = 07:32:00}}]", "rise.masks .* not a time"),
        ("#" + " " * 2**20, "it has 1,048,577 bytes, more than the 1,048,576 that a plan may have"),
    ],
)
def test_plans_that_are_no_plans(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        read_plan(tmp_path / "plan.toml")


@pytest.mark.parametrize("name", ["/dev/zero", "p" * 300, "a\0.toml"])
def test_paths_that_are_no_plans(name: str) -> None:
    with pytest.raises(
        InputError, match=r"cannot be read: its? (is a device|name is|name contains)"
    ):
        read_plan(Path(name))
