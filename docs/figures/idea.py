"""A network is affine around a point; and how the three terms of a score part while masks learn.

python docs/figures/idea.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn

import dmbp
from dmbp.data import sample_photos
from dmbp.models import load_model

IMAGES = Path(__file__).parent.parent / "images"


def draw() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    torch.manual_seed(4)
    network = nn.Sequential(
        nn.Linear(1, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1)
    )
    for parameter in network.parameters():
        parameter.data *= 2.5  # so that gates open and close
    network.eval()
    x = torch.linspace(-2, 2, 400)[:, None]
    at = torch.tensor([[-0.6]])
    net = dmbp.linearize(network, at, target=0)
    with torch.no_grad():
        y, y_at = network(x)[:, 0], network(at)[0, 0]
    line = y_at + net.pullback()[0, 0] * (x[:, 0] - at[0, 0])
    left.plot(x[:, 0], y, color="#333333", label="the network")
    left.plot(x[:, 0], line.detach(), "--", color="#b2182b", label="frozen at the dot")
    left.plot(at[0], y_at, "o", color="#b2182b")
    left.set(xlabel="input", ylabel="output", ylim=(y.min() - 0.1, y.max() + 0.1))
    left.legend(frameon=False)
    model = load_model("voc160")
    photo, _ = sample_photos()["cat"]
    images = model.preprocessing.tensor(model.preprocessing.view(photo))
    d = dmbp.DMBP(model.module, preset="fast").explain(images, target=model.classes.index("cat"))
    history = d.history
    for values, label, colour in (
        (history.positive[:, 0], "y⁺, evidence for", "#b2182b"),
        (history.negative[:, 0], "y⁻, evidence against", "#2166ac"),
        (history.nuisance[:, 0], "y~, neither", "#999999"),
    ):
        right.plot(values, color=colour, label=label)
    right.axhline(float(d.output[0]), color="#333333", lw=1, ls=":", label="the score, their sum")
    right.set(xlabel="iteration")
    right.legend(frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "idea.png", dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    draw()
