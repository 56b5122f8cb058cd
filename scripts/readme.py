"""Run a README's Python on a photo and a network made by code.

Used by `scripts/check_wheel.sh`: `python scripts/readme.py README.md`.
"""

import re
import sys
from pathlib import Path

import numpy
import torch
from PIL import Image


def main() -> None:
    blocks = re.findall(r"```python\n(.*?)```", Path(sys.argv[1]).read_text("utf-8"), re.DOTALL)
    pixels = numpy.random.default_rng(0).integers(0, 256, (160, 160, 3), numpy.uint8)
    Image.fromarray(pixels).save("photo.jpg")
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(300)
    ).eval()
    images = torch.randn(1, 3, 16, 16)
    model(images)
    names = {"model": model, "images": images}
    for block in blocks:
        exec(compile(block, sys.argv[1], "exec"), names)
    assert names["maps"].shape == images.shape
    print(
        f"{len(blocks)} block of the README ran; cat.png has {Path('cat.png').stat().st_size} bytes"
    )


if __name__ == "__main__":
    main()
