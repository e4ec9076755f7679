"""Every error the engine raises on purpose. Messages are for people: they name the field and the numbers."""

from __future__ import annotations


class DraftaheadError(Exception):
    """Base of all errors below."""


class ConfigError(DraftaheadError):
    """The server cannot start as asked; the command line prints it as one line and exits with 2."""


class InvalidRequest(DraftaheadError):
    """A request that cannot be served as written.

    Args:
        message: what is wrong, with the numbers.
        param: the request field at fault, dotted for nested fields; None if no single field is.
        code: a machine-readable code in OpenAI's vocabulary, such as ``context_length_exceeded``.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFull(DraftaheadError):
    """The waiting queue is at its limit; the same request may succeed later."""


class EngineUnavailable(DraftaheadError):
    """The engine loop has died or is draining; it takes no request any more."""


class RemoteError(DraftaheadError):
    """A server that is asked over HTTP cannot be reached, refused a request or broke off its answer."""
