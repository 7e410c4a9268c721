"""What every command prints with: a console, JSON, and the exit code of a verdict."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from gpu_runner.protocol import to_json
from service.domain import EXIT_CODES, Verdict

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

VERDICT_STYLES = {
    Verdict.IMPLICATED: "bold red",
    Verdict.WORSENED: "bold red",
    Verdict.EXONERATED: "bold green",
    Verdict.NOT_REPRODUCED: "bold yellow",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.NOT_LIKE_FOR_LIKE: "bold magenta",
    Verdict.TREATMENT_INERT: "bold magenta",
}


def console() -> Console:
    """Return the console of standard output; no wrapping where nobody looks at a terminal."""
    return Console(highlight=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a value of ours as one JSON document."""
    print(json.dumps(to_json(value), ensure_ascii=False, indent=2, default=_time))


def _time(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} has no form in JSON")


def exit_with(verdict: Verdict) -> typer.Exit:
    """Return the exit of a command that ended in a verdict."""
    return typer.Exit(EXIT_CODES[verdict])
