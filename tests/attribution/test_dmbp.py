"""DMBP as its users call it: attribute(), explain(), presets and options."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import InputError, TargetError
from tests import nets
from tests.tolerance import BATCH, relative

IMAGES = (3, 3, 16, 16)


@pytest.mark.parametrize("make", nets.IMAGE_NETWORKS)
def test_maps_are_signed_and_the_same_again(make: type[nn.Module]) -> None:
    """In single precision; `test_base.py` has the rest of the contract, in double precision."""
    model, inputs = make().eval(), torch.randn(IMAGES)
    explainer = dmbp.DMBP(model, preset="fast", iterations=6)
    maps = explainer.attribute(inputs, target=1)
    assert maps.dtype == torch.float32
    assert (maps.sum(1) > 0).any()
    assert (maps.sum(1) < 0).any()
    assert torch.equal(maps, explainer.attribute(inputs, target=1))


@pytest.mark.parametrize("classes", [2, 9])
def test_a_head_with_another_number_of_classes(classes: int) -> None:
    """Rows are made before the model runs, for the number of classes it had before."""
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
    """Every gate is closed for one image, and open for the other."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    nn.init.ones_(model[1].weight)
    images = torch.stack([torch.full((3, 2, 2), -5.0), torch.full((3, 2, 2), 5.0)])
    explainer = dmbp.DMBP(model, preset="fast", iterations=2, reference=None)
    with pytest.warns(UserWarning, match="1 of 2 maps are zero everywhere"):
        maps = explainer.attribute(images, target=1)
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


def test_terms_too_large_for_the_dtype_are_refused() -> None:
    """The score is zero, but its positive term is 120 000, and float16 ends at 65 504."""
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1, bias=False)).half().eval()
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    model[2].weight.data[:] = torch.tensor([30_000.0] * 4 + [-30_000.0] * 4)
    with pytest.raises(InputError, match="grew beyond the range"):
        dmbp.DMBP(model).explain(torch.ones(1, 1).half(), target=0)


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
    calls: list[None] = []
    whole = explainer.explain(inputs, target=1, on_iteration=lambda: calls.append(None))
    # In batches of 4, 4, 4, 4 and 3 rows: three iterations, then ten reports of the test.
    assert len(calls) == 5 * (3 + 10)
    assert explainer.progress_steps == 3 + 10
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


def test_a_function_is_saved_by_its_name(tmp_path: Path) -> None:
    def difference(outputs: Tensor) -> Tensor:
        return outputs[0] - outputs[1]

    explainer = dmbp.DMBP(nets.VGGLike().eval(), iterations=1)
    d = explainer.explain(torch.randn(1, 3, 16, 16), target=difference)
    d.save(tmp_path / "d.safetensors")
    loaded = dmbp.load(tmp_path / "d.safetensors")
    assert loaded.targets == ("difference",)
    loaded.plot(tmp_path / "d.png")
    loaded.save(tmp_path / "again.safetensors")
    assert dmbp.load(tmp_path / "again.safetensors").targets == ("difference",)


def test_without_a_target_the_top_class_is_explained() -> None:
    model, inputs = nets.ResidualNet().eval(), torch.randn(IMAGES)
    d = dmbp.DMBP(model, iterations=1).explain(inputs)
    assert torch.equal(d.output, model(inputs).max(1).values)


def test_swapping_a_difference_swaps_the_roles() -> None:
    """What speaks for "a minus b" speaks against "b minus a"."""
    model = nets.VGGLike().double().eval()
    explainer = dmbp.DMBP(model, preset="fast", iterations=20, combine="sum")
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
    fast = dmbp.DMBP(model, preset="fast").settings.described()
    assert (fast["iterations"], fast["learning_rate"]) == (50, 0.05)
    assert (fast["reference"], fast["combine"]) == ("blur", "own_signs")
    tested = dmbp.DMBP(model).settings.described()
    assert (tested["objective"], tested["iterations"], tested["learning_rate"]) == (
        "posneg", 12, 0.2
    )  # fmt: skip
    assert {
        name: tested[name] for name in ("window", "stride", "contexts", "floor", "removal")
    } == {
        "window": "auto",
        "stride": "auto",
        "contexts": 2,
        "floor": "auto",
        "removal": "auto",
    }
    assert dmbp.DMBP(model, preset="paper", iterations=7, reference="blur").settings.iterations == 7


def test_inputs_other_than_images_are_compared_with_zero() -> None:
    model, inputs = nets.MLP().eval(), torch.randn(4, 7)
    d = dmbp.DMBP(model, iterations=5).explain(inputs, target=0)
    assert d.attribution.shape == (4, 7)
    assert d.settings.reference is None
    with pytest.raises(InputError, match="needs images"):
        dmbp.DMBP(model, reference="blur").explain(inputs, target=0)


def test_baselines_are_the_reference() -> None:
    model = nets.ResidualNet().eval()
    explainer = dmbp.DMBP(model, preset="fast", iterations=2, combine="sum")
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
    assert len(calls) == 2 * explainer.progress_steps == 2 * (4 + 10)


def test_an_exception_in_the_middle_restores_the_model() -> None:
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


def test_options_that_are_refused() -> None:
    model = nets.ResidualNet().eval()
    with pytest.raises(InputError, match="no preset 'papr'; did you mean 'paper'"):
        dmbp.DMBP(model, preset="papr")
    with pytest.raises(InputError, match="internal_batch_size must be 1 or more"):
        dmbp.DMBP(model).explain(torch.randn(IMAGES), target=0, internal_batch_size=0)
    with pytest.raises(InputError, match=r"2 inputs were given.*as additional_forward_args"):
        dmbp.DMBP(model).attribute((torch.randn(IMAGES),) * 2, target=0)
    with pytest.raises(TargetError, match="out of range"):
        dmbp.DMBP(model).attribute(torch.randn(IMAGES), target=5)
