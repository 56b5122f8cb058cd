"""Which networks can be explained: `python -m benchmarks.sweep`.

Captures every classification model of torchvision and a small network of each of timm's families,
with random weights and an image as small as the architecture allows, and compares the linear
network with the model in float32. `--json FILE` stores results and continues where it stopped;
`--write` copies the tables from such a file into docs/benchmarks/networks.md.
"""

import argparse
import gc
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dmbp
from dmbp.errors import DMBPError
from dmbp.models.torchvision_models import import_torchvision

SIDE = 64
TORCHVISION_SIDES = {"inception_v3": 96, "maxvit_t": 224, "vit_h_14": 56}
LARGER = (128, 224, 256)
"""Image sizes to try if a network does not accept smaller ones."""

_FAMILIES = """
    beit_base_patch16_224 botnet26t_256 gcresnet33ts cait_xxs24_224 coat_lite_tiny
    convit_tiny convmixer_768_32 convnext_atto convnextv2_atto cpubone_nano crossvit_9_240
    csatv2 cs3darknet_s davit_tiny deit_tiny_patch16_224 densenetblur121d dla34 dpn68
    edgenext_xx_small efficientformer_l1 efficientformerv2_s0 efficientnet_b0
    efficientvim_m1 efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224 fasternet_t0
    fastvit_t8 focalnet_tiny_srf gcvit_xxtiny ghostnetv2_100 hardcorenas_a hgnetv2_b0
    hiera_tiny_224 hrnet_w18_small iformer_t inception_next_atto inception_resnet_v2
    inception_v4 lcnetv2_small levit_128s lowformer_b0 mambaout_femto coatnet_pico_rw_224
    maxvit_rmlp_pico_rw_256 poolformerv2_s12 caformer_s18 mixer_s32_224 gmlp_ti16_224
    resmlp_12_224 mobilenetv3_small_050 mobilenetv4_conv_small mobilevit_xxs mobilevitv2_050
    mvitv2_tiny nasnetalarge nest_tiny nextvit_small nf_regnet_b0 dm_nfnet_f0 pit_ti_224
    pvt_v2_b0 rdnet_tiny regnety_002 repghostnet_050 repvit_m0_9 res2net50_14w_8s resnest14d
    resnet18d ecaresnet26t resnetv2_50 rexnet_100 selecsls42 legacy_seresnet18 sequencer2d_s
    shvit_s1 skresnet18 starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224
    swinv2_tiny_window8_256 swinv2_cr_tiny_224 tiny_vit_5m_224 tnt_s_patch16_224 tresnet_m
    twins_svt_small vgg11 visformer_tiny vit_tiny_patch16_224 vit_small_resnet26d_224
    vit_relpos_small_patch16_224 samvit_base_patch16_224 vitamin_small_224 volo_d1_224
    ese_vovnet19b_dw xception41 xcit_nano_12_p16_224 halonet26t lambda_resnet26t
    efficientnet_b0_gn tf_efficientnet_cc_b0_4e
"""
FAMILIES = _FAMILIES.split()
"""A small network of every family of timm; a family is a file there."""

NEARLY_ZERO = 1e-3

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks" / "networks.md"
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
    """Return a model and the smallest image tried that it accepts."""
    import_torchvision()
    import timm

    for options in ({"img_size": LARGER[0]}, {}):
        try:
            model = timm.create_model(name, **options).eval()
        except Exception:  # it has no such option, or does not accept that size
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
    """Randomise weights and scales that start near zero, and batch-norm statistics.

    Near zero, they would hide whole branches.
    """
    for name, parameter in model.named_parameters():
        if parameter.abs().max() < NEARLY_ZERO and not name.endswith("bias"):
            is_matrix = sum(size > 1 for size in parameter.shape) > 1
            nn.init.normal_(parameter, 0.0, 0.02 if is_matrix else 0.5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    model.train().eval()  # LeViT caches values computed from its weights until its mode changes


def measure(name: str, make: Make) -> Row:
    """Return the error of one network, or why it is refused."""
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
    "timm": (lambda: FAMILIES, timm_model),
}


def sweep(source: str, known: list[Row]) -> Iterator[Row]:
    """Measure the networks of a source that are not known yet."""
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
        f"{len(captured)} of {len(rows)} networks of {source} can be explained. "
        f"The largest error is {worst:.1e}."
    )


def page(rows: list[Row]) -> str:
    """Return the tables as Markdown."""
    text = [
        "# Networks that can be explained",
        f"*Version {dmbp.__version__}, measured on {date.today():%d %B %Y}.*",
    ]
    found = {source: [row for row in rows if row["source"] == source] for source in SOURCES}
    found = {source: own for source, own in found.items() if own}
    text += [summary(source, own) for source, own in found.items()]
    text += [
        "**How it was measured.** Each network has random weights and gets one float32 image, as "
        "small as the architecture allows. Of timm, there is a small network of each family. A "
        "network can be explained if dmbp captures it as a linear network whose gradient at the "
        "image is not zero. The error is the largest difference between the outputs of the linear"
        " network and of the model, divided by the model's largest output. Sites are the "
        "activations that can carry a mask.",
        "`python -m benchmarks.sweep --json sweep.json --write` generates this page.",
    ]
    for source, own in found.items():
        text += [f"## {source}", "\n".join([HEAD, *map(line, own)])]
    return "\n\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for source in SOURCES:
        parser.add_argument(f"--{source}", action="store_true", help=f"only {source}")
    parser.add_argument("--json", type=Path, help="store results here, and continue from them")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/networks.md")
    options = parser.parse_args()
    kept = options.json is not None and options.json.exists()
    rows: list[Row] = json.loads(options.json.read_text()) if kept else []
    chosen = [source for source in SOURCES if getattr(options, source)] or list(SOURCES)
    warnings.simplefilter("ignore")  # other packages warn about their own models
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
