"""`likewise`: the command line. Each group of commands is a file; this one puts them together."""

from __future__ import annotations

from service.cli.main import main

__all__ = ["main"]
