"""DMBP as people and other libraries call it."""

import subprocess
import sys

import pytest
import torch
from captum.attr import Attribution
from captum.metrics import infidelity, sensitivity_max
from torch import nn

import dmbp
from dmbp.errors import InputError, TargetError
from tests import nets
from tests.tolerance import BATCH, relative

IMAGES = (3, 3, 16, 16)


@pytest.mark.parametrize("make", nets.IMAGE_NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_contract(make: type[nn.Module], dtype: torch.dtype) -> None:
    """Shape and dtype of the input, finite, signed, deterministic; the model untouched."""
    model, inputs = make().to(dtype).eval(), torch.randn(IMAGES, dtype=dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    explainer = dmbp.DMBP(model, iterations=6)
    maps = explainer.attribute(inputs, target=1)
    assert maps.shape == inputs.shape
    assert maps.dtype == dtype
    assert torch.isfinite(maps).all()
    assert (maps.sum(1) > 0).any()
    assert (maps.sum(1) < 0).any()
    assert torch.equal(maps, explainer.attribute(inputs, target=1))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("classes", [2, 9])
def test_a_head_of_other_classes(classes: int) -> None:
    """Rows are made before the model is run, for the classes it had."""
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    explainer = dmbp.DMBP(model, iterations=3)
    explainer.attribute(inputs, target=1)
    model.fc = nn.Linear(model.fc.in_features, classes).eval()
    found = explainer.attribute(inputs, target=1)
    assert relative(found, dmbp.DMBP(model, iterations=3).attribute(inputs, target=1)) <= BATCH
    with pytest.raises(TargetError, match=f"the model has classes 0 to {classes - 1}"):
        explainer.attribute(inputs, target=classes)
    assert explainer.attribute(inputs, target=classes - 1).shape == inputs.shape


def test_a_head_with_fewer_classes_than_asked_about() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    explainer = dmbp.DMBP(model, iterations=3)
    explainer.attribute(inputs, target=3)
    model.fc = nn.Linear(model.fc.in_features, 2).eval()
    with pytest.raises(TargetError, match="class 3 is out of range: the model has classes 0 to 1"):
        explainer.attribute(inputs, target=3)


def test_a_map_that_shows_nothing_is_pointed_out() -> None:
    """Of one image every gate is closed; of the other not."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    nn.init.ones_(model[1].weight)
    images = torch.stack([torch.full((3, 2, 2), -5.0), torch.full((3, 2, 2), 5.0)])
    with pytest.warns(UserWarning, match="1 of 2 maps are zero everywhere"):
        maps = dmbp.DMBP(model, iterations=2, reference=None).attribute(images, target=1)
    assert not maps[0].any()
    assert maps[1].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    full = dmbp.DMBP(model, iterations=10).explain(inputs, target=1)
    half = dmbp.DMBP(model.to(dtype), iterations=10).explain(inputs.to(dtype), target=1)
    assert half.attribution.dtype == dtype
    assert torch.isfinite(half.attribution).all()
    assert relative(half.positive_output.float(), full.positive_output) < 0.1


def test_terms_too_large_for_the_dtype_get_a_sentence() -> None:
    """The score is zero, but what speaks for it is 120 000, and float16 ends at 65 504."""
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1, bias=False)).half().eval()
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    model[2].weight.data[:] = torch.tensor([30_000.0] * 4 + [-30_000.0] * 4)
    with pytest.raises(InputError, match="grew beyond the range"):
        dmbp.DMBP(model).explain(torch.ones(1, 1).half(), target=0)


def test_it_is_a_captum_attribution() -> None:
    explainer = dmbp.DMBP(nets.ResidualNet().eval(), iterations=3)
    assert isinstance(explainer, Attribution)
    inputs = torch.randn(IMAGES)
    as_tuple = explainer.attribute((inputs,), target=1)
    assert isinstance(as_tuple, tuple)
    assert torch.equal(as_tuple[0], explainer.attribute(inputs, None, 1))


def test_captums_metrics_run() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    explainer = dmbp.DMBP(model, iterations=5)
    target = torch.tensor([0, 1, 2])

    def perturb(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 0.01 * torch.randn_like(inputs)
        return noise, inputs - noise

    maps = explainer.attribute(inputs, target=target)
    score = infidelity(model, perturb, inputs, maps, target=target, n_perturb_samples=3)
    sensitivity = sensitivity_max(explainer.attribute, inputs, n_perturb_samples=3, target=target)
    assert score.shape == sensitivity.shape == (3,)
    assert torch.isfinite(score).all()
    assert (sensitivity > 0).all()


def test_the_core_needs_no_captum() -> None:
    """In a fresh interpreter where captum cannot be imported."""
    code = (
        "import sys; sys.modules['captum'] = None\n"
        "import torch, dmbp\n"
        "from torch import nn\n"
        "from dmbp.decompose import Settings\n"
        "from dmbp.decompose.learn import decompose_network\n"
        "model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()\n"
        "net = dmbp.linearize(model, torch.randn(1, 3), target=0)\n"
        "print(decompose_network(net, Settings(iterations=2, reference=None)).output.shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "torch.Size([1])\n", done.stderr


@pytest.mark.parametrize("size", [1, 2, 7])
def test_internal_batches_change_nothing(size: int) -> None:
    explainer = dmbp.DMBP(nets.ResidualNet().double().eval(), iterations=10)
    inputs = torch.randn(IMAGES, dtype=torch.float64)
    whole = explainer.explain(inputs, target=[0, 1, 2])
    parts = explainer.explain(inputs, target=[0, 1, 2], internal_batch_size=size)
    assert relative(parts.attribution, whole.attribution) <= BATCH
    assert parts.targets == whole.targets
    assert parts.history.positive.shape == whole.history.positive.shape == (10, 3)


def test_many_rows_are_learned_a_few_at_a_time() -> None:
    explainer = dmbp.DMBP(nets.ResidualNet().double().eval(), iterations=3)
    inputs = torch.randn(19, 3, 16, 16, dtype=torch.float64)
    assert [len(q.rows) for q in explainer.questions(inputs, 1)] == [4, 4, 4, 4, 3]
    whole = explainer.explain(inputs, target=1)
    together = explainer.explain(inputs, target=1, internal_batch_size=19)
    assert relative(whole.attribution, together.attribution) <= BATCH
    assert whole.image == tuple(range(19))


def test_several_targets_of_one_image() -> None:
    explainer = dmbp.DMBP(nets.ResidualNet().double().eval(), iterations=5)
    inputs = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    both = explainer.explain(inputs, target=[1, 4])
    assert both.attribution.shape == (2, 3, 16, 16)
    for row, target in enumerate((1, 4)):
        alone = explainer.attribute(inputs, target=target)
        assert relative(both.attribution[row : row + 1], alone) <= BATCH


def test_several_targets_of_several_images_keep_their_rows() -> None:
    explainer = dmbp.DMBP(nets.ResidualNet().double().eval(), iterations=3)
    inputs = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    d = explainer.explain(inputs, target=[[0], [1, 2]], internal_batch_size=2)
    assert d.image == (0, 1, 1)
    assert d.targets == (0, 1, 2)
    assert torch.equal(d.inputs, inputs[[0, 1, 1]])


def test_no_target_asks_about_the_top_class() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    d = dmbp.DMBP(model, iterations=1).explain(inputs)
    assert torch.equal(d.output, model(inputs).max(1).values)


def test_swapping_a_difference_swaps_the_roles() -> None:
    """What speaks for "a minus b" speaks against "b minus a"."""
    explainer = dmbp.DMBP(nets.VGGLike().double().eval(), iterations=20, combine="sum")
    inputs = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    one = explainer.explain(inputs, target={0: 1.0, 1: -1.0})
    other = explainer.explain(inputs, target={0: -1.0, 1: 1.0})
    assert relative(one.positive_output, -other.negative_output) <= BATCH
    assert relative(one.attribution, -other.attribution) <= BATCH


def test_presets_and_overrides() -> None:
    model = nets.MLP().eval()
    paper = dmbp.DMBP(model, preset="paper").settings.described()
    assert paper == {
        "objective": "all",
        "iterations": 200,
        "learning_rate": 0.01,
        "reference": "zero",
        "combine": "sum",
        "precision": "auto",
    }
    fast = dmbp.DMBP(model).settings.described()
    assert (fast["iterations"], fast["learning_rate"]) == (50, 0.05)
    assert (fast["reference"], fast["combine"]) == ("blur", "own_signs")
    assert dmbp.DMBP(model, preset="paper", iterations=7, reference="blur").settings.iterations == 7


def test_inputs_that_are_no_images_are_compared_with_zero() -> None:
    model, inputs = nets.MLP().eval(), torch.randn(4, 7)
    d = dmbp.DMBP(model, iterations=5).explain(inputs, target=0)
    assert d.attribution.shape == (4, 7)
    assert d.settings.reference is None
    with pytest.raises(InputError, match="needs images"):
        dmbp.DMBP(model, reference="blur").explain(inputs, target=0)


def test_baselines_are_the_reference() -> None:
    explainer = dmbp.DMBP(nets.ResidualNet().eval(), iterations=2, combine="sum")
    inputs = torch.randn(IMAGES)
    assert torch.equal(explainer.attribute(inputs, inputs, target=0), torch.zeros_like(inputs))


def test_progress_reaches_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[None] = []
    explainer = dmbp.DMBP(nets.ResidualNet().eval(), iterations=4)
    explainer.explain(
        torch.randn(IMAGES),
        target=0,
        internal_batch_size=2,
        show_progress=True,
        on_iteration=lambda: calls.append(None),
    )
    assert len(calls) == 2 * 4


def test_an_exception_in_the_middle_leaves_the_model_as_it_came() -> None:
    model = nets.ResidualNet()
    training = [module.training for module in model.modules()]
    wanted = [parameter.requires_grad for parameter in model.parameters()]

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="training mode"), pytest.raises(KeyboardInterrupt):
        dmbp.DMBP(model, iterations=5).explain(torch.randn(IMAGES), target=0, on_iteration=stop)
    assert [module.training for module in model.modules()] == training
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    assert not any(module._forward_hooks for module in model.modules())


def test_options_that_make_no_sense() -> None:
    model = nets.ResidualNet().eval()
    with pytest.raises(InputError, match="no preset 'papr'; did you mean 'paper'"):
        dmbp.DMBP(model, preset="papr")
    with pytest.raises(InputError, match="internal_batch_size must be 1 or more"):
        dmbp.DMBP(model).explain(torch.randn(IMAGES), target=0, internal_batch_size=0)
    with pytest.raises(InputError, match=r"2 inputs were given.*as additional_forward_args"):
        dmbp.DMBP(model).attribute((torch.randn(IMAGES),) * 2, target=0)
    with pytest.raises(TargetError, match="out of range"):
        dmbp.DMBP(model).attribute(torch.randn(IMAGES), target=5)
