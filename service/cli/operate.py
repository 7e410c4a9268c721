"""Running it: up, serve, worker."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from service.config import settings
from service.store import schema

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on.")]


def up(host: Host = None, port: Port = None) -> None:
    """Run everything on this machine: broker, dashboard, workers. Ctrl-C ends it."""
    from service.up import main

    set_address(host, port)
    raise typer.Exit(main())


def serve(host: Host = None, port: Port = None) -> None:
    """Run the dashboard and the REST interface only."""
    from service.up import check_port, web_command

    set_address(host, port)
    schema.upgrade()
    check_port(settings().host, settings().port)
    command = web_command(settings().host, settings().port)
    os.execv(command[0], command)  # noqa: S606  our own command, without a shell


def worker(
    queue: Annotated[str, typer.Option(help="gpu: runs blocks. control: decides.")] = "gpu",
    slot: Annotated[str | None, typer.Option(help="Name of the slot to run blocks in.")] = None,
) -> None:
    """Run one worker against the configured broker and database."""
    from service.up import beat_command, worker_command

    if slot is not None:
        os.environ["LIKEWISE_SLOT"] = slot
        settings.cache_clear()
    command = beat_command() if queue == "beat" else worker_command(queue, f"{queue}{settings().slot}")
    print(f"worker for {queue} on {settings().effective_broker_url}", file=sys.stderr, flush=True)
    os.execv(command[0], command)  # noqa: S606  our own command, without a shell


def set_address(host: str | None, port: int | None) -> None:
    """Let options win over the environment, for this process and its children."""
    if host is not None:
        os.environ["LIKEWISE_HOST"] = host
    if port is not None:
        os.environ["LIKEWISE_PORT"] = str(port)
    settings.cache_clear()
