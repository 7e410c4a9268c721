"""The pages say what the evidence says, in every state, and let nothing through unescaped."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from starlette.testclient import TestClient

from gpu_runner.protocol import ContextClass, ContextField, Expectation, Progress, Treatment, TreatmentKind, to_json
from tests.factories import POLLUTER, VICTIM, Played, add_experiment, exclude

TOGGLE = (
    Treatment(
        TreatmentKind.TOGGLE,
        toggle="chunk_o",
        environment={"VT_GDN_CHUNKO_TRITON": "0"},
        expect=(Expectation("launches", ">0", "0"),),
    ),
)
HOSTILE = "test_<script>alert('x')</script>[\"&]"


class Page(HTMLParser):
    """A page as far as the tests ask: text, links, ids, tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def links(self) -> set[str]:
        return {values["href"] for tag, values in self.tags if tag == "a" and "href" in values}


def open_page(client: TestClient, path: str) -> Page:
    reply = client.get(path)
    assert reply.status_code == 200, reply.text[:500]
    return Page(reply.text)


def only_control(_block: int, arm: int) -> bool:
    return arm == 0


def implicated() -> Played:
    played = add_experiment(exclude(), fails=only_control)
    assert played.play().verdict == "IMPLICATED"
    return played


def running() -> Played:
    played = add_experiment(exclude(), fails=only_control, created_at=datetime.now(UTC))
    block_id, _ = played.until_counted()
    played.run(block_id)
    block_id, arms = played.until_counted()
    lease = played.claim(block_id, to_json(Progress("execute", arms[1], 1, "sampler.greedy", 3, 6)))
    played.store(block_id, lease, executions=1)
    return played


def unlike() -> Played:
    played = add_experiment(exclude(), fails=only_control)
    for arm, driver in ((0, "575.57.08"), (1, "580.65.06")):
        played.contexts = {**played.contexts, arm: (ContextField("device", "driver", ContextClass.IDENTITY, driver),)}
    assert played.play().verdict == "NOT_LIKE_FOR_LIKE"
    return played


def inert() -> Played:
    played = add_experiment(TOGGLE, fails=only_control)
    played.counters = {0: {"launches": 96}, 1: {"launches": 96}}
    assert played.play().verdict == "TREATMENT_INERT"
    return played


def not_reproduced() -> Played:
    played = add_experiment(exclude(), blocks_max=6)
    assert played.play().verdict == "NOT_REPRODUCED"
    return played


def inconclusive() -> Played:
    played = add_experiment(exclude(), fails=lambda block, arm: (block + arm) % 2 == 0, blocks_max=4)
    assert played.play().verdict == "INCONCLUSIVE"
    return played


def several() -> Played:
    played = add_experiment(exclude(), exclude("attention.prefill"), fails=lambda _block, arm: arm != 1)
    played.extra = {"sampler.greedy": (1,), "spec.accepts_draft": (0, 1, 2)}
    assert played.play().verdict == "IMPLICATED"
    return played


def queued() -> Played:
    return add_experiment(exclude())


@pytest.mark.parametrize(
    ("make", "badge", "said"),
    [
        (implicated, "Implicated", f"{POLLUTER} makes {VICTIM} fail."),
        (running, "Running", f"Does {VICTIM} fail more or less often without {POLLUTER}?"),
        (unlike, "Not like for like", "device driver: 575.57.08 against 580.65.06."),
        (inert, "Treatment inert", "The change never took effect"),
        (not_reproduced, "Not reproduced", "Nothing is implicated, nothing exonerated."),
        (inconclusive, "Inconclusive", f"Could not tell whether {POLLUTER} matters for {VICTIM}."),
        (several, "Implicated", "The arms at a glance"),
        (queued, "Queued", "It waits for a worker."),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_page_gives_its_verdict_and_holds_together(
    client: TestClient, make: Callable[[], Played], badge: str, said: str
):
    played = make()
    page = open_page(client, f"/experiments/{played.id}")
    assert badge in page.text
    assert said in page.text
    check_structure(page)
    for link in page.links:
        if link.startswith("/"):
            assert client.get(link.partition("#")[0]).status_code == 200, link
    listed = open_page(client, "/")
    assert badge in listed.text
    assert f"/experiments/{played.id}" in listed.links
    check_structure(listed)


def check_structure(page: Page) -> None:
    """Hold what every page owes to people who cannot see it."""
    ids = [values["id"] for _, values in page.tags if "id" in values]
    assert len(ids) == len(set(ids))
    assert [tag for tag, _ in page.tags].count("h1") == 1
    assert ("html", {"lang": "en"}) in page.tags
    for tag, values in page.tags:
        if tag == "svg":
            assert "aria-label" in values or values.get("aria-hidden") == "true"
        if tag == "th":
            assert values["scope"] in ("col", "row")
        if values.get("class") == "scroll":
            assert values["tabindex"] == "0"
            assert values["aria-label"]


def test_counts_interval_share_and_the_next_command_stand_on_the_page(client: TestClient):
    played = implicated()
    page = open_page(client, f"/experiments/{played.id}")
    assert "failed 4 of 4" in page.text
    assert "failed 0 of 4" in page.text
    assert "95 % interval" in page.text
    assert "100 % of the failures are explained by it" in page.text
    assert "likewise enqueue ab" in page.text
    assert "It stopped after block 4." in page.text
    assert f"/v1/experiments/{played.id}" in page.links


def test_a_live_page_refreshes_itself_without_javascript_and_an_ended_one_does_not(client: TestClient):
    live = client.get(f"/experiments/{running().id}").text
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in live
    assert "data-events=" in live
    ended = client.get(f"/experiments/{implicated().id}").text
    assert "http-equiv" not in ended
    assert "data-events=" not in ended


def test_a_running_block_says_what_it_does(client: TestClient):
    page = open_page(client, f"/experiments/{running().id}")
    assert "test 4 of 6: sampler.greedy (on box-1)" in page.text
    assert "1 of at most 30 blocks complete" in page.text
    assert "It is shown while it runs and decides nothing" in page.text


def test_a_toggle_shows_its_counters_beside_what_was_expected(client: TestClient):
    page = open_page(client, f"/experiments/{inert().id}")
    assert "launches >0 -> 0 96 96 not as expected" in page.text


def test_other_tests_are_split_into_new_and_failing_anyway(client: TestClient):
    page = open_page(client, f"/experiments/{several().id}")
    assert re.search(r"sampler\.greedy 0 of \d+ \d+ of \d+ new", page.text)
    assert re.search(r"spec\.accepts_draft \d+ of \d+ \d+ of \d+ in both", page.text)


def test_undeclared_fields_stand_apart_from_declared_ones(client: TestClient):
    page = open_page(client, f"/experiments/{unlike().id}")
    assert "driver 575.57.08 580.65.06 differs, undeclared" in page.text
    assert "only here: plan.warm_plan_cache" in page.text
    assert "differs, as declared" in page.text


def test_names_of_tests_are_never_taken_for_html(client: TestClient):
    played = add_experiment(exclude(), fails=only_control, victim=HOSTILE, project="a/<b>")
    played.play()
    paths = ["/", f"/experiments/{played.id}", f"/experiments/{played.id}/executions/0/1/0"]
    for path in paths:
        page = open_page(client, path)
        assert HOSTILE in page.text
        scripts = [values for tag, values in page.tags if tag == "script"]
        assert [set(values) for values in scripts] == [{"src", "defer"}]


def test_one_execution_shows_its_results_in_order_with_the_victims_output(client: TestClient):
    played = implicated()
    page = open_page(client, f"/experiments/{played.id}/executions/0/1/0")
    assert "max |difference| 0.031 > 0.002" in page.text
    assert "layer 3 of 4 <script>alert(1)</script>" in page.text
    results = page.text[page.text.index("Results, in the order") :]
    order = [results.index(name) for name in ("plan.cold_start", POLLUTER, "sampler.greedy")]
    assert order == sorted(order)
    assert f"/experiments/{played.id}/executions/0/1/1" in page.links
    check_structure(page)


def test_the_list_filters_by_project_and_verdict(client: TestClient):
    implicated()
    add_experiment(exclude(), project="acme/other")
    assert len(rows(client, "/")) == 2
    assert len(rows(client, "/?project=acme/other")) == 1
    assert len(rows(client, "/?verdict=IMPLICATED")) == 1
    assert len(rows(client, "/?project=acme/other&verdict=IMPLICATED")) == 0
    assert len(rows(client, "/?verdict=nonsense&project=")) == 2


def rows(client: TestClient, path: str) -> set[str]:
    return {link for link in open_page(client, path).links if link.startswith("/experiments/")}


def test_an_empty_list_says_how_to_begin(client: TestClient):
    assert "likewise enqueue ab --victim TEST" in open_page(client, "/").text


@pytest.mark.parametrize(
    "path", ["/experiments/99", "/experiments/x", "/nowhere", "/?project=no/such", "/experiments/1/executions/0/1/9"]
)
def test_what_is_not_there_gets_a_page_that_says_so(client: TestClient, path: str):
    reply = client.get(path)
    assert reply.status_code == 404
    page = Page(reply.text)
    assert "Not found" in page.text
    assert "/" in page.links
    check_structure(page)


def test_a_crash_gets_a_page_without_its_trace(client: TestClient, monkeypatch: pytest.MonkeyPatch):
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("service.web.pages.list_experiments", crash)
    reply = client.get("/")
    assert reply.status_code == 500
    assert "Something broke" in reply.text
    assert "secret" not in reply.text


def test_pages_may_load_nothing_from_elsewhere(client: TestClient):
    policy = client.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert client.get("/static/app.css").status_code == 200
    assert client.get("/static/../base.html").status_code == 404
