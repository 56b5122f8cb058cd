"""Writes judged questions as files that a plan can read, each with the mask of its shape A."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy
from PIL import Image

from benchmarks.planted.images import render
from benchmarks.planted.questions import Question


def export(judged: Sequence[Question], folder: Path) -> None:
    """Write an image and a mask for each question, and a manifest of them, `questions.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [["file", "label", "mask"]]
    for k, question in enumerate(judged):
        names = f"image-{k:03d}.png", f"mask-{k:03d}.png"
        inside = question.masks()[0].numpy().astype(numpy.uint8) * 255
        for name, pixels in zip(names, (render(question.scene), inside), strict=True):
            Image.fromarray(pixels).save(folder / name)
        lines.append([names[0], str(question.target), names[1]])
    with (folder / "questions.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
