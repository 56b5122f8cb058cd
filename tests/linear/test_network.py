"""Networks are reproduced exactly; names of sites; masks."""

import pytest
import torch
from torch import nn

import dmbp
from tests import nets
from tests.engine.networks import FAMILIES
from tests.exactness import NETWORKS, measure
from tests.tolerance import FLOAT32, FLOAT64, relative

COVERED = {*FAMILIES, "resnet50", "vgg16_bn", "mnasnet1_0"}
"""Networks that are reproduced in `tests/engine/test_cpu_engine.py`, and others that consist of the
same operations as resnext50_32x4d, vgg11 and mobilenet_v2; `benchmarks.exactness` has them all."""


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in COVERED])
def test_networks_are_reproduced(name: str) -> None:
    error, sites = measure(name, torch.float64)
    assert error <= FLOAT64
    assert sites > 0


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "functional", "in-place", "mlp"])
def test_networks_are_reproduced_in_single_precision(name: str) -> None:
    error, _ = measure(name, torch.float32)
    assert error <= FLOAT32


def test_a_reused_module_has_one_site_for_each_call() -> None:
    net = dmbp.linearize(nets.ReusedNet().eval(), torch.randn(1, 3, 8, 8), target=0)
    assert [site.name for site in net.sites] == ["relu", "relu:2", "relu:3"]
    assert net.sites[0].shape == (1, 8, 8, 8)


def test_sites_are_named_by_module_path() -> None:
    model = nn.Sequential(nets.FunctionalNet(), nn.Linear(5, 5), nn.ReLU())
    net = dmbp.linearize(model.eval(), torch.randn(1, 3, 8, 8), target=0)
    assert [site.name for site in net.sites] == ["0.relu", "0.relu:2", "0.relu:3", "2"]


def test_masks_of_one_change_nothing_and_zero_leaves_the_last_bias() -> None:
    model = nets.VGGLike().double().eval()
    net = dmbp.linearize(model, torch.randn(2, 3, 16, 16, dtype=torch.float64), target=1)
    ones = {site.name: torch.ones(site.shape, dtype=torch.float64) for site in net.sites}
    zeros = {name: torch.zeros_like(mask) for name, mask in ones.items()}
    assert torch.equal(net.value(ones), net.value())
    assert torch.equal(net.value(zeros), model.classifier[2].bias[1].expand(2))


def test_a_site_without_a_mask_is_unchanged() -> None:
    net = dmbp.linearize(nets.VGGLike().eval(), torch.randn(1, 3, 16, 16), target=1)
    first, *others = net.sites
    partial = {first.name: torch.full(first.shape, 0.5)}
    full = {**partial, **{site.name: torch.ones(site.shape) for site in others}}
    assert torch.equal(net.value(partial), net.value(full))


def test_an_unknown_site_is_refused() -> None:
    net = dmbp.linearize(nets.VGGLike().eval(), torch.randn(1, 3, 16, 16), target=1)
    with pytest.raises(dmbp.errors.InputError, match="no site named 'head'"):
        net.value({"head": torch.ones(1)})
    with pytest.raises(dmbp.errors.InputError, match=r"has shape \(1,\), its site"):
        net.value({net.sites[0].name: torch.ones(1)})


def test_every_image_keeps_its_own_gates() -> None:
    model = nets.ResidualNet().double().eval()
    inputs = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    together = dmbp.linearize(model, inputs, target=2).pullback()
    for k in range(3):
        alone = dmbp.linearize(model, inputs[k : k + 1], target=2).pullback()
        assert relative(together[k : k + 1], alone) <= FLOAT64
