"""
A row of a table
================

Features are removed one by one. The bars say what each speaks for.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dmbp

torch.manual_seed(0)
names = ["age", "weight", "height", "pressure", "a random number"]
patients = torch.randn(600, len(names))
at_risk = (0.9 * patients[:, 0] + 1.4 * patients[:, 3] - 0.5 * patients[:, 2] > 0.3).long()

network = nn.Sequential(nn.Linear(len(names), 24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.Adam(network.parameters(), 1e-2)
for _ in range(200):
    loss = cross_entropy(network(patients), at_risk)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
network.eval()

patient = torch.tensor([[1.1, 0.2, 0.9, 1.3, -0.4]])
d = dmbp.DMBP(network).explain(patient, target=1)
figure = d.figure(target_captions=["at risk"], names=names)
