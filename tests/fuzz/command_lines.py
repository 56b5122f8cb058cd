"""Command lines: random values for every option of every command, as the commands declare them."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from random import Random
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

from dmbp.cli import app
from dmbp.cli.bench import bench_app
from tests.fuzz.case import FAST, MODEL, Case, Stock
from tests.fuzz.damage import FLOATS, INTEGERS, LONG, TEXTS

ORDINARY: Mapping[str, list[str]] = {
    "explain": ["photo.png", "--model", MODEL, *FAST],
    "compare": ["photo.png", "--model", MODEL, "--methods", "gradient"],
    "sanity": ["photo.png", "--model", MODEL, "--methods", "gradient", "--draws", "1"],
    "boxes": ["photo.png", "--model", "tests.cli.networks:detector"],
    "doctor": [MODEL],
    "demo": [],
    "models": [],
    "methods": [],
    "bench run": ["plan.toml"],
    "bench status": ["--store", "store.sqlite"],
    "bench table": ["plan.toml", "--store", "store.sqlite"],
    "bench plot": ["plan.toml", "plot.png", "--store", "store.sqlite"],
    "bench export": ["rows.csv", "--store", "store.sqlite"],
    "bench merge": ["other.sqlite"],
    "bench repair": ["--store", "store.sqlite"],
}
"""Arguments with which each command works."""

SETTINGS = (
    *("rise.masks", "rise.cells", "rise.open", "smoothgrad.samples", "smoothgrad.noise"),
    *("integrated_gradients.steps", "blur_ig.steps", "blur_ig.max_sigma", "lpr.iterations"),
    *("dmbp.iterations", "dmbp.learning_rate", "dmbp.window", "dmbp.mixtures", "dmbp.contexts"),
    *("gradcam.layer", "gradcam.signed", "dmbp.smooth", "dmbp.sites", "dmbp.preset", "nosuch.x"),
)
METHODS = (
    *("dmbp", "gradcam", "rise", "smoothgrad", "integrated_gradients", "blur_ig", "lpr"),
    *("deeplift", "fullgrad", "guided_gradcam", "dmbp_pos", "random", "all,", "DMBP", ",", "x,y"),
)

USUAL: Mapping[str, Callable[[Random], list[str]]] = {
    "--model": lambda rng: ["--model", rng.choice(MODELS)],
    "--weights": lambda rng: ["--weights", rng.choice(("net.pth", "net.safetensors", "photo.png"))],
    "--classes": lambda rng: ["--classes", rng.choice(("classes.txt", "photo.png", "folder"))],
    "--target": lambda rng: ["--target", rng.choice(TARGETS)],
    "--rather-than": lambda rng: ["--rather-than", rng.choice(("dog", "rivals", "1", "cat", "7"))],
    "--device": lambda rng: ["--device", rng.choice(DEVICES)],
    "--smooth": lambda rng: ["--smooth", rng.choice(LINES)],
    "--sites": lambda rng: ["--sites", rng.choice(("*", "1", "[", "nosuch", "[!a-", ""))],
    "--methods": lambda rng: ["--methods", rng.choice(METHODS)],
    "--set": lambda rng: _setting(rng),
    "--ray": lambda rng: ["--ray", rng.choice(("", "nosuch", "127.0.0.1:1", ":", "ray://"))],
    "--shard": lambda rng: ["--shard", rng.choice(("1/2", "2/2", "0/1", "3/2", "1/0", "a/b"))],
    "--store": lambda rng: ["--store", rng.choice(("store.sqlite", "new.sqlite", "photo.png"))],
    "--plan": lambda rng: ["--plan", "plan.toml"],
    "--out": lambda rng: ["--out", rng.choice(("new", "a/b/c", "photo.png", "folder"))],
    "--workers": lambda rng: ["--workers", rng.choice(("1", "0", "-3", "1000000", "nan"))],
    "--size": lambda rng: ["--size", rng.choice(("32", "1", "40", "300", "48x192", "1024x1"))],
    "--mean": lambda rng: ["--mean", rng.choice(NUMBERS)],
    "--std": lambda rng: ["--std", rng.choice(NUMBERS)],
    "--bands": lambda rng: ["--bands", rng.choice(("1", "3,2,1", "0,1,2", "1,2", "99999999", ","))],
    "--hold": lambda rng: ["--hold", rng.choice(("x=1", "x=a.npy", "images=photo.png", "=", "x="))],
    "--prompt": lambda rng: ["--prompt", rng.choice(("a cat", "", "🐈" * 999))],
}
"""Values that are right, or nearly so, by option."""

MODELS = (
    *("net.pt2", "dynamic.pt2", "net.onnx", "dynamic.onnx", MODEL, "tests.cli.networks:smooth"),
    *("tests.cli.networks:grey", "tests.cli.networks:yes_no", "tests.cli.networks:affine"),
    *("tests.cli.networks:segmenter", "tests.cli.networks:constant", "tests.cli.networks:double"),
    *("tests.cli.networks:poisoned", "tests.cli.networks:spectral", "tests.cli.networks:branching"),
    *("tests.cli.networks:several", "tests.cli.networks:nosuch", "nosuch:x", ":", "a:", "net.pth"),
    *("photo.png", "timm:", "timm:nosuch", "resnet999", "os:getcwd", "sys:exit", "folder.onnx"),
)
TARGETS = (
    *("cat", "0", "2", "3", "-1", "CAT", "rivals", "class:cat", "box:0", "box:dog", "value:1"),
    *("region:cat@box=1,1,9,9", "margin:cat>dog", "step:#0", "similarity:image=photo.png"),
)
NUMBERS = ("0.5,0.5,0.5", "0", "1,2", "1e999", "nan,0,0", "0,0,0", "1,2,3,4", ",", "104,117,123")
SLOW = ("--gif", "--ray")
"""Options that take seconds, and are tried less often."""

UNUSABLE = ("photo.png", "loop", "pipe", "/dev/null/x", LONG, "a\0b", "photo.png/x")
"""Folders that cannot be written to. `dmbp demo` gets no other, because it takes half a minute."""

DEVICES = ("cpu", "cuda", "cuda:0", "cuda:99999999999", "mps", "meta", "cpu:1", "xla", "hpu", "")
LINES = ("tangent", "secant", "pieces:4", "pieces:0", "pieces:99999999", "pieces:4:nan", "pieces:")


def _setting(rng: Random) -> list[str]:
    name = rng.choice(SETTINGS)
    method = name.partition(".")[0]
    values = [*map(str, INTEGERS), *map(str, FLOATS), *TEXTS, "3", "0.5", "[1]", "None", "'x'"]
    return ["--methods", method, "--set", f"{name}={rng.choice(values)}"]


def make_option_case(rng: Random, folder: Path, stock: Stock) -> Case:
    """Return an ordinary command with one to four options added, any of them odd."""
    for name in ("photo.png", "net.pth", "net.safetensors", "net.pt2", "dynamic.pt2", "net.onnx"):
        shutil.copy(stock.path(name), folder)
    for name in ("dynamic.onnx", "classes.txt", "plan.toml", "store.sqlite"):
        shutil.copy(stock.path(name), folder)
    shutil.copy(stock.path("store.sqlite"), folder / "other.sqlite")
    shutil.copytree(stock.path("photos"), folder / "photos")
    weights = [1 + len(declared(name)) for name in ORDINARY]
    (command,) = rng.choices(list(ORDINARY), weights)
    if command == "demo":
        return Case(["demo", "--out", rng.choice(UNUSABLE)], "a folder that cannot be written to")
    arguments = list(ORDINARY[command])
    if rng.random() < 0.1:  # an odd positional argument, or none
        arguments[:1] = rng.choice(([], [rng.choice(TEXTS)]))
    added = [_option(rng, option) for option in _some(rng, command)]
    words = [word for pair in added for word in pair]
    if "rise" in words and not any(word.startswith("rise.masks") for word in words):
        words += ["--set", "rise.masks=200"]  # thousands take minutes, as the command says
    return Case([*command.split(), *arguments, *words], " ".join(words)[:80])


@dataclass(frozen=True)
class Option:
    """An option as a command declares it."""

    name: str
    kind: type

    @property
    def values(self) -> list[str]:
        """The values that the command names itself, such as `png` and `svg`."""
        return [str(one.value) for one in self.kind] if issubclass(self.kind, StrEnum) else []


def _some(rng: Random, command: str) -> list[Option]:
    options = [
        option for option in declared(command) if option.name not in SLOW or rng.random() < 0.1
    ]
    return rng.sample(options, min(len(options), rng.choice((1, 1, 2, 3, 4))))


@cache
def declared(command: str) -> list[Option]:
    """Return the options that a command declares."""
    group, _, name = command.rpartition(" ")
    commands = (bench_app if group else app).registered_commands
    functions = [one.callback for one in commands if name in (one.name, _name_of(one.callback))]
    hints = get_type_hints(functions[0], include_extras=True)
    return [option for name, hint in hints.items() if (option := _declared(name, hint)) is not None]


def _name_of(function: Any) -> str:
    return function.__name__.replace("_", "-")


def _declared(name: str, hint: Any) -> Option | None:
    kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    option = next((item for item in metadata if isinstance(item, OptionInfo)), None)
    if option is None:
        return None
    while get_args(kind):  # list[str] | None
        kind = get_args(kind)[0]
    names = [option.default, *(option.param_decls or ())]  # an annotation has names in both places
    own = [one for one in names if isinstance(one, str) and one.startswith("--")]
    return Option(own[0] if own else f"--{name.replace('_', '-')}", kind)


def _option(rng: Random, option: Option) -> list[str]:
    if option.kind is bool:
        return [option.name]
    if option.name in USUAL and rng.random() < 0.6:
        return USUAL[option.name](rng)
    if option.values and rng.random() < 0.8:
        return [option.name, rng.choice(option.values)]
    numbers = [*map(str, INTEGERS), *map(str, FLOATS), "1e20", "0x10", "1_000", "٣", "3", "0.3"]
    is_number = option.kind in (int, float) and rng.random() < 0.8
    return [option.name, rng.choice(numbers if is_number else TEXTS)]
