"""TorchScript modules as plain modules, which `torch.export` can capture."""
