"""Sums in single precision, and the caller's switches as they were."""

from typing import Any

import pytest
import torch

from dmbp.engine.gpu.half_precision import float32_accumulation

MATMUL: Any = torch.backends.cuda.matmul
HALVES = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


def switches() -> list[bool]:
    names = (*HALVES, *(f"{name}_split_k" for name in HALVES), "allow_fp16_accumulation")
    return [getattr(MATMUL, name) for name in names] + [torch.backends.cudnn.allow_tf32]


@pytest.mark.parametrize("given", [True, False, (False, False)])
def test_switches_are_as_they_were(given: Any) -> None:
    with float32_accumulation(allow_tf32=False):  # which also undoes what follows
        MATMUL.allow_fp16_reduced_precision_reduction = given
        MATMUL.allow_fp16_accumulation = given is True
        before = switches()
        with pytest.raises(KeyError):
            _stumble()
        assert switches() == before


def _stumble() -> None:
    with float32_accumulation(allow_tf32=True):
        assert not any(getattr(MATMUL, name) for name in HALVES)
        assert not MATMUL.allow_fp16_accumulation
        assert torch.backends.cudnn.allow_tf32
        raise KeyError
