"""Logits and greedy tokens of our stack against Hugging Face transformers, on tiny random checkpoints in float32."""

import warnings
from pathlib import Path

import pytest
import torch

from gpu_runner.gdn.config import Family
from gpu_runner.gdn.loader import load_checkpoint
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.sequence import Sequence
from gpu_runner.gdn.tiny import random_tensors, tiny_config, write_checkpoint

LENGTHS = [1, 63, 64, 65, 150]
NEW_TOKENS = 6
ATOL = 2e-5


@pytest.fixture(scope="module", params=list(Family))
def pair(request, tmp_path_factory):
    """(our model, the transformers model) of one family, read from the same files."""
    directory: Path = tmp_path_factory.mktemp(str(request.param))
    heads = 3 if request.param is Family.QWEN3_5 else 2
    # Larger weights amplify rounding: at 0.2 transformers itself is 1e-4 away from its own float64 result.
    config = tiny_config(request.param, value_heads_per_key_head=heads, initializer_range=0.05)
    write_checkpoint(directory, config, random_tensors(config, seed=7))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_HUB_OFFLINE", "1")
            import transformers

            transformers.logging.set_verbosity_error()
            transformers.logging.disable_progress_bar()
            theirs = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return Model(*load_checkpoint(directory)), theirs


def prompt_of(length: int) -> list[int]:
    return torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_prompt_logits_equal_transformers(pair, length):
    ours, theirs = pair
    prompt = prompt_of(length)
    want = theirs(torch.tensor([prompt])).logits[0]
    sequence = Sequence(ours, length, OpCtx())
    got = sequence.logits(sequence.extend(prompt))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, atol=ATOL, rtol=0)


@pytest.mark.parametrize("length", LENGTHS)
@torch.no_grad()
def test_greedy_tokens_and_decode_logits_equal_transformers(pair, length):
    ours, theirs = pair
    prompt = prompt_of(length)
    out = theirs(torch.tensor([prompt]), use_cache=True)
    want_ids, want_logits = [], []
    for _ in range(NEW_TOKENS):
        logits = out.logits[0, -1]
        want_logits.append(logits)
        want_ids.append(int(logits.argmax()))
        out = theirs(torch.tensor([[want_ids[-1]]]), past_key_values=out.past_key_values, use_cache=True)
    sequence = Sequence(ours, length + NEW_TOKENS, OpCtx())
    hidden = sequence.extend(prompt)[-1:]
    got_ids, got_logits = [], []
    for _ in range(NEW_TOKENS):
        logits = sequence.logits(hidden)[0]
        got_logits.append(logits)
        got_ids.append(int(logits.argmax()))
        hidden = sequence.step(got_ids[-1])
    assert got_ids == want_ids
    torch.testing.assert_close(torch.stack(got_logits), torch.stack(want_logits), atol=ATOL, rtol=0)
