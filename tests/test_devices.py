"""Devices: found by name, and what runs on one without 64-bit numbers or kernels of CPUs."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dmbp import DMBP, metrics
from dmbp.attribution import METHODS
from dmbp.attribution.base import run_with_oom_retry
from dmbp.decompose.learn import initial_logits
from dmbp.decompose.settings import OBJECTIVES
from dmbp.devices import find_device, in_float64, on_device
from dmbp.engine import AutogradEngine, engine_for, plan_for
from dmbp.engine.plan.kernels import Kernels
from dmbp.errors import InputError
from dmbp.linear import Question, linearize
from dmbp.precision import full_precision
from tests import nets
from tests.attribution.test_contract import SMALLER, Conv1d
from tests.pretend_device import DeviceError, PretendDevice
from tests.tolerance import relative

SAME = 1e-5
"""The CPU's engine and the plain one add in different orders, which learning amplifies."""


def fewer(name: str) -> dict[str, object]:
    return {"iterations": 2} if name.startswith("dmbp") else SMALLER.get(name, {})


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, 16, 16)


@pytest.mark.parametrize(
    ("cuda", "mps", "found"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_auto_takes_the_best_device(
    cuda: bool, mps: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)  # this machine may not have it
    assert find_device("auto").type == found


@pytest.mark.parametrize("name", ["tpux", "cuda:77", ""])
def test_a_device_that_is_not_there(name: str) -> None:
    with pytest.raises(InputError, match=f"device '{name}' is not available"):
        find_device(name)


LEFT_OUT = ("dmbp_pos", "dmbp_posneg", *nets.NEED_ATTENTION)
"""Rows that differ from another in settings only, and those that need attention, which the pretend
device does not export."""


@pytest.mark.parametrize("name", [name for name in METHODS if name not in LEFT_OUT])
def test_methods_on_a_device_without_float64(
    name: str, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every method runs, leaves its maps on the device, and finds what it finds on the CPU."""
    monkeypatch.setattr("dmbp.decompose.tester.ROUGH_DTYPES", ())  # bfloat16 is for CPUs alone
    model = nets.ResidualNet().eval()
    expected = METHODS[name](model, **fewer(name)).attribute(images, target=[1, 2])
    with PretendDevice() as device:
        moved, inputs = device.move(model), device.move(images)
        maps = METHODS[name](moved, **fewer(name)).attribute(inputs, target=[1, 2])
        assert maps.device.type == "mps"
        found = maps.cpu()
    assert relative(found, expected) <= SAME


def test_smooth_networks_and_signals_on_a_device_without_float64() -> None:
    with PretendDevice() as device:
        for net, shape in ((nets.TinyConvNeXt, (1, 3, 16, 16)), (Conv1d, (1, 2, 80))):
            model, inputs = device.move(net().eval()), device.move(torch.randn(shape))
            d = DMBP(model, iterations=1).explain(inputs, target=1)
            assert d.attribution in device
            assert d.exactness < 1e-5


def test_metrics_and_pictures_on_a_device_without_float64(images: Tensor, tmp_path: Path) -> None:
    """They take maps that are on the device, and those that were copied to the CPU."""
    with PretendDevice() as device:
        model, inputs = device.move(nets.VGGLike().eval()), device.move(images)
        d = DMBP(model, iterations=2).explain(inputs, target=[1, 2])
        d.plot(tmp_path / "maps.png", activation="softmax")
        d.save(tmp_path / "maps.safetensors")
        d.read(reference="blur", combine="own_signs").plot(tmp_path / "streams.png")
        found = []
        for maps in (d.attribution, d.attribution.cpu()):
            scores = [
                metrics.insertion(model, inputs, [1, 2], maps, steps=4),
                metrics.deletion(model, inputs, [1, 2], maps, steps=4, substrate="mean"),
                metrics.complementary_insertion(model, inputs, [[2], [1, 3]], maps, steps=4),
                metrics.removal(model, inputs, [1, 2], maps).red_true,
                metrics.removal(model, inputs, [1, 2], maps > 0).positive_share,
                metrics.pointing_game(maps, [[(0, 0, 8, 8)], [(0, 0, 8, 8)]]),
                metrics.rank_correlation(maps, -maps),
            ]
            found.append([score.tolist() for score in scores])
        assert found[0] == found[1]
        changed = metrics.with_reinitialised_layer(model, inputs)
        assert next(changed.parameters()) in device


def test_the_engine_of_a_device_that_is_neither_a_cpu_nor_cuda(images: Tensor) -> None:
    with PretendDevice() as device:
        model, inputs = device.move(nets.VGGLike().eval()), device.move(images)
        plan = plan_for(linearize(model, inputs, target=1))
        assert type(plan.kernels) is Kernels
        logits = initial_logits(plan)
        engine = engine_for(plan, logits, loss=OBJECTIVES["all"], learning_rate=0.1)
        assert isinstance(engine, AutogradEngine)
        with pytest.raises(InputError, match="'float16' is for GPUs with CUDA, not mps"):
            DMBP(model, precision="float16").attribute(inputs, target=1)


def test_autocast_of_the_caller_changes_nothing() -> None:
    with torch.autocast("mps", torch.float16):
        with full_precision():
            assert not torch.is_autocast_enabled("mps")
        assert torch.is_autocast_enabled("mps")


def test_lack_of_memory_on_apples_gpus_halves_the_batch(images: Tensor) -> None:
    method = METHODS["gradient"](nets.VGGLike().eval())
    sizes: list[int] = []

    def answer(question: Question) -> int:
        sizes.append(question.batch_size)
        if question.batch_size > 1:
            raise RuntimeError("MPS backend out of memory (MPS allocated: 18.1 GB …)")
        return 1

    questions = method.questions(images, [0, 1], internal_batch_size=2)
    with pytest.warns(UserWarning, match="do not fit into memory; continuing with 1"):
        assert list(run_with_oom_retry(questions, answer)) == [1, 1]
    assert sizes == [2, 1, 1]


def test_float64_beside_a_device_that_has_none() -> None:
    with PretendDevice() as device:
        values = device.move(torch.tensor([0.1, 0.2]))
        wide = in_float64(values)
        assert (wide.dtype, wide.device.type) == (torch.float64, "cpu")
        back = on_device(wide, values.device)
        assert (back.dtype, back.device.type) == (torch.float32, "mps")
    assert on_device(wide, torch.device("cpu")).dtype == torch.float64


def test_the_pretend_device_refuses_what_real_ones_do() -> None:
    """The checks above can fail."""
    on_cpu = torch.ones(2, 2)
    generator = torch.Generator()
    with PretendDevice() as device:
        tensor = 2 * device.move(on_cpu)
        assert tensor in device
        assert tensor.cpu() not in device
        with pytest.raises(DeviceError, match=r"torch\.float64"):
            tensor.double()
        with pytest.raises(DeviceError, match=r"torch\.complex128"):
            tensor.to(torch.complex128)
        with pytest.raises(DeviceError, match=r"torch\.float64"):
            torch.zeros(2, dtype=torch.float64, device=tensor.device)
        with pytest.raises(DeviceError, match=r"torch\.float64"):
            on_cpu.double().to(tensor.device)
        with pytest.raises(DeviceError, match="both devices"):
            tensor + on_cpu
        with pytest.raises(DeviceError, match="CPUs only"):
            tensor.to_mkldnn()
        with pytest.raises(DeviceError, match="NumPy"):
            tensor.numpy()
        with pytest.raises(DeviceError, match="generator of the CPU"):
            torch.randn(2, generator=generator, device=tensor.device)
        leaf = tensor.requires_grad_()
        (gradient,) = torch.autograd.grad((leaf * leaf).sum(), leaf)
        assert gradient in device
