"""Captures a model as a graph of ATen operations that all have a freezing rule.

- `export`: exports the model with `torch.export`, decomposes operations that have no rule, and
  removes in-place operations;
- `elementwise`: derives how the result of an elementwise operation depends on one activation;
- `composite`: uses that to find activations that a model writes out, such as
  `x * torch.sigmoid(x)`, and replaces each by a single operation;
- `cache`: keeps captured graphs for later processes, in the format of `graph_file`.
"""
