"""Capturing a model as a graph of ATen operations that all have a freezing rule."""
