"""On a machine without a GPU the kernels run in Triton's interpreter, which must be asked for before triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# The tensors are tiny: more threads only wait for each other, the longer the busier the machine is.
torch.set_num_threads(1)
