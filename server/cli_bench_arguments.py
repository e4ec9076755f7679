"""The words of ``bench``, and the settings they make.

Knows its flags; a flag is named after its setting and its default is the setting's own. Refuses to know how anything is
measured, and imports nothing slow, so that ``--help`` is quick.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import get_args

from engine.bench.options import BenchOptions, Endpoint, ServerOptions
from engine.bench.prompts import TASKS
from engine.config import EngineConfig
from engine.errors import ConfigError


def add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything about a benchmark but the engine."""
    _add_measurement_arguments(parser)
    _add_server_arguments(parser)
    _add_simulation_arguments(parser)


def add_steps_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything about timed steps but the engine."""
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--rows", type=int, nargs="+", metavar="N", default=[1, 8, 16, 32], help="rows of a step (default: 1 8 16 32)"
    )
    group.add_argument("--steps", type=int, metavar="N", default=20, help="timed steps of each kind")
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """What to show of a trace."""
    parser.add_argument("trace", type=Path, metavar="FILE", help="what serve --trace FILE has written")
    parser.add_argument("--request", metavar="ID", help="only steps of this request")
    parser.add_argument("--first", type=int, metavar="N", default=0, help="first step to show, from 0")
    parser.add_argument("--steps", type=int, metavar="N", default=10, help="most steps to show; 0 is the summary alone")


def bench_options(arguments: argparse.Namespace) -> BenchOptions:
    """Raises ``ConfigError`` as ``BenchOptions`` does."""
    values = {field.name: getattr(arguments, field.name) for field in fields(BenchOptions)}
    concurrency = None if arguments.concurrency is None else tuple(arguments.concurrency)
    return BenchOptions(**values | {"tasks": tuple(arguments.tasks), "concurrency": concurrency})


def server_options(arguments: argparse.Namespace) -> ServerOptions | None:
    """The server to measure; None for an engine in this process.

    Raises:
        ConfigError: as ``ServerOptions`` does, or an option of the one kind came with the other.
    """
    if arguments.url is None:
        for name in ("served_model", "endpoint"):
            if getattr(arguments, name) is not None:
                raise ConfigError(f"{name} belongs to url: without it the engine runs in this process")
        return None
    default = EngineConfig()
    changed = [
        field.name
        for field in fields(EngineConfig)
        if field.name != "enable_prefix_caching" and getattr(arguments, field.name) != getattr(default, field.name)
    ]
    if changed:
        raise ConfigError(f"url measures a server that runs already, which {', '.join(changed)} cannot change")
    return ServerOptions(
        url=arguments.url, served_model=arguments.served_model, endpoint=arguments.endpoint or "completions"
    )


def _add_measurement_arguments(parser: argparse.ArgumentParser) -> None:
    default = BenchOptions()
    group = parser.add_argument_group("measurement")
    group.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="prompts as JSON lines in Spec-Bench's format (default: a small set of six tasks)",
    )
    group.add_argument(
        "--tasks",
        nargs="+",
        choices=TASKS,
        default=default.tasks,
        metavar="TASK",
        help=f"some of {', '.join(TASKS)} (default: all)",
    )
    for field, text in _NUMBERS:
        group.add_argument(
            f"--{field.replace('_', '-')}", type=int, metavar="N", default=getattr(default, field), help=text
        )
    group.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        metavar="N",
        help="requests in flight; each of several numbers is measured by itself (default: 1)",
    )
    group.add_argument(
        "--request-rate",
        type=float,
        metavar="R",
        help="requests a second instead, arriving as a Poisson process, however many are in flight",
    )
    group.add_argument(
        "--ignore-eos", action="store_true", help="go on after the end token, so that every output is max_tokens long"
    )
    group.add_argument("--temperature", type=float, default=default.temperature, help="0 is greedy")
    group.add_argument("--json", type=Path, metavar="FILE", help="also write the whole result to this file")
    group.add_argument("--html", type=Path, metavar="FILE", help="also write a report with plots to this file")


def _add_server_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server to measure")
    group.add_argument(
        "--url", help="measure the OpenAI-compatible server at this address instead of an engine in this process"
    )
    group.add_argument(
        "--served-model", metavar="NAME", help="what the server calls the model (default: the first that it lists)"
    )
    group.add_argument(
        "--endpoint",
        choices=get_args(Endpoint),
        help="where prompts go, as bare text or as a message (default: completions)",
    )


def _add_simulation_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("simulation")
    group.add_argument(
        "--simulate",
        action="store_true",
        help="run the scheduler and the controller on recorded drafts and step times; no model is loaded",
    )
    group.add_argument(
        "--step-times",
        metavar="NAME",
        default="h200-8b",
        help="the simulated machine: h200-8b, or a JSON file of seconds by rows",
    )
    group.add_argument(
        "--recorded",
        type=Path,
        metavar="FILE",
        help="a trace of requests with --draft-length fixed (default: one of the built-in prompts)",
    )


_NUMBERS = (
    ("limit_per_task", "most prompts of each task (default: all)"),
    ("max_tokens", "most output tokens of a request"),
    ("repeats", "how often everything is measured"),
    ("seed", "names the noise where the temperature is not 0"),
    ("num_warmup", "prompts run before anything is counted"),
)
