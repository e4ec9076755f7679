"""The version of this program, as installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def program_version() -> str:
    """Such as ``0.1.0``."""
    try:
        return version("draftahead")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0+source"
