"""The words of ``draftahead top``, and the options they make. Imports nothing slow."""

from __future__ import annotations

import argparse
import os

DEFAULT_URL = "http://127.0.0.1:8000"


def add_top_arguments(parser: argparse.ArgumentParser, keys_variable: str) -> None:
    """All of them.

    Args:
        keys_variable: environment variable whose first word is the key, if none is given.
    """
    keys = os.environ.get(keys_variable, "").split()
    parser.add_argument("url", nargs="?", default=DEFAULT_URL, metavar="URL", help="address of the server")
    parser.add_argument(
        "--api-key",
        default=keys[0] if keys else None,
        metavar="KEY",
        help=f"for a server, or a proxy before it, that asks for one (default: the first of {keys_variable})",
    )
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="time between two looks")
    parser.add_argument("--once", action="store_true", help="print what happens in one interval, and end")
