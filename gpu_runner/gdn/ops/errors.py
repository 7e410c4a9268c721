"""What can go wrong in an operator that is not a decline."""

from __future__ import annotations


class OperatorError(Exception):
    """An operator was called in a way that has no meaning."""


class RealizationError(OperatorError):
    """A realization or an operator was asked for that does not exist."""


class ShapeError(OperatorError):
    """Tensors do not fit together."""


class StaleScratchError(OperatorError):
    """Scratch was used after its queue had been closed."""


class KernelNotReadyError(OperatorError):
    """A kernel was launched before its module had finished loading."""
