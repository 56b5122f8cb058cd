"""Which networks can be explained: `python -m benchmarks.sweep`.

Every classification model of torchvision and one of each family of timm is captured with random
weights, at a small image where the architecture allows one, and compared with the model in float32.
`--json FILE` keeps results and goes on where it stopped; `--write` puts the tables of such a file
into docs/networks.md.
"""

import argparse
import gc
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dmbp
from benchmarks.families import FAMILIES
from dmbp.errors import DMBPError
from dmbp.models.torchvision_models import import_torchvision

SIDE = 64
TORCHVISION_SIDES = {"inception_v3": 96, "maxvit_t": 224, "vit_h_14": 56}
LARGER = (128, 224, 256)
"""Tried where a network does not take smaller images."""

NEARLY_ZERO = 1e-3

PAGE = Path(__file__).parent.parent / "docs" / "networks.md"
HEAD = "| network | image | sites | error |\n| --- | --- | --- | --- |"

Row = dict[str, Any]
Make = Callable[[str], tuple[nn.Module, Tensor]]


def torchvision_names() -> list[str]:
    models = import_torchvision().models
    return models.list_models(module=models)


def torchvision_model(name: str) -> tuple[nn.Module, Tensor]:
    side = TORCHVISION_SIDES.get(name, SIDE)
    options: dict[str, Any] = {"image_size": side} if name.startswith("vit") else {}
    if name in ("googlenet", "inception_v3"):
        options |= {"init_weights": False}
    model = import_torchvision().models.get_model(name, weights=None, **options)
    return model.eval(), torch.randn(1, 3, side, side)


def timm_model(name: str) -> tuple[nn.Module, Tensor]:
    """A model and an image as small as it takes."""
    import_torchvision()
    import timm

    for options in ({"img_size": LARGER[0]}, {}):
        try:
            model = timm.create_model(name, **options).eval()
        except Exception:  # it has no such option, or does not take that size
            continue
        own = model.default_cfg["input_size"][-1]
        sides = [LARGER[0]] if options else [SIDE, *LARGER, own]
        for side in sides:
            image = torch.randn(1, 3, side, side)
            if _runs(model, image):
                return model, image
    raise RuntimeError(f"{name} runs on no image tried")


@torch.no_grad()
def _runs(model: nn.Module, image: Tensor) -> bool:
    try:
        return bool(torch.isfinite(model(image)).all())
    except Exception:
        return False


def randomise(model: nn.Module) -> None:
    """Weights and scales that start near zero would hide whole branches; statistics as trained."""
    for name, parameter in model.named_parameters():
        if parameter.abs().max() < NEARLY_ZERO and not name.endswith("bias"):
            is_matrix = sum(size > 1 for size in parameter.shape) > 1
            nn.init.normal_(parameter, 0.0, 0.02 if is_matrix else 0.5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    model.train().eval()  # LeViT forgets there what it has kept of its weights


def measure(name: str, make: Make) -> Row:
    """The error of one network, or why it is refused."""
    torch.manual_seed(0)
    started = time.perf_counter()
    model, image = make(name)
    randomise(model)
    row: Row = {"name": name, "side": image.shape[-1]}
    try:
        net = dmbp.linearize(model, image, target=0)
        row |= {"sites": len(net.sites), "error": net.exactness}
        if not net.pullback().any():
            row = {**row, "refusal": "the linear network does not see the image"}
    except DMBPError as refusal:
        row |= {"refusal": str(refusal)}
    return row | {"seconds": round(time.perf_counter() - started, 1)}


SOURCES: Mapping[str, tuple[Callable[[], list[str]], Make]] = {
    "torchvision": (torchvision_names, torchvision_model),
    "timm": (lambda: list(FAMILIES), timm_model),
}


def sweep(source: str, known: list[Row]) -> Iterator[Row]:
    """The rows of a source that are not known yet."""
    names, make = SOURCES[source]
    done = {row["name"] for row in known if row["source"] == source}
    for name in names():
        if name not in done:
            yield {"source": source} | measure(name, make)
            gc.collect()


def line(row: Row) -> str:
    if "refusal" in row:
        return f"| {row['name']} | {row['side']} | refused | {row['refusal'].partition('. ')[0]} |"
    return f"| {row['name']} | {row['side']} | {row['sites']} | {row['error']:.1e} |"


def summary(source: str, rows: list[Row]) -> str:
    captured = [row for row in rows if "refusal" not in row]
    worst = max((row["error"] for row in captured), default=0.0)
    return (
        f"{source}: {len(captured)} of {len(rows)} networks are captured, "
        f"the largest relative error is {worst:.1e}."
    )


def page(rows: list[Row]) -> str:
    """The tables as Markdown."""
    text = [
        "# Networks that can be explained",
        "Each network has random weights and is given one float32 image, as small as the "
        "architecture allows. The error is the largest difference between the outputs of the "
        "linear network and of the model, relative to the model's largest output. The linear "
        "network's pullback is checked not to vanish. "
        "`python -m benchmarks.sweep --json sweep.json --write` generates this page.",
    ]
    for source in SOURCES:
        own = [row for row in rows if row["source"] == source]
        if own:
            text += [f"## {source}", summary(source, own), "\n".join([HEAD, *map(line, own)])]
    return "\n\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for source in SOURCES:
        parser.add_argument(f"--{source}", action="store_true", help=f"only {source}")
    parser.add_argument("--json", type=Path, help="keep results here, and go on from them")
    parser.add_argument("--write", action="store_true", help="write docs/networks.md")
    options = parser.parse_args()
    kept = options.json is not None and options.json.exists()
    rows: list[Row] = json.loads(options.json.read_text()) if kept else []
    chosen = [source for source in SOURCES if getattr(options, source)] or list(SOURCES)
    warnings.simplefilter("ignore")  # remarks of other packages about their own models
    print(HEAD)
    for source in chosen:
        for row in sweep(source, rows):
            rows.append(row)
            print(line(row), flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps(rows, indent=1))
    for source in chosen:
        print(summary(source, [row for row in rows if row["source"] == source]))
    if options.write:
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
