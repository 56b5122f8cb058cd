"""Metrics: whether an attribution says what the model really uses."""

from dmbp.metrics.insertion import area, inserted, insertion, insertion_curve, pixel_ranks

__all__ = ["area", "inserted", "insertion", "insertion_curve", "pixel_ranks"]
