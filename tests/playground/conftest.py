"""A server that asks for a key, and a real browser before it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.playground.pages import KEY, Playground
from tests.running_server import running_server
from tests.small_folders import write_hugging_face_folder


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = write_hugging_face_folder(tmp_path_factory.mktemp("models") / "small")
    # Drafts of a model so small may not be worth their time, and then there would be none to see.
    with running_server(folder, "--api-key", KEY, "--draft-length", "fixed") as url:
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program is not None, "chromium is missing: make test installs it"
    with sync_playwright() as playwright:
        # Without a sandbox of its own, which the root of a container may not have.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser, url: str) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=url)
    context.set_default_timeout(30_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


@pytest.fixture
def playground(page: Page) -> Iterator[Playground]:
    """The page, open and with its key; afterwards nothing may have gone wrong or elsewhere."""
    playground = Playground(page)
    playground.open()
    yield playground
    playground.check_console()
