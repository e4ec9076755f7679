"""A command line as it is parsed."""

from __future__ import annotations

import argparse

from server.cli_arguments import Commands, parse_arguments


def parse(*words: str) -> argparse.Namespace:
    return parse_arguments(words, Commands(*[lambda arguments: 0] * len(Commands._fields)))
