"""A command line as it is parsed."""

from __future__ import annotations

import argparse

from server.cli_arguments import build_parser


def parse(*words: str) -> argparse.Namespace:
    return build_parser(serve=lambda arguments: 0, bench=lambda arguments: 0, steps=lambda arguments: 0).parse_args(
        words
    )
