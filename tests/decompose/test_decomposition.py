"""References, signs, and a decomposition that goes to disk and back."""

from pathlib import Path

import pytest
import torch

import dmbp
from dmbp.baseline import baseline_for, blur, blur_weights
from dmbp.errors import InputError, OutputError
from tests import nets


@pytest.fixture(params=["tested", "fast"])
def preset(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def decomposition(preset: str) -> dmbp.Decomposition:
    model = nets.ResidualNet().eval()
    explainer = dmbp.DMBP(model, preset=preset, iterations=5)
    return explainer.explain(torch.randn(2, 3, 16, 16), target=[1, {0: 1.0, 2: -1.0}])


def test_the_blur_is_that_of_the_insertion_metric() -> None:
    """Nearly a box: 1.14 between the largest and the smallest weight, not a Gaussian's 2.72."""
    kernel = blur_weights()[:, None] * blur_weights()[None]
    assert kernel.shape == (11, 11)
    assert float(kernel.sum()) == pytest.approx(1.0)
    assert float(kernel.max() / kernel.min()) == pytest.approx(1.14, abs=0.005)


def test_the_blur_weights_are_scipys() -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    delta = torch.zeros(11, 11, dtype=torch.float64)
    delta[5, 5] = 1
    expected = torch.from_numpy(ndimage.gaussian_filter(delta.numpy(), 5))
    kernel = blur_weights()[:, None] * blur_weights()[None]
    torch.testing.assert_close(kernel, expected, rtol=1e-6, atol=1e-9)


def test_blurring_keeps_a_constant_inside_and_fades_at_the_border() -> None:
    blurred = blur(torch.ones(1, 2, 30, 30))
    torch.testing.assert_close(blurred[..., 5:-5, 5:-5], torch.ones(1, 2, 20, 20))
    assert float(blurred[0, 0, 0, 0]) < 0.5


def test_references() -> None:
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(baseline_for(images, None), torch.zeros_like(images))
    assert torch.equal(baseline_for(images, "zero"), torch.zeros_like(images))
    mean = baseline_for(images, "mean")
    assert torch.equal(mean[1, 2], images[1, 2].mean().expand(16, 16))
    assert torch.equal(baseline_for(images, images[:1]), images[:1].expand_as(images))
    with pytest.raises(InputError, match="does not fit inputs"):
        baseline_for(images, torch.zeros(5))
    with pytest.raises(InputError, match="'mean', a tensor or None"):
        baseline_for(images, "black")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="needs images"):
        baseline_for(torch.zeros(2, 7), "blur")


@pytest.mark.parametrize("preset", ["fast"], indirect=True)
def test_each_stream_keeps_its_own_sign(decomposition: dmbp.Decomposition) -> None:
    d = decomposition
    assert (d.positive.sum(1) >= 0).all()
    assert (d.negative.sum(1) <= 0).all()
    plain = d.read(reference="blur", combine="sum")
    pixels = plain.positive.sum(1).clamp(min=0) + plain.negative.sum(1).clamp(max=0)
    torch.testing.assert_close(d.attribution.sum(1), pixels)
    assert torch.equal(plain.attribution, plain.positive + plain.negative)


def test_the_papers_readout(decomposition: dmbp.Decomposition) -> None:
    d = decomposition.read(reference=None, combine="sum")
    expected = d.positive_map * d.inputs + d.negative_map * d.inputs
    assert torch.equal(d.attribution, expected)


def test_save_and_load(decomposition: dmbp.Decomposition, tmp_path: Path) -> None:
    path = tmp_path / "two.safetensors"
    decomposition.save(path)
    loaded = dmbp.load(path)
    assert torch.equal(loaded.attribution, decomposition.attribution)
    assert torch.equal(loaded.history.nuisance, decomposition.history.nuisance)
    assert torch.equal(loaded.nuisance_output, decomposition.nuisance_output)
    assert loaded.targets == (1, {0: 1.0, 2: -1.0})
    assert loaded.image == (0, 1)
    assert loaded.settings == decomposition.settings
    assert (loaded.tested is None) == (decomposition.tested is None)
    if loaded.tested is not None and decomposition.tested is not None:
        assert torch.equal(loaded.worth_for, decomposition.worth_for)
        assert torch.equal(
            loaded.tested.outputs_without_negative, decomposition.tested.outputs_without_negative
        )
        assert loaded.tested.removals == decomposition.tested.removals == ("blur", "mean", "noise")
    assert loaded.exactness == decomposition.exactness


def test_a_tensor_reference_survives_saving(tmp_path: Path) -> None:
    grey = torch.full((1, 3, 8, 8), 0.5)
    explainer = dmbp.DMBP(nets.ResidualNet().eval(), iterations=1, reference=grey)
    d = explainer.explain(torch.randn(1, 3, 8, 8), target=0)
    d.save(tmp_path / "grey.safetensors")
    assert torch.equal(dmbp.load(tmp_path / "grey.safetensors").attribution, d.attribution)


def test_files_that_are_no_decomposition(tmp_path: Path, decomposition: dmbp.Decomposition) -> None:
    from safetensors.torch import save_file

    (tmp_path / "text").write_text("hello")
    save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    for name, sentence in [
        ("missing", "cannot read"),
        ("text", "cannot read"),
        ("other.safetensors", "not a saved decomposition"),
    ]:
        with pytest.raises(InputError, match=sentence):
            dmbp.load(tmp_path / name)
    with pytest.raises(OutputError, match="cannot write"):
        decomposition.save(tmp_path / "text" / "is" / "a file.safetensors")
    decomposition.save(tmp_path / "no" / "such" / "folder.safetensors")
    assert dmbp.load(tmp_path / "no" / "such" / "folder.safetensors").targets
