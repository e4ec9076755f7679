"""The command line's words, and the settings they make.

Knows every flag; a flag is named after its setting and its default is the setting's own. Refuses to know what the
commands do, and imports nothing slow, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn, get_args

from engine.bench.options import BenchOptions
from engine.bench.prompts import TASKS
from engine.config import Device, DrafterName, Dtype, EngineConfig
from server.settings import ServerSettings, UnknownFields

PROGRAM = "draftahead"

Command = Callable[[argparse.Namespace], int]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", re.IGNORECASE)
_LOG_LEVELS = ("debug", "info", "warning", "error")
_LAST_PORT = 65535


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{PROGRAM}: error: {message}\n")


def build_parser(*, serve: Command, bench: Command) -> argparse.ArgumentParser:
    """The parser of the whole command line; the chosen command is ``run`` of what it parses."""
    parser = _Parser(
        prog=PROGRAM, description="An OpenAI-compatible inference server built around exact speculative decoding."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serving = _add_command(commands, "serve", serve, "serve a model over HTTP")
    _add_server_arguments(serving)
    _add_engine_arguments(serving)
    serving.add_argument(
        "--no-prefix-caching",
        dest="enable_prefix_caching",
        action="store_false",
        help="compute every prompt anew, even where it begins like an earlier one",
    )

    measuring = _add_command(commands, "bench", bench, "measure speculation against plain decoding")
    _add_bench_arguments(measuring)
    _add_engine_arguments(measuring)
    # The second of two compared runs would find the prompts of the first.
    measuring.set_defaults(enable_prefix_caching=False)
    return parser


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    """Raises ``ConfigError`` for values that are out of bounds or do not go together."""
    return EngineConfig(**{field.name: getattr(arguments, field.name) for field in fields(EngineConfig)})


def server_settings(arguments: argparse.Namespace) -> ServerSettings:
    """Raises ``ConfigError`` as ``ServerSettings`` does."""
    return ServerSettings(
        served_model_names=tuple(arguments.served_model_name), unknown_fields=arguments.unknown_fields
    )


def bench_options(arguments: argparse.Namespace) -> BenchOptions:
    """Raises ``ConfigError`` as ``BenchOptions`` does."""
    values = {field.name: getattr(arguments, field.name) for field in fields(BenchOptions)}
    return BenchOptions(**values | {"tasks": tuple(arguments.tasks)})


def parse_size(text: str) -> int:
    """Bytes from ``512M``, ``1.5GiB`` or a plain number; the letters are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512M or 2G")
    number, unit = match.groups()
    return int(float(number) * 1024 ** " KMGT".index(unit.upper() or " "))


def _add_command(
    commands: argparse._SubParsersAction[_Parser], name: str, run: Command, summary: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _add_server_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on")
    group.add_argument("--port", type=_port, default=8000, help="port to listen on; 0 takes a free one")
    group.add_argument(
        "--served-model-name",
        nargs="+",
        default=[],
        metavar="NAME",
        help="what clients call the model, the main name first (default: the model's own name)",
    )
    group.add_argument(
        "--unknown-fields",
        choices=get_args(UnknownFields),
        default=ServerSettings().unknown_fields,
        help="what to do with a request field that this server does not know",
    )
    group.add_argument(
        "--drain-timeout",
        type=_seconds,
        default=30,
        metavar="SECONDS",
        help="how long running requests may take to finish once the server is told to stop",
    )
    group.add_argument("--log-level", choices=_LOG_LEVELS, default="info", help="least important message shown")


def _add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    default = EngineConfig()
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default=default.model,
        help="a Hugging Face folder or name, or a .gguf file",
    )
    group = parser.add_argument_group("engine")

    def add(name: str, text: str, **options: object) -> None:
        group.add_argument(name, help=text, **options)  # type: ignore[arg-type]

    def number(name: str, text: str, *, unset: str = "", **options: object) -> None:
        field = str(options.get("dest", name.removeprefix("--").replace("-", "_")))
        value = getattr(default, field)
        text = f"{text} (default: {unset})" if value is None else text
        shown = argparse.SUPPRESS if value is None else value
        add(name, text, type=int, metavar="N", **{"default": shown} | options)

    add("--device", "where to run", choices=get_args(Device), default=default.device)
    add("--dtype", "type of the weights and the cache", choices=get_args(Dtype), default=default.dtype)
