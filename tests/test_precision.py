"""TF32 and autocast are off while dmbp computes, and restored afterwards."""

import pytest
import torch
from torch import Tensor

import dmbp
from dmbp.attribution import METHODS
from dmbp.errors import CaptureError
from dmbp.precision import deterministic_kernels, full_precision
from tests import nets


def tf32() -> tuple[bool, bool]:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


def test_tf32_is_off_inside_and_back_outside() -> None:
    before = tf32()

    @full_precision()
    def fail() -> None:
        assert tf32() == (False, False)
        raise KeyboardInterrupt

    assert before == (True, False)  # torch's defaults; without a difference the test could not fail
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert tf32() == before


@pytest.mark.parametrize("before", [False, True])
def test_sums_are_repeatable_inside_and_as_before_outside(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @deterministic_kernels()
    def fail() -> None:
        assert torch.backends.cudnn.deterministic
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.backends.cudnn, "deterministic", before)
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert torch.backends.cudnn.deterministic is before


def test_the_model_runs_in_full_precision() -> None:
    seen: list[tuple[bool, bool]] = []

    class Watched(nets.ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(tf32())
            return super().forward(x)

    before = tf32()
    dmbp.DMBP(Watched().eval(), iterations=1).explain(torch.randn(1, 3, 8, 8), target=0)
    assert seen
    assert all(found == (False, False) for found in seen)
    assert tf32() == before


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("float32", (False, False)), ("tf32", (True, True)), ("bfloat16", (True, True))],
)
def test_rise_sees_masked_images_in_a_rougher_precision(
    precision: str, expected: tuple[bool, bool]
) -> None:
    seen: list[tuple[tuple[bool, bool], bool]] = []

    class Watched(nets.ResidualNet):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((tf32(), torch.is_autocast_enabled("cpu")))
            return super().forward(x)

    before = tf32()
    inputs = torch.randn(1, 3, 8, 8)
    rise = METHODS["rise"](Watched().eval(), masks=8, precision=precision)
    found = rise.attribute(inputs, target=0)
    assert seen[-1] == (expected, precision == "bfloat16")
    assert seen[0] == ((False, False), False)  # the run that determines the class
    assert tf32() == before
    single = METHODS["rise"](rise.linearizer.model, masks=8, precision="float32")
    assert found.dtype == torch.float32
    assert torch.allclose(found, single.attribute(inputs, target=0), rtol=0.02, atol=1e-3)


SMALLER = {
    "rise": {"masks": 8}, "lpr": {"iterations": 2}, "blur_ig": {"steps": 3},
    "kernel_shap": {"count": 4, "samples": 14}, "finercam": {"signed": True},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype"), [("gradient", torch.float16), *((name, torch.bfloat16) for name in METHODS)]
)
def test_autocast_around_a_call_changes_nothing(name: str, dtype: torch.dtype) -> None:
    net = nets.TinyViT if name.startswith("attention") else nets.VGGLike
    model, inputs = net().eval(), torch.randn(2, 3, 16, 16)
    settings = {"iterations": 3} if name.startswith("dmbp") else SMALLER.get(name, {})
    expected = METHODS[name](model, **settings).attribute(inputs, target=1)
    with torch.autocast("cpu", dtype=dtype):
        found = METHODS[name](model, **settings).attribute(inputs, target=1)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(found, expected)


def test_autocast_around_everything_else() -> None:
    model, inputs = nets.VGGLike().eval(), torch.randn(2, 3, 16, 16)
    explainer = dmbp.DMBP(model, iterations=3)
    expected = explainer.explain(inputs, target=1)
    pullback = dmbp.linearize(model, inputs, target=1).pullback()
    score = dmbp.metrics.insertion(model, inputs, 1, expected.attribution)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = explainer.explain(inputs, target=1)
        assert torch.equal(found.attribution, expected.attribution)
        assert torch.equal(found.nuisance_output, expected.nuisance_output)
        assert torch.equal(dmbp.linearize(model, inputs, target=1).pullback(), pullback)
        assert torch.equal(dmbp.metrics.insertion(model, inputs, 1, found.attribution), score)


class CastsInside(nets.ResidualNet):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


def test_autocast_inside_the_model() -> None:
    model, inputs = CastsInside().eval(), torch.randn(2, 3, 16, 16)
    net = dmbp.linearize(model, inputs, target=1)
    assert net.other_dtypes == (torch.bfloat16,)
    assert torch.equal(net.value(), model(inputs)[:, 1])
    for name in ("gradient", "gradcam", "guided_backprop"):
        assert METHODS[name](model).attribute(inputs, target=1).dtype == torch.float32
    with pytest.raises(CaptureError, match=r"compute in torch.bfloat16 while its inputs are .*to"):
        dmbp.DMBP(model, iterations=1).attribute(inputs, target=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("net", [nets.VGGLike, nets.ResidualNet, nets.TinyViT])
def test_half_precision_maps_are_those_of_the_model_in_single(
    net: type[torch.nn.Module], dtype: torch.dtype
) -> None:
    model = net().eval().to(dtype)
    inputs = torch.randn(2, 3, 16, 16).to(dtype)
    settings = {"preset": "fast", "iterations": 4, "reference": None}
    half = dmbp.DMBP(model, **settings).attribute(inputs, target=1)
    single = dmbp.DMBP(model.float(), **settings).attribute(inputs.float(), target=1)
    assert half.dtype == dtype
    # Rounding flips gates that are nearly closed, so the maps only correlate.
    assert torch.corrcoef(torch.stack([half.float().flatten(), single.flatten()]))[0, 1] > 0.95
