"""The command line's words, and the settings they make.

Knows every flag; a flag is named after its setting and its default is the setting's own. Refuses to know what the
commands do, and imports nothing slow, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, get_args

from engine.config import EngineConfig
from engine.version import program_version
from engine.workloads import config_for
from server.cli_bench_arguments import add_bench_arguments, add_inspect_arguments, add_steps_arguments
from server.cli_engine_arguments import add_engine_arguments, parse_size
from server.cli_top_arguments import add_top_arguments
from server.settings import MetricsNames, ServerSettings, UnknownFields

PROGRAM = "draftahead"

Command = Callable[[argparse.Namespace], int]

_LOG_LEVELS = ("debug", "info", "warning", "error")
_LAST_PORT = 65535
_KEYS_VARIABLE = "DRAFTAHEAD_API_KEY"


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{PROGRAM}: error: {message}\n")


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows a default unless it is left to be found out, which the help then says in words."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or isinstance(action.default, bool | list | tuple):
            return action.help
        return super()._get_help_string(action)


class Commands(NamedTuple):
    """What each command runs."""

    serve: Command
    bench: Command
    steps: Command
    inspect: Command
    top: Command


def parse_arguments(words: Sequence[str] | None, commands: Commands) -> argparse.Namespace:
    """The whole command line; the chosen command is ``run`` of what it gives."""
    arguments = _build_parser(commands, EngineConfig()).parse_args(words)
    workload = getattr(arguments, "workload", None)
    if workload is None:
        return arguments
    # Once more, so that what is said by name stands and what is not said is the workload's.
    return _build_parser(commands, config_for(workload)).parse_args(words)


def _build_parser(commands: Commands, default: EngineConfig) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM, description="An OpenAI-compatible inference server built around exact speculative decoding."
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {program_version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    serving = _add_command(subparsers, "serve", commands.serve, "serve a model over HTTP")
    _add_server_arguments(serving)
    _add_access_arguments(serving)
    add_engine_arguments(serving, default).add_argument(
        "--no-prefix-caching",
        dest="enable_prefix_caching",
        action="store_false",
        help="compute every prompt anew, even where it begins like an earlier one",
    )

    measuring = _add_command(subparsers, "bench", commands.bench, "measure speculation against plain decoding")
    add_bench_arguments(measuring)
    add_engine_arguments(measuring, default)
    # The second of two compared runs would find the prompts of the first.
    measuring.set_defaults(enable_prefix_caching=False)

    timing = _add_command(subparsers, "steps", commands.steps, "measure what a step costs, by its number of rows")
    add_steps_arguments(timing)
    add_engine_arguments(timing, default)
    timing.set_defaults(enable_prefix_caching=False)

    explaining = _add_command(subparsers, "inspect", commands.inspect, "explain the steps that a server has traced")
    add_inspect_arguments(explaining)

    watching = _add_command(subparsers, "top", commands.top, "watch a running server in the terminal")
    add_top_arguments(watching, _KEYS_VARIABLE)
    return parser


def server_settings(arguments: argparse.Namespace) -> ServerSettings:
    """Raises ``ConfigError`` as ``ServerSettings`` does."""
    # A call with more choices than the engine takes in all could never be served.
    most = min(ServerSettings().max_choices_per_request, arguments.max_num_seqs + arguments.max_num_waiting)
    return ServerSettings(
        served_model_names=tuple(arguments.served_model_name),
        unknown_fields=arguments.unknown_fields,
        metrics_names=arguments.metrics_names,
        api_keys=tuple(arguments.api_key or os.environ.get(_KEYS_VARIABLE, "").split()),
        allowed_origins=tuple(arguments.allowed_origins),
        max_request_bytes=arguments.max_request_size,
        body_timeout=arguments.body_timeout,
        max_logprobs=arguments.max_logprobs,
        max_choices_per_request=most,
    )


def _add_command(
    subparsers: argparse._SubParsersAction[_Parser], name: str, run: Command, summary: str
) -> argparse.ArgumentParser:
    command = subparsers.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", formatter_class=_Help
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
        "--drain-timeout",
        type=_seconds,
        default=30,
        metavar="SECONDS",
        help="how long running requests may take to finish once the server is told to stop",
    )
    group.add_argument(
        "--metrics-names",
        choices=get_args(MetricsNames),
        default=ServerSettings().metrics_names,
        help="names under which /metrics gives its values; vllm adds vLLM's to our own",
    )
    group.add_argument("--log-level", choices=_LOG_LEVELS, default="info", help="least grave message to show")


def _add_access_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument(
        "--api-key",
        nargs="+",
        metavar="KEY",
        help=f"refuse requests without one of these; {_KEYS_VARIABLE} does the same, and is not shown by ps",
    )
    group.add_argument(
        "--allowed-origins",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="web origins whose pages may call this server, such as https://example.org; * is all (default: none)",
    )
    group.add_argument("--max-request-size", type=parse_size, default="8M", metavar="SIZE", help="longest request body")
    group.add_argument(
        "--body-timeout",
        type=_seconds,
        default=ServerSettings().body_timeout,
        metavar="SECONDS",
        help="how long a request body may take to come",
    )
    group.add_argument(
        "--unknown-fields",
        choices=get_args(UnknownFields),
        default=ServerSettings().unknown_fields,
        help="what to do with a request field that this server does not know",
    )
    group.add_argument(
        "--max-logprobs",
        type=int,
        metavar="N",
        default=ServerSettings().max_logprobs,
        help="most alternatives that a request may have with each token; -1 allows the whole vocabulary",
    )


def _port(text: str) -> int:
    return _whole_number(text, "a port", _LAST_PORT)


def _seconds(text: str) -> int:
    return _whole_number(text, "a number of seconds", 86400)


def _whole_number(text: str, what: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} in 0..{most}")
    return int(text)
