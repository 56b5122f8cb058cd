"""Which layer GradCAM takes on each network: `python -m benchmarks.layers`.

Explains one random image with random weights, and prints the layer that GradCAM finds, the size of
its map, and whether the layer's own name gives the same map. `--names` picks networks, such as
`--names "timm swin_tiny_patch4_window7_224"`.
"""

import argparse
import gc
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.sweep import randomise
from dmbp.attribution.gradcam import GradCAM
from dmbp.errors import DMBPError
from dmbp.models.torchvision_models import import_torchvision

SIDE = 224
Make = Callable[[], nn.Module]


def _torchvision(name: str) -> nn.Module:
    return import_torchvision().models.get_model(name, weights=None)


def _timm(name: str, **options: Any) -> nn.Module:
    import_torchvision()
    import timm

    return timm.create_model(name, **options)


_TORCHVISION = """
    resnet18 vgg16 densenet121 efficientnet_b0 convnext_tiny vit_b_16 swin_t swin_v2_t maxvit_t
"""
_TIMM = """
    vit_tiny_patch16_224 deit_tiny_distilled_patch16_224 vit_small_patch14_reg4_dinov2
    cait_xxs24_224 xcit_nano_12_p16_224 swin_tiny_patch4_window7_224 swinv2_cr_tiny_224
    mixer_s32_224 pvt_v2_b0 levit_128s maxvit_tiny_rw_224 mobilevit_xxs convnext_atto hiera_tiny_224
"""
_OPTIONS: Mapping[str, Mapping[str, Any]] = {"vit_small_patch14_reg4_dinov2": {"img_size": SIDE}}

NETWORKS: Mapping[str, Make] = {
    **{f"torchvision {name}": partial(_torchvision, name) for name in _TORCHVISION.split()},
    **{f"timm {name}": partial(_timm, name, **_OPTIONS.get(name, {})) for name in _TIMM.split()},
}

HEAD = "| network | layer | map | by name |\n| --- | --- | --- | --- |"


def measure(name: str) -> str:
    """Return the table's row of one network."""
    torch.manual_seed(0)
    model = NETWORKS[name]()
    randomise(model)
    image = torch.randn(1, 3, SIDE, SIDE)
    cam = GradCAM(model, signed=True)
    try:
        found = cam.attribute(image, target=0)
    except DMBPError as refusal:
        return f"| {name} | refused: {refusal} | | |"
    layer = cam.used_layer
    assert layer is not None
    named = GradCAM(model, layer=layer.name, signed=True)
    named.linearizer.share_captures(cam.linearizer)
    same = "same" if torch.equal(named.attribute(image, target=0), found) else "differs"
    return f"| {name} | `{layer.name}` | {' × '.join(map(str, layer.size))} | {same} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="timm|torch")
    print(HEAD)
    for name in options.names:
        print(measure(name), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
