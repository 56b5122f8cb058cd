"""What lies beside a model: settings in TOML and JSON, and folders of Hugging Face; TorchScript.

The folders of Hugging Face are made when they are first needed, since transformers takes seconds to
import.
"""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import torch

from tests.cli.networks import net
from tests.fuzz.bench_files import toml_lines
from tests.fuzz.case import FAST, MARK, Case, Stock
from tests.fuzz.damage import (
    TEXTS,
    damaged_bytes,
    damaged_tree,
    odd_value,
    with_nested_lists,
)
from tests.fuzz.photos import SPECIAL
from tests.models.program.tampering import Payload

SETTINGS: Mapping[str, Any] = {
    "size": [32, 32],
    "fit": "squeeze",
    "resize": 32,
    "mean": [104, 117, 123],
    "std": [1, 2, 3],
    "scale": 255,
    "channels": "bgr",
    "interpolation": "bicubic",
    "longest": 64,
    "multiple": 8,
    "layout": "nchw",
    "classes": ["cat", "dog", "hamster"],
    "input": "images",
    "output": "scores",
    "hold": {"sr": 16000},
}
"""Every setting of a TOML file beside a model."""

TIMM: Mapping[str, Any] = {
    "architecture": "resnet18",
    "num_classes": 3,
    "label_names": ["cat", "dog", "hamster"],
    "pretrained_cfg": {
        "input_size": [3, 32, 32],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
    },
}
"""timm's `config.json`."""

RAW_TOML = (
    "size = " + "[" * 3000,
    "size = " + "9" * 5000,
    "mean = [nan, inf, 1e400]",
    "classes = '../../../etc/passwd'",
    "classes = '/dev/zero'",
    "classes = 'pipe'",
    "classes = [" + "'a'," * 30_000 + "]",
    "hold = {sr = 99999999999999999999}",
    "x" + ".a" * 3000 + " = 1",
    "size = 1979-05-27",
    "\ufeffsize = 32",
    "size = 1024\nfit = 'whole'\nmultiple = 1024",
)


def make_folder_case(rng: Random, folder: Path, stock: Stock) -> Case:
    """Return a command that opens a model with files beside it."""
    kind = rng.choice(list(FOLDERS))
    model, note = FOLDERS[kind](rng, folder, stock)
    photo = str(stock.path("photo.png"))
    commands = (
        ["doctor", model],
        ["explain", photo, "--model", model, *FAST],
        ["explain", photo, "--model", model, *FAST, "--prompt", rng.choice(PROMPTS)],
        ["explain", photo, "--model", model, *FAST, "--target", "similarity:prompt=a cat"],
        ["compare", photo, "--model", model, "--methods", "gradient"],
        ["boxes", photo, "--model", model],
    )
    is_text_and_image = kind.startswith("Hugging Face")
    (command,) = rng.choices(commands, (4, 4, *((4, 1) if is_text_and_image else (0, 0)), 1, 1))
    return Case(command, f"{kind}: {note}")


PROMPTS = ("a photo of a cat", "a cat", "", " ", "dog " * 50, "\0", "\udce9", "🐈" * 2000, "</s>")


def _model_file(rng: Random, folder: Path, stock: Stock) -> Path:
    path = folder / rng.choice(("model.onnx", "model.pt2"))
    return Path(shutil.copy(stock.path(f"net{path.suffix}"), path))


def _toml(rng: Random, folder: Path, stock: Stock) -> tuple[str, str]:
    """A TOML file beside a model file."""
    model = _model_file(rng, folder, stock)
    path = model.with_suffix(".toml")
    (folder / "names.txt").write_bytes(rng.choice((b"cat\ndog\nhamster\n", b"\xff\xfe", b"")))
    names = rng.sample(list(SETTINGS), rng.choice((1, 1, 2, 4)))
    tree: dict[str, Any] = {name: SETTINGS[name] for name in names}
    if rng.random() < 0.2:
        tree["classes"] = rng.choice(("names.txt", "pipe", "loop", "folder", *TEXTS))
    draw = rng.choice(("ordinary", "entries", "entries", "entries", "raw", "bytes", "special"))
    if draw == "entries":
        tree = damaged_tree(rng, tree)
    text = rng.choice(RAW_TOML) if draw == "raw" else toml_lines(tree)
    content = with_nested_lists(text).encode(errors="surrogateescape")
    if draw == "bytes":
        content, draw = damaged_bytes(rng, content)
    if draw == "special":
        special = rng.choice(list(SPECIAL))
        SPECIAL[special](path)
        return model.name, special
    path.write_bytes(content)
    return model.name, f"{draw} {names}"


def _json_beside(rng: Random, folder: Path, stock: Stock) -> tuple[str, str]:
    """timm's or Hugging Face's JSON files beside a model file."""
    model = _model_file(rng, folder, stock)
    trees: Mapping[str, Any] = {
        "config.json": rng.choice((TIMM, {"id2label": {"0": "cat", "1": "dog", "2": "bird"}})),
        "preprocessor_config.json": json.loads(_hugging_face(stock, "clip", PROCESSOR)),
    }
    weights = (8, 1)  # reading the second takes transformers
    (name,) = rng.choices(list(trees), weights)
    return model.name, f"{name} {_write_json(rng, folder / name, trees[name])}"


def _write_json(rng: Random, path: Path, tree: Any) -> str:
    """Write a tree as JSON, changed or damaged, or something else in its place."""
    draw = rng.choice(("ordinary", *["entries"] * 4, "bytes", "other", "special"))
    if draw == "entries":
        tree = damaged_tree(rng, tree)
    elif draw == "other":
        tree = odd_value(rng)
    content = with_nested_lists(json.dumps(tree)).encode()
    if draw == "bytes":
        content, draw = damaged_bytes(rng, content)
    path.unlink(missing_ok=True)
    if draw == "special":
        kind = rng.choice(list(SPECIAL))
        SPECIAL[kind](path)
        return kind
    path.write_bytes(content)
    return draw


PROCESSOR = "preprocessor_config.json"
MODELS = ("clip", "dinov2", "yolos")


def _hugging_face(stock: Stock, name: str, file: str) -> bytes:
    return (hugging_face_folder(stock, name) / file).read_bytes()


def hugging_face_folder(stock: Stock, name: str) -> Path:
    """Return the folder of a tiny model of Hugging Face, which is made if there is none yet."""
    path = stock.path(f"hugging-face-{name}")
    if not path.exists():
        from tests.models.transformers_folders import save

        scratch = path.with_name(f"{path.name}-{os.getpid()}")
        save(name, scratch)
        try:
            (scratch / name).rename(path)
        except OSError:  # another worker has made it meanwhile
            shutil.rmtree(scratch)
    return path


def _model_folder(rng: Random, folder: Path, stock: Stock) -> tuple[str, str]:
    """A folder of Hugging Face with one of its files changed."""
    name = rng.choice(MODELS)
    path = folder / "model"
    shutil.copytree(hugging_face_folder(stock, name), path)
    file = rng.choice(sorted(path.iterdir()))
    if rng.random() < 0.5:
        file = path / "config.json"
    if file.suffix == ".json":
        note = _write_json(rng, file, json.loads(file.read_text()))
    else:
        note = rng.choice(list(WEIGHTS))
        WEIGHTS[note](rng, path, file)
    return rng.choice(("./model", "hf:./model")), f"{name} {file.name} {note}"


def _damaged_weights(rng: Random, _: Path, file: Path) -> None:
    file.write_bytes(damaged_bytes(rng, file.read_bytes())[0])


def _changed_header(rng: Random, _: Path, file: Path) -> None:
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    tree = damaged_tree(rng, json.loads(content[8 : 8 + length]))
    header = with_nested_lists(json.dumps(tree)).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + length :])


def _pickled(rng: Random, folder: Path, file: Path) -> None:
    """Pickled code in place of weights."""
    file.unlink()
    payload = Payload(folder.parent / MARK)
    path = folder / "pytorch_model.bin"
    if rng.random() < 0.5:
        torch.save({"weight": payload}, path)
    else:
        path.write_bytes(pickle.dumps(payload))


def _index(rng: Random, folder: Path, file: Path) -> None:
    """An index of shards that leads elsewhere."""
    names = ("../model/model.safetensors", "/dev/zero", "pipe", "gone", file.name, "a/b", "", 3)
    file.rename(folder / "part.safetensors")
    table: Any = {"weight_map": {"x": rng.choice((*names, "part.safetensors", *TEXTS))}}
    if rng.random() < 0.5:
        table = damaged_tree(rng, table)
    text = with_nested_lists(json.dumps(table))
    (folder / "model.safetensors.index.json").write_text(text)


def _no_weights(_: Random, __: Path, file: Path) -> None:
    file.unlink()


WEIGHTS: Mapping[str, Callable[[Random, Path, Path], None]] = {
    "damaged": _damaged_weights,
    "changed header": _changed_header,
    "pickled": _pickled,
    "index": _index,
    "none": _no_weights,
}
"""Ways to change a folder's weights."""

CODE = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import CLIPConfig as Own, CLIPModel, CLIPTokenizer, CLIPImageProcessor
"""


def _code_folder(rng: Random, folder: Path, stock: Stock) -> tuple[str, str]:
    """A folder of Hugging Face whose files name Python code in it."""
    path = folder / "model"
    shutil.copytree(hugging_face_folder(stock, "clip"), path)
    (path / "own.py").write_text(CODE.format(mark=str(folder / MARK)))
    (path / "__init__.py").write_text(CODE.format(mark=str(folder / MARK)))
    automatic = {
        "AutoConfig": "own.Own",
        "AutoModel": "own.CLIPModel",
        "AutoTokenizer": ["own.CLIPTokenizer", "own.CLIPTokenizer"],
        "AutoImageProcessor": ["own.CLIPImageProcessor"] * 2,
        "AutoProcessor": "own.CLIPImageProcessor",
    }
    changes = rng.sample(list(CODE_CHANGES), rng.choice((1, 2)))
    for file in ("config.json", "tokenizer_config.json", PROCESSOR):
        tree = json.loads((path / file).read_text())
        tree["auto_map"] = automatic
        for change in changes:
            tree |= CODE_CHANGES[change]
        (path / file).write_text(json.dumps(tree))
    return "hf:./model", ", ".join(changes)


CODE_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "map only": {},
    "unknown model": {"model_type": "own"},
    "unknown tokenizer": {"tokenizer_class": "Own", "processor_class": "Own"},
    "attention": {"_attn_implementation": "./model", "attn_implementation": "own"},
    "local attention": {"_attn_implementation": "own/kernel:own"},
    "trust": {"trust_remote_code": True},
    "unknown processor": {"image_processor_type": "Own", "feature_extractor_type": "own.Own"},
    "backend": {"backend": "own", "use_fast": False, "tokenizer_file": "/dev/zero"},
}
"""Entries that name code, beside `auto_map`, for every JSON file of a folder."""


def _script(rng: Random, folder: Path, stock: Stock) -> tuple[str, str]:
    """A TorchScript file, which may be damaged, and is not trusted."""
    path = folder / f"model{rng.choice(('.pt', '.pth', '.ts', '.torchscript'))}"
    source = stock.path("script.pt")
    if not source.exists():
        torch.jit.save(torch.jit.trace(net().eval(), torch.zeros(1, 3, 32, 32)), source)
    content, note = source.read_bytes(), "whole"
    if rng.random() < 0.7:
        content, note = damaged_bytes(rng, content)
    path.write_bytes(content)
    return path.name, note


def _other_names(rng: Random, folder: Path, _: Stock) -> tuple[str, str]:
    """Names of other packages' models, with a file that runs code if the package opens it."""
    activation = f"__import__('pathlib').Path({str(folder / MARK)!r}).touch()"
    (folder / "net.yaml").write_text(
        f"nc: 2\nactivation: {json.dumps(activation)}\nscales:\n  n: [1, 1, 8]\n"
        "backbone:\n  - [-1, 1, Conv, [8, 3, 2]]\nhead:\n  - [-1, 1, Classify, [nc]]\n"
    )
    (folder / "net.pt").write_bytes(pickle.dumps(Payload(folder / MARK)))
    prefix = rng.choice(("ultralytics:", "ultralytics:", "", "timm:", "hf:"))
    name = rng.choice(("net.yaml", "net.pt", "./net.yaml", "", "..", ".", "pipe", "folder", "\0"))
    return prefix + name, ""


FOLDERS: Mapping[str, Callable[[Random, Path, Stock], tuple[str, str]]] = {
    "TOML": _toml,
    "TOML again": _toml,
    "JSON beside": _json_beside,
    "Hugging Face": _model_folder,
    "Hugging Face again": _model_folder,
    "Hugging Face with code": _code_folder,
    "TorchScript": _script,
    "other packages": _other_names,
}
"""Writes a model with what lies beside it; returns its name, and what was done."""
