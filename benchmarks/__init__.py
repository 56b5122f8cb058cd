"""Measurements, each with a command of its own; no test depends on a clock."""
