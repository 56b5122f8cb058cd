"""Turning a model into a graph of ATen operations that all have a freezing rule."""
