"""What is of the whole process is changed by one thread at a time.

PyTorch's switches (TF32, deterministic kernels), warnings and logs are not a thread's own; a
model's mode is the model's, and `torch.export` puts tensors that hold nothing in place of its
parameters for a moment. Whoever changes one of these holds `whole_process` until all is as it was:
explanations in several threads come one after the other, each as if it were alone.
"""

from threading import RLock

whole_process = RLock()
