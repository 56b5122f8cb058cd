"""Running a model: unwrapping it, its other inputs, which of its outputs is explained."""
