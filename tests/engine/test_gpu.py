import os
os.environ["TRITON_INTERPRET"] = "1"
import pytest, torch
from torch import nn
from dmbp.decompose.initialisation import initial_logits
from dmbp.decompose.objective import OBJECTIVES
from dmbp.engine import ReferenceEngine
from dmbp.engine.gpu import GpuEngine
from tests import nets
from tests.engine.test_fast import network, inputs_of, Mixed, SMALL
from tests.tolerance import relative

class Pools(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1); self.b = nn.Conv2d(8, 12, 3, padding=1); self.c = nn.Conv2d(12, 5, 3)
        self.d = nn.Conv2d(5, 5, 1)
    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.a(x)), 3, 2, 1)
        x = nn.functional.max_pool2d(torch.relu(self.b(x)), 3, 2, 0)
        x = nn.functional.max_pool2d(torch.relu(self.c(torch.nn.functional.pad(x,(2,2,2,2)))), 2)
        return torch.relu(self.d(x)).mean((2, 3))

@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("model", [*SMALL, Mixed, Pools])
def test_agrees(model, objective):
    torch.manual_seed(0)
    net = network(model(), inputs_of(model, torch.float32))
    logits = initial_logits(net)
    a = ReferenceEngine(net, logits, loss=OBJECTIVES[objective], learning_rate=.05)
    b = GpuEngine(net, logits, loss=OBJECTIVES[objective], learning_rate=.05, dtype=torch.float32)
    for _ in range(5):
        e, f = a.step(), b.step()
        assert relative(f.positive, e.positive) <= 1e-5
        assert relative(f.negative, e.negative) <= 1e-5
    ra, rb = a.readout(), b.readout()
    assert relative(rb.positive_map, ra.positive_map) < 1e-4
