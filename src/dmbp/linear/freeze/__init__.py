"""Freezes a captured graph at an input, and checks that it still equals the model.

- `freeze`: freezes the graph at x, and `check_exactness` compares it with the model's output;
- `secants`: joins the networks frozen at an input and at a baseline into one that is exact at both,
  for DeepLift.
"""
