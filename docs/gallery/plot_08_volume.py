"""
A volume: which ball?
=====================

A scan with two balls, and a network that adds up what is bright and round. The picture shows slices
through the strongest evidence.
"""

import torch
from torch import nn

import dmbp

torch.manual_seed(0)
z, y, x = torch.meshgrid(torch.arange(20), torch.arange(24), torch.arange(28), indexing="ij")
scan = 0.2 * torch.randn(1, 1, 20, 24, 28)
scan += 2.0 * ((z - 8) ** 2 + (y - 9) ** 2 + (x - 18) ** 2 < 12)
scan += 0.8 * ((z - 12) ** 2 + (y - 16) ** 2 + (x - 7) ** 2 < 12)

network = nn.Sequential(nn.Conv3d(1, 1, 5), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten())
network[0].weight.data.fill_(1 / 125)
network[0].bias.data.fill_(-0.4)
network.append(nn.Linear(1, 2)).eval()
network[-1].weight.data = torch.tensor([[1.0], [20.0]])

d = dmbp.DMBP(network).explain(scan, target=1)
figure = d.figure(target_captions=["a ball"])
