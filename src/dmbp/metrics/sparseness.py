"""Sparseness: whether a map concentrates on few pixels, as a Gini index.

    Σ_i (2i − n − 1) a_i / (n Σ a),    where a are the n absolute values in increasing order

0 means that all pixels count the same, and 1 − 1/n that a single one counts. It describes a map and
says nothing about the network: the same map of another network has the same sparseness.

    >>> maps = torch.zeros(1, 1, 2, 2)
    >>> maps[0, 0, 1, 1] = -3.0
    >>> sparseness(maps).tolist()
    [0.75]

Chalasani, Chen, Chowdhury, Wu and Jha, "Concise Explanations of Neural Networks using Adversarial
Training", ICML 2020; Hurley and Rickard, "Comparing Measures of Sparsity", IEEE TIT 2009.
"""

import torch
from torch import Tensor

from dmbp.devices import in_float64
from dmbp.metrics.insertion import check_maps, sum_of_channels


def sparseness(attribution: Tensor) -> Tensor:
    """Return the Gini index of the absolute values of each map, summed over channels.

    Args:
        attribution: Maps (images, channels, height, width), those of signals or volumes, or
            (vectors, features).

    Returns:
        The indices (images,), from 0 to 1; 0 for a map of zeros.

    Raises:
        InputError: If a map contains NaN or infinity.
    """
    check_maps(attribution, attribution)
    values = in_float64(sum_of_channels(attribution).flatten(1)).abs().sort(1).values
    count = values.shape[1]
    weights = 2 * torch.arange(1, count + 1, device=values.device) - count - 1
    total = values.sum(1)
    return torch.where(total > 0, (values * weights).sum(1) / (count * total), 0.0)
