"""Running the user's model: what goes in, what comes out, and what is checked on the way.

- `wrappers`: take a model out of DataParallel or `torch.compile`, and switch it to evaluation mode;
- `signature`: the extra inputs a model takes, and which of its outputs is explained;
- `runner`: `ModelRunner`, which runs a model with both of these settled;
- `checks`: what inputs and outputs have to satisfy, and whether images are independent.
"""
