"""`python -m gpu_runner.gdn generate|score|bench|doctor`: one sequence by hand.

Every result is one JSON object on standard output, which also names the faults that are on and what executed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gpu_runner.gdn import faults, registry
from gpu_runner.gdn.config import Family
from gpu_runner.gdn.counters import COUNTERS
from gpu_runner.gdn.loader import load_checkpoint
from gpu_runner.gdn.logprobs import chosen_log_probabilities
from gpu_runner.gdn.model import Model
from gpu_runner.gdn.ops.errors import RealizationError
from gpu_runner.gdn.ops.modules import is_interpreted
from gpu_runner.gdn.registry import OpCtx
from gpu_runner.gdn.sampling import SamplingParams, next_token
from gpu_runner.gdn.sequence import Sequence
from gpu_runner.gdn.spec import speculate
from gpu_runner.gdn.tiny import tiny_config, tiny_model

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LARGEST_DECODE_ERROR = {"float32": 1e-3, "bfloat16": 0.5}


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 done, 1 the command failed, 2 wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        registry.check_environment()
        named = {"faults": sorted(faults.active())}
        result = options.command(options) | named
        for counter, value in faults.counters().items():
            COUNTERS.add(counter, value)
        result["counters"] = {name: n for name, n in registry.counters().items() if n}
        registry.emit_counters()
    except (RealizationError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=2))
    return 0


def generate(options: argparse.Namespace) -> dict[str, Any]:
    """Token ids that continue the prompt, greedy, sampled or speculated, with their log-probabilities.

    Log-probabilities are those of the model at temperature 1; speculation reports how many drafts were accepted
    instead.
    """
    model, ctx = _model(options), _context(options)
    prompt, count = _token_ids(options.prompt, model), options.max_new_tokens
    if options.draft_tokens:
        if options.temperature:
            raise ValueError("speculation is greedy; leave out --temperature or --draft-tokens")
        found = speculate(model, prompt, count, options.draft_tokens, ctx)
        return {
            "token_ids": found.token_ids,
            "proposed": found.proposed,
            "accepted": found.accepted,
            "passes": found.passes,
        }
    params = SamplingParams(options.temperature, options.top_p, options.seed)
    sequence = Sequence(model, len(prompt) + count, ctx)
    hidden, tokens, log_p = sequence.extend(prompt)[-1:], [], []
    for position in range(len(prompt), len(prompt) + count):
        logits = sequence.logits(hidden)
        tokens.append(next_token(logits[0], params, position))
        log_p.append(float(chosen_log_probabilities(logits, torch.tensor(tokens[-1:], device=logits.device))[0]))
        hidden = sequence.step(tokens[-1])
    return {"token_ids": tokens, "log_probabilities": _finite(log_p)}


def score(options: argparse.Namespace) -> dict[str, Any]:
    """Log-probability of each prompt token but the first, given those before it, and their sum."""
    model = _model(options)
    ids = _token_ids(options.prompt, model)
    if len(ids) < 2:
        raise ValueError("a score needs at least two tokens; the first has nothing before it")
    sequence = Sequence(model, len(ids), _context(options))
    logits = sequence.logits(sequence.extend(ids)[:-1])
    log_p = chosen_log_probabilities(logits, torch.tensor(ids[1:], device=logits.device))
    return {"log_probabilities": _finite(log_p.tolist()), "sum": float(log_p.double().sum())}


def bench(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of prefill and decode, best of `repeats`, after decode was seen to agree with prefill.

    ValueError, and no figure, where the two disagree.
    """
    model, ctx = _model(options), _context(options)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (options.tokens,), generator=generator).tolist()
    error = _decode_error(model, ids, ctx)
    if not error <= LARGEST_DECODE_ERROR[options.dtype]:
        raise ValueError(f"decode differs from prefill by {error:.1e}: nothing was timed")
    prefill, decode = [], []
    for _ in range(options.repeats):
        sequence = Sequence(model, 2 * len(ids), ctx)
        prefill.append(_timed(model, lambda held=sequence: held.extend(ids)))
        decode.append(_timed(model, lambda held=sequence: [held.step(token) for token in ids[: options.steps]]))
    return {
        "decode_error": error,
        "prefill_tokens_per_s": len(ids) / min(prefill),
        "decode_tokens_per_s": min(options.steps, len(ids)) / min(decode),
        "repeats": options.repeats,
        "device": str(model.device),
    }


def _decode_error(model: Model, ids: list[int], ctx: OpCtx) -> float:
    """Largest difference of the last logits between a prefill of all tokens and a decode step for the last."""
    whole, split = Sequence(model, len(ids), ctx), Sequence(model, len(ids), ctx)
    want = whole.logits(whole.extend(ids)[-1:])
    split.extend(ids[:-1])
    return float((split.logits(split.step(ids[-1])) - want).abs().max())


def _timed(model: Model, action: Any) -> float:
    """Seconds of `action`, the device's work included."""
    start = time.perf_counter()
    action()
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
    return time.perf_counter() - start


def doctor(options: argparse.Namespace) -> dict[str, Any]:
    """What this installation would run: versions, devices, each operator's realization, the faults that are on."""
    device = options.device
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "triton_is_interpreted": is_interpreted(),
        "cuda_devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "device": str(device),
        "realizations": {name: str(registry.select(name, {}, device)) for name in registry.OPERATORS},
        "fault_mechanisms": {str(fault): faults.MECHANISM[fault] for fault in sorted(faults.active())},
        "is_production": faults.in_production(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _model(options: argparse.Namespace) -> Model:
    dtype = DTYPES[options.dtype]
    if options.model is None:
        return tiny_model(tiny_config(Family(options.tiny)), seed=0, dtype=dtype, device=options.device)
    return Model(*load_checkpoint(options.model, dtype=dtype, device=options.device))


def _context(options: argparse.Namespace) -> OpCtx:
    return OpCtx(deterministic=options.deterministic)


def _token_ids(text: str, model: Model) -> list[int]:
    try:
        ids = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"the prompt {text!r} is not token ids with commas between them, such as 1,2,3") from None
    wrong = [token for token in ids if not 0 <= token < model.config.vocab_size]
    if wrong:
        raise ValueError(f"token ids {wrong} are outside of the vocabulary of {model.config.vocab_size}")
    return ids


def _finite(log_probabilities: list[float]) -> list[float]:
    if not all(math.isfinite(value) for value in log_probabilities):
        raise ValueError("the log-probabilities are not finite; the weights hold NaN, or the dtype is too narrow")
    return log_probabilities


def _at_least(least: int) -> Callable[[str], int]:
    """What argparse makes of a count."""

    def count(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return count


def _device(text: str) -> torch.device:
    """What argparse makes of a device: one that is here."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in {"cpu", "cuda"}:
        raise argparse.ArgumentTypeError(f"{text!r} is neither cpu nor cuda")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise argparse.ArgumentTypeError(f"{text!r} is not here: {torch.cuda.device_count()} GPUs are")
    return device


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpu_runner.gdn", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--device", type=_device, default="cuda" if torch.cuda.is_available() else "cpu")
    with_model = argparse.ArgumentParser(add_help=False, parents=[common])
    which = with_model.add_mutually_exclusive_group()
    which.add_argument("--model", type=Path, help="directory of a checkpoint with config.json and *.safetensors")
    which.add_argument("--tiny", default=str(Family.QWEN3_NEXT), choices=[str(family) for family in Family],
                       help="a tiny random model of this family, where --model is not given")  # fmt: skip
    with_model.add_argument("--dtype", default="float32", choices=list(DTYPES))
    with_model.add_argument("--deterministic", action="store_true", help="rows independent of their batch")

    command = commands.add_parser("generate", parents=[with_model], help="continue a prompt")
    command.add_argument("--prompt", required=True, help="token ids, comma-separated")
    command.add_argument("--max-new-tokens", type=_at_least(0), default=16)
    command.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    command.add_argument("--top-p", type=float, default=1.0)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--draft-tokens", type=_at_least(0), default=0, help="drafts per pass; 0: no speculation")
    command.set_defaults(command=generate)

    command = commands.add_parser("score", parents=[with_model], help="log-probabilities of given tokens")
    command.add_argument("--prompt", required=True, help="token ids, comma-separated")
    command.set_defaults(command=score)

    command = commands.add_parser("bench", parents=[with_model], help="prefill and decode speed")
    command.add_argument("--tokens", type=_at_least(2), default=256, help="length of the prefill")
    command.add_argument("--steps", type=_at_least(1), default=32, help="decode steps")
    command.add_argument("--repeats", type=_at_least(1), default=3)
    command.set_defaults(command=bench)

    command = commands.add_parser("doctor", parents=[common], help="what this installation would run")
    command.set_defaults(command=doctor)
    return parser


if __name__ == "__main__":
    sys.exit(main())
