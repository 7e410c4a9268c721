"""The tiny model of the engine tests, and prompts for it."""

from functools import cache

import torch

from gpu_runner.gdn.model import Model
from gpu_runner.gdn.suite.kl_flows import tiny_model


@cache
def float32_model(dtype: str = "float32") -> Model:
    torch.set_num_threads(1)
    return tiny_model(dtype=getattr(torch, dtype), initializer_range=0.2)


def prompt_of(length: int) -> list[int]:
    return torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(length)).tolist()
