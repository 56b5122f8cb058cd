"""Freezing a captured graph at an input, and checking that it still equals the model."""
