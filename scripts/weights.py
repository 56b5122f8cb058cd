"""Read and write the default model's file of weights."""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from dmbp.models.voc160 import CLASSES, INPUT_SIZE, MEAN, STD, SmallResNet


def load_model(weights: Path) -> SmallResNet:
    """Load the default model in float32 from a file of half-precision weights."""
    model = SmallResNet()
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(weights).items()})
    return model.eval()


def write_weights(model: SmallResNet, path: Path, *, mean_average_precision: float) -> None:
    """Store convolutions and the last layer in half precision, batch norms in float32."""
    tensors = {
        name: (tensor.half() if tensor.ndim > 1 else tensor).contiguous().cpu()
        for name, tensor in model.state_dict().items()
        if tensor.is_floating_point()
    }
    metadata = {
        "architecture": "dmbp.models.voc160.SmallResNet",
        "input": f"normalised RGB, {INPUT_SIZE}x{INPUT_SIZE}",
        "output": "one logit a class, multi-label (sigmoid)",
        "classes": json.dumps(CLASSES),
        "mean": json.dumps(MEAN),
        "std": json.dumps(STD),
        "mAP": f"{mean_average_precision:.4f} (800 VOC2012 val images, mirror images averaged)",
    }
    save_file(tensors, path, metadata=metadata)
