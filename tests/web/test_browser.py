"""The pages in a real browser: alive where they should be, whole without scripts, quiet, and wide as a telephone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gpu_runner.protocol import Progress, to_json
from service.api import events
from tests.factories import Played, add_experiment, exclude
from tests.serving import serve
from tests.web.chromium import CHROMIUM, Tab, browse

HOSTILE = "test_<script>document.title='taken'</script><img src=x onerror=document.title='taken'>"
LONG = "tests/kernels/test_chunk_o.py::TestChunk::test_matches_the_reference[bf16-4096-heads32-state128-varlen]"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"{CHROMIUM} is not installed")


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browse(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _fresh(tab: Tab) -> None:
    tab.logged.clear()
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    tab.size(1100, 900)


def only_control(_block: int, arm: int) -> bool:
    return arm == 0


def ended(victim: str) -> Played:
    played = add_experiment(exclude(), fails=only_control, victim=victim)
    assert played.play() is not None
    return played


def test_scripts_add_the_copy_button_and_hostile_names_stay_text(tab: Tab):
    played = ended(HOSTILE)
    with serve() as address:
        for path in ("/", f"/experiments/{played.id}", f"/experiments/{played.id}/executions/0/1/0"):
            tab.open(f"{address}{path}")
            assert "taken" not in tab.look("document.title").replace(HOSTILE, "")
            assert tab.look(f"document.body.textContent.includes({json.dumps(HOSTILE)})")
        tab.open(f"{address}/experiments/{played.id}")
        assert tab.look("document.querySelectorAll('.command .copy').length") == 1
        assert tab.look("document.querySelectorAll('script').length") == 1
    assert tab.logged == []


def test_a_running_page_follows_its_experiment_to_the_verdict(tab: Tab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "POLL_S", 0.05)
    played = add_experiment(exclude(), fails=only_control)
    block_id, arms = played.until_counted()
    with serve() as address:
        tab.open(f"{address}/experiments/{played.id}")
        lease = played.claim(block_id, to_json(Progress("execute", arms[0], 0, "sampler.greedy", 3, 6)))
        tab.wait_for("document.querySelector('[data-running]')?.textContent.includes('test 4 of 6: sampler.greedy')")
        played.finish(block_id, lease)
        tab.wait_for("document.body.textContent.includes('1 of at most 30 blocks complete')")
        with tab.loaded():
            assert played.play() is not None
        assert tab.look("document.querySelector('.verdict .badge').textContent").endswith("Implicated")
    assert tab.logged == []


def test_the_page_is_whole_without_scripts(tab: Tab):
    played = ended("gate")
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    with serve() as address:
        tab.open(f"{address}/experiments/{played.id}")
        assert tab.look("document.querySelector('.verdict .badge').textContent").endswith("Implicated")
        assert tab.look("document.querySelector('[data-copy]').textContent").startswith("likewise enqueue ab")
        assert tab.look("document.querySelectorAll('.copy').length") == 0


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_nothing_is_wider_than_the_window(tab: Tab, width: int):
    played = ended(LONG)
    tab.size(width, 800)
    with serve() as address:
        for path in ("/", f"/experiments/{played.id}", f"/experiments/{played.id}/executions/0/1/0", "/nowhere"):
            tab.open(f"{address}{path}")
            assert tab.look(OVERFLOW) == 0, path
