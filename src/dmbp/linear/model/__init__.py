"""Runs the user's model, and checks its inputs and outputs.

- `wrappers`: takes a model out of DataParallel or `torch.compile`; switches to evaluation mode;
- `torchscript`: plain modules in place of those of TorchScript, which cannot be exported;
- `signature`: the extra inputs that a model takes, and which of its outputs is explained;
- `runner`: `ModelRunner`, which runs a model with these extra inputs and returns that output;
- `checks`: checks inputs and outputs, and that the images of a batch are independent.
"""
