"""
A signal: which beat is wrong?
==============================

A small network learns to tell regular rhythms from those with one early beat. The evidence is where
the rhythm breaks.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dmbp

torch.manual_seed(0)
LENGTH = 240


def rhythm(early: bool) -> torch.Tensor:
    """Beats every 30 moments; if `early`, one comes 12 moments too soon."""
    signal = 0.08 * torch.randn(1, LENGTH)
    beats = torch.arange(15, LENGTH, 30)
    if early:
        beats[torch.randint(2, 6, ())] -= 12
    moments = torch.arange(LENGTH)
    for beat in beats:
        signal += torch.exp(-(((moments - beat) / 2.5) ** 2))
    return signal


network = nn.Sequential(
    nn.Conv1d(1, 12, 25, 2), nn.ReLU(), nn.Conv1d(12, 16, 15, 2), nn.ReLU(),
    nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 2),
)  # fmt: skip
optimizer = torch.optim.Adam(network.parameters(), 5e-3)
for _ in range(150):
    labels = torch.randint(0, 2, (32,))
    signals = torch.stack([rhythm(bool(label)) for label in labels])
    loss = cross_entropy(network(signals), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
network.eval()

# %%
# One signal with an early beat, explained for the class "early":

torch.manual_seed(5)
d = dmbp.DMBP(network, window=0.1).explain(rhythm(early=True)[None], target=1)
figure = d.figure(target_captions=["an early beat"], names=["lead I"])
