"""Freezing rules: what stands for each ATen operation in the linear network at x."""
