"""The command line: the one place where an engine and a server are put together.

Knows the commands and the order in which they begin and end. Refuses to do anything that a room below can do.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import shlex
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from engine.bench.options import BenchOptions, ServerOptions
from engine.bench.prompts import BenchPrompt, load_prompts
from engine.config import EngineConfig
from engine.errors import ConfigError, DraftaheadError
from server.cli_arguments import PROGRAM, Commands, parse_arguments, server_settings
from server.cli_bench_arguments import bench_options, server_options
from server.cli_engine_arguments import engine_config

if TYPE_CHECKING:
    from rich.console import Console

    from engine.async_engine import AsyncEngine
    from engine.bench.result import BenchResult
    from engine.bench.run import BenchProgress

_T = TypeVar("_T")

_EXIT_USAGE = 2
_EXIT_FAILURE = 1
_EXIT_INTERRUPTED = 130

_REPORT_WIDTH = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0, 2 if it could not start as asked, 1 if it failed later, 130 if it was interrupted.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = parse_arguments(words, Commands(serve=_serve, bench=_bench, steps=_steps, inspect=_inspect, top=_top))
    arguments.command_line = shlex.join([PROGRAM, *words])
    try:
        run: Callable[[argparse.Namespace], int] = arguments.run
        return run(arguments)
    except DraftaheadError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return _EXIT_USAGE if isinstance(error, ConfigError) else _EXIT_FAILURE
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED


def _serve(arguments: argparse.Namespace) -> int:
    config, settings = engine_config(arguments), server_settings(arguments)
    _configure_logging(arguments.log_level)
    # Before the slow part: a port that is taken should be known at once.
    with _bind(arguments.host, arguments.port) as listener:
        # Slow to import, and not needed for --help.
        from server.app import create_app
        from server.cli_card import print_card
        from server.cli_server import run_server

        engine = _build_engine(config, name=next(iter(settings.served_model_names), None))
        _listen(listener)
        url = _url(arguments.host, listener)
        run_server(
            create_app(engine, settings),
            engine,
            listener,
            log_level=arguments.log_level,
            drain_timeout=arguments.drain_timeout,
            on_started=lambda: print_card(engine.info, url),
        )
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.simulate:
        return _simulate(arguments)
    config, options, server = engine_config(arguments), bench_options(arguments), server_options(arguments)
    prompts = load_prompts(arguments.prompts)
    _configure_logging("warning")
    from rich.console import Console

    from engine.bench.context import describe_run
    from engine.bench.document import write_json
    from engine.bench.page import write_html
    from engine.bench.progress import show_progress
    from engine.bench.table import print_report

    started_at = datetime.now().astimezone()
    subject = server or _build_engine(config, name=None)
    with show_progress(Console(stderr=True)) as on_progress:
        result = asyncio.run(_measure(subject, prompts, options, on_progress))
    context = describe_run(result.info, command=arguments.command_line, started_at=started_at)
    print_report(result, context, _screen())
    if arguments.json:
        write_json(result, context, arguments.json)
    if arguments.html:
        write_html(result, context, arguments.html)
    return 0


def _steps(arguments: argparse.Namespace) -> int:
    config = engine_config(arguments)
    _configure_logging("warning")
    from engine.bench.steps_run import run_steps
    from server.cli_card import show_loading

    with show_loading() as progress:
        table = run_steps(
            config, progress, row_counts=arguments.rows, num_steps=arguments.steps, temperature=arguments.temperature
        )
    _screen().print(table)
    return 0


def _simulate(arguments: argparse.Namespace) -> int:
    config = engine_config(arguments)
    from engine.bench.simulation_run import DEFAULT_STREAMS, run_simulation
    from server.cli_card import show_loading

    with show_loading() as progress:
        table = run_simulation(
            config,
            progress,
            machine=arguments.step_times,
            trace=arguments.recorded,
            stream_counts=arguments.concurrency or DEFAULT_STREAMS,
        )
    _screen().print(table)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from engine.bench.inspect_trace import explain_trace

    screen = _screen()
    for part in explain_trace(
        arguments.trace, request=arguments.request, first=arguments.first, num_steps=arguments.steps
    ):
        screen.print(part)
    return 0


def _top(arguments: argparse.Namespace) -> int:
    from server.top import TopOptions, run_top

    options = TopOptions(url=arguments.url, api_key=arguments.api_key, interval=arguments.interval, once=arguments.once)
    run_top(options, _screen())
    return 0


def _screen() -> Console:
    """The terminal; where the lines go into a file or a pipe, nothing limits them."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=_REPORT_WIDTH)


async def _measure(
    subject: AsyncEngine | ServerOptions,
    prompts: list[BenchPrompt],
    options: BenchOptions,
    on_progress: Callable[[BenchProgress], None],
) -> BenchResult:
    from engine.bench.run import run_bench

    if isinstance(subject, ServerOptions):
        from engine.bench.http_target import connect

        async with connect(subject, options) as target:
            return await run_bench(target, prompts, options, on_progress)
    from engine.bench.engine_target import EngineTarget

    await subject.start()
    try:
        return await run_bench(EngineTarget(subject, options), prompts, options, on_progress)
    finally:
        await subject.stop()


def _build_engine(config: EngineConfig, *, name: str | None) -> AsyncEngine:
    """A loaded engine, not yet started; ``name`` is what clients call the model, None for its own name."""
    from server.cli_card import show_loading

    def build() -> AsyncEngine:
        from engine.async_engine import AsyncEngine
        from engine.build import build_engine
        from engine.model.loading import load_model
        from engine.tokenizer import Tokenizer

        loaded = load_model(config, progress)
        core, info = build_engine(config, loaded, name or loaded.name, progress=progress)
        gc.collect()
        gc.freeze()  # a model's objects stay: looking through them again and again would hold up steps
        return AsyncEngine(
            core,
            Tokenizer(loaded.tokenizer),
            info,
            max_num_requests=config.max_num_seqs + config.max_num_waiting,
        )

    with show_loading() as progress:
        progress("starting", 0.0)
        return _in_passing_thread(build)


def _in_passing_thread(work: Callable[[], _T]) -> _T:
    """The result of ``work``, done in a thread that ends with it.

    OpenMP keeps helpers for every thread that ever computed. Were there more of them than cores, it would put them to
    sleep after every product: those of a thread that ends are gone, and the engine's thread has the cores to itself.
    """
    results: SimpleQueue[_T | BaseException] = SimpleQueue()

    def run() -> None:
        try:
            results.put(work())
        except BaseException as error:
            results.put(error)

    thread = Thread(target=run, name="loading", daemon=True)  # an interrupt need not wait for it
    thread.start()
    result = results.get()
    thread.join()
    if isinstance(result, BaseException):
        raise result
    return result


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, so that clients are turned away until the model is ready."""
    listener = None
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, UnicodeError) as error:  # a host that no name can be is a UnicodeError
        if listener is not None:
            listener.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}") from error
    return listener


def _listen(listener: socket.socket) -> None:
    """Take the port for good; a server that started at the same time may have been first."""
    try:
        listener.listen()
    except OSError as error:
        host, port, *_ = listener.getsockname()
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error


def _url(host: str, listener: socket.socket) -> str:
    """An address of the server that works on this machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    in_url = f"[{reachable}]" if ":" in reachable else reachable
    return f"http://{in_url}:{listener.getsockname()[1]}"


def _configure_logging(level: str) -> None:
    """Our own rooms speak from ``level`` on, the libraries from warnings on."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for package in ("engine", "server"):
        logging.getLogger(package).setLevel(level.upper())
