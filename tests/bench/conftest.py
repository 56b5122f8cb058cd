"""Six photos of two classes and a plan for them, with a tiny model."""

import random
from pathlib import Path

import pytest
from PIL import Image

PLAN = """
methods = ["gradient", "gradcam", "random"]

[[tasks]]
name = "VOC/RN50"
dataset = "folder"
path = "photos"
model = "tests.bench.tiny:tiny"
metrics = ["IM", "deletion"]
steps = 4
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Six photos of two classes, noise of different sizes, and a plan for them."""
    for index in range(6):
        path = tmp_path / "photos" / ("cat", "dog")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = random.Random(index)
        image = Image.new("RGB", (40 + index, 50))
        image.putdata([(noise.randrange(256),) * 3 for _ in range((40 + index) * 50)])
        image.save(path)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"
