"""``draftahead top``: looks at a server's ``/metrics`` again and again. Knows when to look and when to end."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
from rich.console import Console
from rich.live import Live
from rich.text import Text

from engine.errors import ConfigError, RemoteError
from server.top_figures import Figures, figures_between
from server.top_reading import Reading, parse_reading
from server.top_view import draw

_SECONDS_TO_ANSWER = 5.0
_NUM_RATES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TopOptions:
    """What to look at.

    Attributes:
        url: the server's address.
        api_key: for a server, or a proxy before it, that asks for one.
        interval: seconds between two looks.
        once: print one view and end.

    Raises:
        ConfigError: an address that is none, or an interval out of its range.
    """

    url: str
    api_key: str | None = None
    interval: float = 1.0
    once: bool = False

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, half a bracket
            is_address = False
        if not is_address:
            raise ConfigError(f"url must be an address such as http://127.0.0.1:8000, not {self.url!r}")
        if not 0.1 <= self.interval <= 3600:
            raise ConfigError(f"interval must lie between 0.1 and 3600 seconds, not {self.interval:g}")


def run_top(options: TopOptions, console: Console) -> None:
    """Show how a server does until interrupted, or once.

    Raises:
        ConfigError: there is no terminal to draw on, or no server of ours there.
        RemoteError: no server answers at the first look.
    """
    if not (options.once or console.is_terminal):
        raise ConfigError("top draws on a terminal; --once prints one view anywhere")
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    with httpx.Client(base_url=options.url, headers=headers, timeout=_SECONDS_TO_ANSWER) as client:
        first = _look(client)
        if options.once:
            time.sleep(options.interval)
            figures = figures_between(first, _look(client))
            console.print(draw(figures, options.url, rates=()))
            return
        with suppress(KeyboardInterrupt):  # which is how one leaves it
            _watch(client, first, options, console)


def _watch(client: httpx.Client, before: Reading, options: TopOptions, console: Console) -> None:
    """Until interrupted. A server that stops answering is waited for, and the view says so."""
    rates: deque[float] = deque(maxlen=_NUM_RATES)
    figures: Figures | None = None
    with Live(Text(f"looking at {options.url}"), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(options.interval)
            note = ""
            try:
                after = _look(client)
            except RemoteError as error:
                note = str(error)
            else:
                figures = figures_between(before, after)
                rates.append(figures.tokens_per_second)
                before = after
            live.update(draw(figures, options.url, rates, note) if figures else Text(note), refresh=True)


def _look(client: httpx.Client) -> Reading:
    try:
        response = client.get("/metrics")
    except httpx.HTTPError as error:
        raise RemoteError(f"no server answers at {client.base_url}: {error}") from error
    if response.is_server_error:  # a proxy before a server that restarts says so
        raise RemoteError(f"{response.url} answered {response.status_code} {response.reason_phrase}")
    if response.status_code != httpx.codes.OK:
        raise ConfigError(f"{response.url} answered {response.status_code} {response.reason_phrase}")
    return parse_reading(response.text, time.monotonic())
