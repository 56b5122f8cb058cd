"""Captured graphs are kept in files, found again, and never believed without a check."""

import json
import os
import time
import zlib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import InputError
from dmbp.linear.capture import cache
from dmbp.linear.capture.export import capture
from dmbp.linear.capture.graph_file import MAGIC, NotPackable, NotReadable, pack, unpack
from dmbp.models import load_model
from tests import nets

IMAGES = (2, 3, 16, 16)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the cache for this test."""
    path = tmp_path / "cache"
    monkeypatch.setenv("DMBP_CACHE", str(path))
    return path


@pytest.fixture
def inputs() -> Tensor:
    return torch.randn(IMAGES)


def explained(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return value and pullback of the model's linear network."""
    net = dmbp.linearize(model, inputs, target=1)
    return net.value(), net.pullback()


def uncached(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DMBP_CACHE", "off")
        return explained(model, inputs)


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("make", nets.IMAGE_NETWORKS)
def test_a_graph_is_captured_once_for_all_weights(
    make: type[nn.Module], folder: Path, inputs: Tensor, exports: list[object]
) -> None:
    explained(make().eval(), inputs)
    exports.clear()
    model = make().eval()
    found = explained(model, inputs[:1])
    assert not exports
    for tensor, expected in zip(found, uncached(model, inputs[:1]), strict=True):
        assert torch.equal(tensor, expected)


def test_a_site_that_is_not_there_is_no_reason_to_forget_a_graph(
    folder: Path, inputs: Tensor
) -> None:
    model = nets.ResidualNet().eval()
    explained(model, inputs)
    kept = only_file(folder)
    with pytest.raises(InputError, match="no site"):
        dmbp.linearize(model, inputs, target=1, sites="nowhere")
    assert kept.is_file()


def test_an_input_may_have_the_name_of_a_builtin(
    folder: Path, inputs: Tensor, exports: list[object]
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten()).eval()
    expected = explained(model, inputs)  # its input is called `input`
    exports.clear()
    found = explained(model, inputs)
    assert not exports
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_another_size_dtype_or_architecture_is_captured_again(
    folder: Path, inputs: Tensor, exports: list[object]
) -> None:
    model = nets.ResidualNet().eval()
    cases = [
        (model, inputs),
        (model, inputs[..., :12]),
        (nets.ResidualNet().eval().double(), inputs.double()),
        (nn.Sequential(nn.Identity(), model).eval(), inputs),
    ]
    for number, (module, images) in enumerate(cases, start=1):
        exports.clear()
        explained(module, images)
        assert exports
        assert len(list(folder.iterdir())) == number


def test_another_release_of_torch_is_captured_again(
    folder: Path, inputs: Tensor, exports: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nets.ResidualNet().eval()
    explained(model, inputs)
    exports.clear()
    monkeypatch.setattr(torch, "__version__", "99.0")
    explained(model, inputs)
    assert exports


@pytest.mark.parametrize("position", [0, len(MAGIC) + 3, 400])
def test_a_flipped_byte_is_noticed(folder: Path, inputs: Tensor, position: int) -> None:
    model = nets.ResidualNet().eval()
    expected = explained(model, inputs)
    path = only_file(folder)
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="is captured again: it is damaged"):
        found = explained(model, inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert path.read_bytes() != content


@pytest.mark.parametrize("content", [b"", MAGIC, MAGIC + bytes(40)])
def test_a_file_that_is_no_graph_is_captured_again(
    folder: Path, inputs: Tensor, content: bytes
) -> None:
    model = nets.ResidualNet().eval()
    explained(model, inputs)
    only_file(folder).write_bytes(content)
    with pytest.warns(UserWarning, match="is captured again"):
        explained(model, inputs)


class ResidualNetWithTanh(nets.ResidualNet):
    """Has the parameters of a `ResidualNet` and computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


def test_the_graph_of_another_model_is_not_believed(folder: Path, inputs: Tensor) -> None:
    model, other = nets.ResidualNet().eval(), ResidualNetWithTanh().eval()
    expected = explained(model, inputs)
    only_file(folder).write_bytes(pack(capture(other, inputs), other, inputs))
    with pytest.warns(UserWarning, match="it does not agree with the model"):
        found = explained(model, inputs)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


class Switch(nn.Module):
    """Computes what a variable of this file says, which no description contains."""

    is_on = False

    def forward(self, x: Tensor) -> Tensor:
        return (x.relu() if Switch.is_on else x).flatten(1)


@pytest.mark.parametrize("agrees", [True, False])
def test_a_graph_has_to_agree_at_two_inputs(
    folder: Path, agrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    positive = torch.rand(2, 3, 2, 2)
    explained(Switch().eval(), positive)  # without ReLU, which makes no difference here
    monkeypatch.setattr(Switch, "is_on", not agrees)
    if agrees:
        explained(Switch().eval(), positive)
    else:
        with pytest.warns(UserWarning, match="it does not agree with the model"):
            explained(Switch().eval(), positive)


def with_description(content: bytes, change: Callable[[Any], None]) -> bytes:
    """Return a packed graph whose JSON was changed, with the right checksum."""
    description = json.loads(zlib.decompress(content[len(MAGIC) + 32 :]))
    change(description)
    body = zlib.compress(json.dumps(description).encode())
    return MAGIC + sha256(body).digest() + body


def called(description: Any) -> Any:
    """Return the first call in a description, [operation, arguments, keywords]."""
    return next(content for _, content, *_ in description["nodes"] if isinstance(content, list))


def operation(name: str) -> Callable[[Any], None]:
    def change(description: Any) -> None:
        called(description)[0] = name

    return change


def named(name: Any) -> Callable[[Any], None]:
    def change(description: Any) -> None:
        description["nodes"][-1][0] = description["nodes"][-2][0] if name == "relu" else name

    return change


def argument(value: Any) -> Callable[[Any], None]:
    def change(description: Any) -> None:
        called(description)[1] = [value]

    return change


@pytest.mark.parametrize(
    "change",
    [
        operation("aten::from_file."),
        operation("aten::relu_."),  # it writes
        operation("prims::device_put."),
        operation("os.system"),
        operation("getitem.__globals__"),
        operation("nothing"),
        argument({"node": 10**9}),
        argument({"node": -1}),
        argument({"dtype": "load"}),
        argument({"pickle": "gASVAA=="}),
        named("x = __import__('os').abort()"),
        named("relu"),  # as another
        named("class"),
        named(7),
        lambda description: description.pop("nodes"),
        lambda description: description["nodes"].clear(),
        lambda description: description["nodes"][0].pop(),
        lambda description: description.update(output=10**6),
        lambda description: description.update(input=[[3, 99, 99], "float32"]),
    ],
)
def test_a_forged_graph_is_not_readable(inputs: Tensor, change: Callable[[Any], None]) -> None:
    model = nets.ResidualNet().eval()
    content = pack(capture(model, inputs), model, inputs)
    unpack(with_description(content, lambda _: None), model, inputs)
    with pytest.raises(NotReadable):
        unpack(with_description(content, change), model, inputs)


def test_a_bomb_is_not_unpacked(inputs: Tensor) -> None:
    body = zlib.compress(b" " * 2**27)
    with pytest.raises(NotReadable):
        unpack(MAGIC + sha256(body).digest() + body, nets.MLP(), inputs)


class LargeConstant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) + torch.arange(3 * 16 * 16 * 512).reshape(512, -1).sum(0)


def test_models_with_large_constants_are_not_kept(folder: Path, inputs: Tensor) -> None:
    model = LargeConstant().eval()
    expected = explained(model, inputs)
    for path in folder.glob("*") if folder.exists() else ():
        assert path.stat().st_size < cache.MOST_BYTES_OF_A_FILE
    assert torch.equal(explained(model, inputs)[0], expected[0])


def test_a_graph_for_one_batch_size_is_not_packed(inputs: Tensor) -> None:
    class OneSize(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) * float(int(x.shape[0]))

    captured = capture(OneSize(), inputs)
    assert captured.batch == len(inputs)
    with pytest.raises(NotPackable):
        pack(captured, OneSize(), inputs)


def test_a_folder_that_cannot_be_used_does_no_harm(
    tmp_path: Path, inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DMBP_CACHE", str(tmp_path / "file" / "cache"))
    explained(nets.LeakyNet().eval(), inputs)


def test_a_full_disk_does_no_harm(
    folder: Path, inputs: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    explained(nets.LeakyNet().eval(), inputs)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("word", ["off", "OFF", "0", "none"])
def test_the_cache_can_be_switched_off(
    tmp_path: Path, inputs: Tensor, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("DMBP_CACHE", word)
    explained(nets.LeakyNet().eval(), inputs)
    assert list(tmp_path.iterdir()) == []


def test_old_files_are_deleted(folder: Path, inputs: Tensor) -> None:
    folder.mkdir()
    old = time.time() - 2 * cache.ABANDONED_AFTER
    for number in range(cache.MOST_FILES + 5):
        path = folder / f"{number}{cache.SUFFIX}"
        path.write_bytes(b"")
        os.utime(path, (old + number, old + number))
    for age, name in ((old, ".abandoned.part"), (time.time(), ".being-written.part")):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (age, age))
    explained(nets.LeakyNet().eval(), inputs)
    names = {path.name for path in folder.iterdir()}
    assert len([name for name in names if name.endswith(cache.SUFFIX)]) == cache.MOST_FILES
    assert not names & {f"{number}{cache.SUFFIX}" for number in range(6)}
    assert ".abandoned.part" not in names
    assert ".being-written.part" in names


def test_the_built_in_model_brings_its_graph_along(folder: Path, exports: list[object]) -> None:
    classifier = load_model("voc160")
    images = torch.randn(1, 3, 160, 160)
    found = explained(classifier.module, images)
    assert not exports
    assert not folder.exists()
    assert torch.equal(found[1], uncached(classifier.module, images)[1])
