"""The playground as a visitor uses it: by labels, keys and what is to be seen."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page, Response

KEY = "a-key"
PROMPT = "abcabcabcabc"


class Playground:
    """One open page.

    Attributes:
        requested: the addresses of everything that the page has asked for.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requested: list[str] = []
        self._complaints: list[str] = []
        page.on("request", lambda request: self.requested.append(request.url))
        page.on("pageerror", lambda error: self._complaints.append(str(error)))
        page.on("console", lambda message: self._complaints.append(message.text))

    def open(self, *, key: str = KEY) -> None:
        self.page.goto("/")
        closed = self.page.locator("details:not([open]) > summary")  # as on a phone
        while closed.count():
            closed.first.click()
        self.fill({"API key": key})
        self.page.get_by_text("Completion", exact=True).click()
        self.fill({"Prompt": PROMPT, "Most tokens": "40", "Seed": "7"})

    def fill(self, values: dict[str, str]) -> None:
        for label, value in values.items():
            self.page.get_by_label(label, exact=True).fill(value)

    def run(self) -> None:
        """To the end, whatever that is."""
        self.page.keyboard.press("Control+Enter")
        self.wait_until_done()

    def wait_until_done(self) -> None:
        self.page.locator("#run:enabled").wait_for()

    def tokens(self, which: str = "drafted") -> Locator:
        return self.page.locator(f"#{which} .text .token")

    def origins(self, which: str = "drafted") -> list[str]:
        names: list[str] = self.tokens(which).evaluate_all("spans => spans.map(span => span.dataset.origin)")
        return names

    def text(self, which: str = "drafted") -> str:
        return self.page.locator(f"#{which} .text").text_content() or ""

    def colours(self, origin: str) -> tuple[str, str]:
        """Of a token's background and of the line below it."""
        span = self.tokens().and_(self.page.locator(f"[data-origin={origin}]")).first
        style = "span => { const s = getComputedStyle(span); return [s.backgroundColor, s.borderBottomColor] }"
        background, line = span.evaluate(style)
        return background, line

    @property
    def verdict(self) -> Locator:
        return self.page.locator("#verdict")

    @property
    def error(self) -> Locator:
        return self.page.get_by_role("alert")

    @property
    def announced(self) -> str:
        return self.page.get_by_role("status").text_content() or ""

    def is_answer(self, response: Response, mode: str) -> bool:
        """Whether it is the stream of the run with this drafter."""
        sent: Any = response.request.post_data_json
        return response.url.endswith("completions") and sent["speculation"]["mode"] == mode

    def check_console(self) -> None:
        """The browser complains of nothing but what the server refused, and all that was asked for was the server's."""
        assert [text for text in self._complaints if not text.startswith("Failed to load resource")] == []
        origin = self.page.evaluate("location.origin")
        assert [url for url in self.requested if not url.startswith(origin)] == []
