"""Small networks of tokens, windows and stages, with the layer that GradCAM should take.

Each row says by hand how that layer's output becomes a map (rows, channel, height, width).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dmbp.models.torchvision_models import import_torchvision

CLASSES = 5


@dataclass(frozen=True)
class TokenNetwork:
    """A network, the side or sides of its images, and its last stage: name, size and layout."""

    make: Callable[[], nn.Module]
    image: tuple[int, int]
    layer: str
    grid: tuple[int, int]
    lay_out: Callable[[Tensor], Tensor]

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        model = self.make()
        for name, parameter in model.named_parameters():  # scales that start near zero hide blocks
            if parameter.abs().max() < 1e-3 and not name.endswith("bias"):
                nn.init.normal_(parameter, 0.0, 0.5)
        return model.double().train().eval()  # LeViT caches values until its mode changes

    def images(self, rows: int = 2) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randn(rows, 3, *self.image, dtype=torch.float64, generator=generator)


def tokens(grid: tuple[int, int], skip: int = 0) -> Callable[[Tensor], Tensor]:
    """A sequence (rows, tokens, channel) behind `skip` other tokens."""
    return lambda output: output[:, skip:].transpose(1, 2).unflatten(2, grid)


def channels_last(output: Tensor) -> Tensor:
    return output.permute(0, 3, 1, 2)


def channels_first(output: Tensor) -> Tensor:
    return output


def timm_models() -> Any:
    import_torchvision()
    import timm.models

    return timm.models


def torchvision_models() -> Any:
    return import_torchvision().models


SMALL: Mapping[str, Any] = {"num_classes": CLASSES, "embed_dim": 24, "num_heads": 3}
WINDOWS: Mapping[str, Any] = {
    "img_size": 32,
    "patch_size": 2,
    "window_size": 4,
    "num_classes": CLASSES,
    "embed_dim": 12,
    "depths": (2, 1),
    "num_heads": (2, 2),
}


def vit(image: tuple[int, int] = (32, 48), **options: Any) -> nn.Module:
    options = {"depth": 3, "patch_size": 8, **SMALL, **options}
    return timm_models().VisionTransformer(img_size=image, **options)


def deit_distilled() -> nn.Module:
    return timm_models().deit.VisionTransformerDistilled(
        img_size=32, patch_size=8, depth=3, **SMALL
    )


def torchvision_vit() -> nn.Module:
    return torchvision_models().VisionTransformer(
        image_size=32, patch_size=8, num_layers=3, num_heads=2, hidden_dim=24, mlp_dim=48,
        num_classes=CLASSES,
    )  # fmt: skip


def cait() -> nn.Module:
    return timm_models().Cait(img_size=32, patch_size=8, depth=2, **SMALL)


def xcit() -> nn.Module:
    return timm_models().Xcit(img_size=32, patch_size=8, depth=2, cls_attn_layers=2, **SMALL)


def torchvision_swin() -> nn.Module:
    return torchvision_models().SwinTransformer(
        patch_size=[2, 2], embed_dim=12, depths=[2, 1], num_heads=[2, 2], window_size=[4, 4],
        num_classes=CLASSES,
    )  # fmt: skip


def pvt() -> nn.Module:
    return timm_models().PyramidVisionTransformerV2(
        depths=(1, 1, 1, 1), embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4),
        mlp_ratios=(2, 2, 2, 2), num_classes=CLASSES,
    )  # fmt: skip


def levit() -> nn.Module:
    return timm_models().Levit(
        img_size=128, embed_dim=(16, 24, 32), key_dim=8, depth=(1, 1, 1), num_heads=(2, 3, 4),
        num_classes=CLASSES,
    )  # fmt: skip


def maxvit() -> nn.Module:
    return torchvision_models().MaxVit(
        input_size=(32, 32), stem_channels=8, partition_size=2, block_channels=[8],
        block_layers=[1], head_dim=4, stochastic_depth_prob=0.0, num_classes=CLASSES,
    )  # fmt: skip


def mobilevit() -> nn.Module:
    byobnet = timm_models().byobnet
    attention = byobnet.ByoBlockCfg(
        type="mobilevit", d=1, c=16, s=1,
        block_kwargs={
            "transformer_dim": 16, "transformer_depth": 1, "num_heads": 2, "patch_size": 2,
        },
    )  # fmt: skip
    convolution = byobnet.ByoBlockCfg(type="bottle", d=1, c=16, s=2, gs=1, br=1.0)
    settings = byobnet.ByoModelCfg(
        blocks=((convolution, attention), (convolution, attention)), stem_chs=8, stem_type="3x3"
    )
    return byobnet.ByobNet(settings, num_classes=CLASSES)


def convnext() -> nn.Module:
    return timm_models().ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=CLASSES)


def hiera() -> nn.Module:
    return timm_models().Hiera(
        img_size=(64, 96), embed_dim=8, num_heads=1, stages=(1, 1, 1), q_pool=1,
        mask_unit_size=(4, 4), num_classes=CLASSES,
    )  # fmt: skip


def unrolled(output: Tensor) -> Tensor:
    """Hiera's order after one pooling: 2 × 2 places of the lowest level, inside units of them."""
    quarters = output.unflatten(1, (2, 2, 4, 6)).permute(0, 5, 3, 1, 4, 2)
    return quarters.flatten(4, 5).flatten(2, 3)


TOKEN_NETWORKS: Mapping[str, TokenNetwork] = {
    "vit": TokenNetwork(vit, (32, 48), "blocks.1", (4, 6), tokens((4, 6), 1)),
    "vit, mean of patches": TokenNetwork(
        lambda: vit(global_pool="avg", fc_norm=False), (32, 48), "norm", (4, 6), tokens((4, 6), 1)
    ),
    "vit of torchvision": TokenNetwork(
        torchvision_vit, (32, 32), "encoder.layers.encoder_layer_1", (4, 4), tokens((4, 4), 1)
    ),
    "deit, distilled": TokenNetwork(
        deit_distilled, (32, 32), "blocks.1", (4, 4), tokens((4, 4), 2)
    ),
    "dinov2, registers": TokenNetwork(
        lambda: vit(reg_tokens=4, no_embed_class=True, init_values=1e-5),
        (32, 48), "blocks.1", (4, 6), tokens((4, 6), 5),
    ),
    "cait": TokenNetwork(cait, (32, 32), "blocks", (4, 4), tokens((4, 4))),
    "xcit": TokenNetwork(xcit, (32, 32), "cls_attn_blocks.0", (4, 4), tokens((4, 4), 1)),
    "swin of timm": TokenNetwork(
        lambda: timm_models().SwinTransformer(**WINDOWS), (32, 32), "norm", (8, 8), channels_last
    ),
    "swin of torchvision": TokenNetwork(
        torchvision_swin, (48, 32), "norm", (12, 8), channels_last
    ),
    "swin v2": TokenNetwork(
        lambda: timm_models().SwinTransformerV2(**WINDOWS), (32, 32), "norm", (8, 8), channels_last
    ),
    "mixer": TokenNetwork(
        lambda: timm_models().MlpMixer(
            img_size=32, patch_size=8, num_blocks=2, embed_dim=24, num_classes=CLASSES
        ),
        (32, 32), "norm", (4, 4), tokens((4, 4)),
    ),
    "pvt v2": TokenNetwork(pvt, (64, 96), "stages", (2, 3), channels_first),
    "levit": TokenNetwork(levit, (128, 128), "stages", (2, 2), tokens((2, 2))),
    "maxvit": TokenNetwork(maxvit, (32, 32), "blocks", (8, 8), channels_first),
    "mobilevit": TokenNetwork(mobilevit, (64, 96), "stages", (4, 6), channels_first),
    "convnext": TokenNetwork(convnext, (64, 96), "stages", (2, 3), channels_first),
    "hiera": TokenNetwork(hiera, (64, 96), "blocks", (8, 12), unrolled),
}  # fmt: skip
