"""The playground in a real browser, against a real server."""

from __future__ import annotations

import json
import re

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.playground.pages import KEY, PROMPT, Playground


def test_a_prompt_streams_in_coloured_tokens_and_is_identical_without_speculation(playground: Playground) -> None:
    page = playground.page
    with page.expect_response(lambda response: playground.is_answer(response, "auto")) as answered:
        playground.run()
    chunks = [json.loads(line[6:]) for line in answered.value.text().split("\n\n") if line.startswith("data: {")]
    told = [token for chunk in chunks for choice in chunk["choices"] for token in choice["token_provenance"]]
    stats = chunks[-1]["metrics"]["speculative_decoding"]

    assert len(told) == 40
    assert playground.text() == "".join(token["text"] for token in told) == playground.text("plain")
    shown = [token["origin"] for token in told]
    assert playground.origins() == shown
    assert {"accepted", "plain"} < set(shown)
    assert set(playground.origins("plain")) == {"plain"}
    expect(playground.verdict).to_contain_text("identical: yes")
    expect(playground.verdict).to_contain_text("all 40 tokens")
    expect(playground.verdict).to_contain_text(re.compile(r"\d+\.\d\d. the speed: \d+\.\d against \d+\.\d tokens"))

    drafted, accepted = stats["num_draft_tokens"], stats["num_accepted_draft_tokens"]
    expect(page.locator("#steps_said")).to_contain_text(f"{drafted} tokens drafted, {accepted} accepted")
    expect(page.locator("#acceptance")).to_have_text(f"{round(100 * accepted / drafted)} %")
    expect(page.get_by_role("list", name="Origins of the tokens")).to_contain_text(f"accepted: suffix {accepted}")
    assert page.locator("#strip .bar").count() == 40 - accepted
    assert re.fullmatch(r"\d+\.\d", page.locator("#rate").text_content() or "")
    assert "identical: yes" in playground.announced


def test_origins_have_colours_of_their_own(playground: Playground) -> None:
    playground.run()
    seen = set(playground.origins())
    colours = {origin: playground.colours(origin) for origin in seen}
    assert len(seen) >= 3
    assert len(set(colours.values())) == len(seen)


def test_another_answer_is_not_called_identical(playground: Playground) -> None:
    def with_another_seed(route: Route) -> None:
        sent = route.request.post_data_json
        if sent["speculation"]["mode"] == "off":
            sent["seed"] += 1
        route.continue_(post_data=json.dumps(sent))

    playground.page.route("**/v1/completions", with_another_seed)
    playground.fill({"Temperature": "1"})
    playground.run()
    expect(playground.verdict).to_contain_text("identical: no")
    ours, other = playground.tokens().all_text_contents(), playground.tokens("plain").all_text_contents()
    place = next(i for i, pair in enumerate(zip(ours, other, strict=False)) if pair[0] != pair[1])
    expect(playground.verdict).to_contain_text(f"token {place + 1} is another")
    expect(playground.page.locator(".token.different")).to_have_count(2)


def test_a_drawn_seed_is_used_for_both(playground: Playground) -> None:
    playground.fill({"Temperature": "1", "Seed": ""})
    playground.run()
    expect(playground.verdict).to_contain_text("identical: yes")


def test_speculation_may_be_off_and_the_comparison_too(playground: Playground) -> None:
    playground.page.get_by_label("Drafter").select_option("off")
    playground.page.get_by_label("Run it again with speculation off").uncheck()
    playground.run()
    assert set(playground.origins()) == {"plain"}
    expect(playground.page.locator("#plain")).to_be_hidden()
    expect(playground.verdict).to_be_hidden()
    assert playground.announced == "Done: 40 tokens"


def test_escape_stops(playground: Playground, url: str) -> None:
    playground.fill({"Most tokens": "490"})
    playground.page.keyboard.press("Control+Enter")
    playground.tokens().first.wait_for()
    playground.page.keyboard.press("Escape")
    playground.wait_until_done()
    assert playground.announced == "Stopped"
    assert 0 < playground.tokens().count() + playground.tokens("plain").count() < 980
    expect(playground.verdict).to_be_hidden()
    expect(playground.error).to_be_hidden()
    expect(playground.page.locator("#stop")).to_be_disabled()
    load = httpx.get(f"{url}/load", headers={"Authorization": f"Bearer {KEY}"}).json()
    assert load == {"server_load": 0}


def test_an_error_is_shown_as_the_server_says_it(playground: Playground, url: str) -> None:
    playground.fill({"Most tokens": "5000"})
    playground.run()
    (model,) = [
        card["id"] for card in httpx.get(f"{url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}).json()["data"]
    ]
    answer = httpx.post(
        f"{url}/v1/completions",
        headers={"Authorization": f"Bearer {KEY}"},
        json={"model": model, "prompt": PROMPT, "max_tokens": 5000},
    )
    error = answer.json()["error"]
    expect(playground.error).to_contain_text(error["message"])
    expect(playground.error).to_contain_text(
        f"status: 400 · type: {error['type']} · code: {error['code']} · param: max_tokens"
    )
    playground.fill({"Most tokens": "5"})
    playground.run()
    expect(playground.error).to_be_hidden()
    expect(playground.verdict).to_contain_text("identical: yes")


def test_the_page_needs_no_key_and_its_calls_do(page: Page) -> None:
    playground = Playground(page)
    playground.open(key="")
    expect(page.locator("#model")).to_have_text("This server asks for an API key")
    playground.run()
    expect(playground.error).to_contain_text("an API key is needed")
    expect(playground.error).to_contain_text("status: 401")
    playground.fill({"API key": "wrong"})
    playground.run()
    expect(playground.error).to_contain_text("the API key is not one of this server's")
    playground.fill({"API key": KEY})
    playground.run()
    expect(playground.verdict).to_contain_text("identical: yes")
    expect(page.locator("#model")).to_have_text("small")
    playground.check_console()


def test_a_chat_goes_on_and_begins_anew(playground: Playground) -> None:
    page = playground.page
    page.get_by_text("Chat", exact=True).click()
    playground.fill({"Message": "one", "System message": "be brief", "Most tokens": "8"})
    playground.run()
    answer = playground.text()
    playground.fill({"Message": "two"})
    with page.expect_request("**/v1/chat/completions") as asked:
        playground.run()
    assert asked.value.post_data_json["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "two"},
    ]
    expect(page.get_by_role("list", name="Earlier messages")).to_contain_text("one")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#conversation")).to_be_hidden()
    with page.expect_request("**/v1/chat/completions") as asked:
        playground.run()
    assert [turn["role"] for turn in asked.value.post_data_json["messages"]] == ["system", "user"]


def test_a_token_tells_of_itself_to_a_pointer_and_to_keys(playground: Playground) -> None:
    playground.run()
    page, tip = playground.page, playground.page.get_by_role("tooltip")
    place = playground.origins().index("accepted")
    playground.tokens().nth(place).hover()
    expect(tip).to_contain_text("drafted by suffix, accepted")
    expect(tip).to_contain_text(re.compile(r"token \d of \d by suffix"))
    expect(tip).to_contain_text(re.compile(r"Probability\d+\.\d+ % \(log -?\d+\.\d+\)"))
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    page.get_by_role("group", name="Answer with speculation;").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(playground.tokens().nth(1)).to_be_focused()
    expect(tip).to_contain_text("Token2 of the answer")


def test_every_control_has_a_label(playground: Playground) -> None:
    controls = playground.page.locator("input, select, textarea")
    assert controls.count() > 10
    assert (
        controls.evaluate_all("all => all.filter(control => !control.labels.length).map(control => control.id)") == []
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_all_and_each_scheme_its_colours(browser: Browser, url: str, scheme: str) -> None:
    context = browser.new_context(base_url=url, viewport={"width": 390, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    playground = Playground(page)
    playground.open()
    playground.run()
    expect(playground.verdict).to_contain_text("identical: yes")
    assert page.evaluate("document.scrollingElement.scrollWidth") == 390
    red = page.evaluate("parseInt(getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/)[0])")
    assert (red > 200) == (scheme == "light")
    context.close()
