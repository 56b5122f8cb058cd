"""Attribution methods: one file each."""

from dmbp.attribution.dmbp import DMBP

__all__ = ["DMBP"]
