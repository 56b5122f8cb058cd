"""Weights from files: every usual wrapping is read, and a file that does not fit is refused."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from dmbp.errors import WeightsError
from dmbp.models.state_dict import load_state_dict, read_state_dict


def make_network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def same_tensors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[key], expected[key]) for key in expected
    )


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "bare": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "model": lambda state: {"model": state},
}
PREFIXES = ("", "module.", "model.", "model._orig_mod.", "_orig_mod.module.")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_checkpoints_in_their_usual_wrappers(tmp_path: Path, wrapper: str, prefix: str) -> None:
    """The tensors in the file reach the module under their own names, whatever surrounds them."""
    saved = make_network().state_dict()
    checkpoint = WRAPPERS[wrapper]({prefix + name: tensor for name, tensor in saved.items()})
    torch.save(checkpoint, tmp_path / "a.pth")
    state = read_state_dict(tmp_path / "a.pth")
    assert same_tensors(dict(state), saved)
    module = make_network()
    assert not same_tensors(module.state_dict(), saved)
    load_state_dict(module, state, "a.pth")
    assert same_tensors(module.state_dict(), saved)


@pytest.mark.parametrize("prefix", ["net.", "encoder.backbone."])
def test_a_network_that_is_part_of_another(prefix: str) -> None:
    """Weights under one prefix are found beside others; under two prefixes they are ambiguous."""
    saved = make_network().state_dict()
    state = {prefix + name: tensor for name, tensor in saved.items()}
    module = make_network()
    load_state_dict(module, state | {"criterion.weight": torch.ones(3)}, "a.ckpt")
    assert same_tensors(module.state_dict(), saved)
    twice = state | {f"average.{name}": tensor for name, tensor in saved.items()}
    with pytest.raises(WeightsError, match="does not fit"):
        load_state_dict(module, twice, "two.ckpt")


def test_half_precision_files_keep_the_modules_precision(tmp_path: Path) -> None:
    saved = make_network().half().state_dict()
    save_file(saved, tmp_path / "half.safetensors")
    module = make_network()
    load_state_dict(module, read_state_dict(tmp_path / "half.safetensors"), "half.safetensors")
    loaded = module.state_dict()["0.weight"]
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded, saved["0.weight"].float())


def test_weights_of_another_architecture() -> None:
    state = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).state_dict()
    other = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.Linear(2, 2))
    with pytest.raises(WeightsError) as caught:
        load_state_dict(other, state, "a.pth")
    assert "a.pth does not fit the model: 2 keys are missing, first '2.weight'" in str(caught.value)
    assert "2 are unexpected, first '1.weight'" in str(caught.value)


def test_weights_of_another_shape() -> None:
    state = make_network().state_dict() | {"0.weight": torch.zeros(4, 1, 3, 3)}
    with pytest.raises(WeightsError, match=r"'0.weight' is \(4, 1, 3, 3\) in the file"):
        load_state_dict(make_network(), state, "grey.pth")


def test_files_that_hold_no_weights(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("hello")
    (tmp_path / "text.safetensors").write_text("hello")
    Image.new("RGB", (50, 50)).save(tmp_path / "photo.pth", "JPEG")
    torch.save(make_network(), tmp_path / "pickled.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with zipfile.ZipFile(tmp_path / "script.pth", "w") as archive:  # as torch.jit.save makes them
        archive.writestr("script/constants.pkl", "")
        archive.writestr("script/version", "3")
    for name, sentence in [
        ("missing.pth", "there is no weights file"),
        ("text.pth", "not a file of weights"),
        ("photo.pth", "not a file of weights"),
        ("text.safetensors", "not a file of weights"),
        (".", "is a folder"),
        ("pickled.pth", "holds Python objects"),
        ("list.pth", "holds no state dict"),
        ("script.pth", "is a TorchScript program, not a file of weights; explain it with"),
    ]:
        with pytest.raises(WeightsError, match=sentence):
            read_state_dict(tmp_path / name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda weight: weight.to_sparse(), "is a sparse tensor"),
        (lambda weight: weight.flatten(1).to_sparse_csr(), "is a sparse tensor"),
        (lambda weight: weight.to("meta"), "is on the meta device and has no data"),
        (lambda weight: torch.quantize_per_tensor(weight, 0.1, 0, torch.qint8), "is quantised"),
        (lambda _: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "is a nested"),
        (lambda weight: weight.to(torch.complex64), "has complex numbers"),
    ],
)
def test_tensors_that_are_no_weights(
    tmp_path: Path, make: Callable[[Tensor], Tensor], sentence: str
) -> None:
    state = make_network().state_dict()
    torch.save({**state, "0.weight": make(state["0.weight"])}, tmp_path / "a.pth")
    with pytest.raises(WeightsError, match=rf"a\.pth cannot be used: '0\.weight' {sentence}"):
        read_state_dict(tmp_path / "a.pth")


def test_an_archive_that_unpacks_to_more_than_its_size(tmp_path: Path) -> None:
    """torch.load would unpack a few kilobytes to gigabytes."""
    torch.save({"weight": torch.zeros(100_000)}, tmp_path / "a.pth")
    with (
        zipfile.ZipFile(tmp_path / "a.pth") as plain,
        zipfile.ZipFile(tmp_path / "b.pth", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert read_state_dict(tmp_path / "a.pth")["weight"].shape == (100_000,)
    with pytest.raises(WeightsError, match="is a compressed archive that unpacks to 40"):
        read_state_dict(tmp_path / "b.pth")


def test_an_archive_with_a_damaged_name(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("é", b"")  # its name is marked as UTF-8
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xe5\xe5"))
    with pytest.raises(WeightsError, match="is not a file of weights that can be read"):
        read_state_dict(path)
