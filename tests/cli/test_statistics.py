"""`likewise compare` and `likewise power` as a user meets them: text, JSON, exit codes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from service.cli import statistics
from service.stats.compare import compare
from service.stats.power import power_to_implicate

app = typer.Typer()
app.command()(statistics.compare)
app.command()(statistics.power)


def run(*arguments):
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def test_compare_says_one_sentence_and_shows_both_rates():
    result = run("compare", "18/20", "7/20")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == compare(18, 20, 7, 20).sentence
    for expected in ("0.2627 to 0.7519", "p = 0.0007716", "p = 0.0002773", "15.34 (2.539 to 174.5)", "●"):
        assert expected in result.stdout


def test_the_plot_marks_the_estimate_between_its_limits():
    line = next(line for line in run("compare", "10/20", "0/20").stdout.splitlines() if line.startswith("  10/20"))
    plot = line.split()[1]
    assert len(plot) == statistics.PLOT_WIDTH
    assert plot.index("●") == round(0.5 * (statistics.PLOT_WIDTH - 1))
    assert plot.startswith("·")
    assert plot[plot.index("●") - 1] == "─"


def test_compare_prints_one_json_object():
    result = run("compare", "0/11", "4/11", "--noun", "failure rate", "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert printed["difference"]["method"] == "Chan-Zhang exact"
    assert printed["p_boschloo"] == pytest.approx(0.0528, abs=5e-5)
    assert printed["sentence"].startswith("The failure rate rose from 0/11")
    assert printed["odds_ratio"]["estimate"] == 0.0
    assert json.loads(run("compare", "4/4", "0/4", "--json").stdout)["odds_ratio"]["estimate"] is None


def test_an_empty_sample_is_compared_in_words():
    result = run("compare", "0/0", "3/5")
    assert result.exit_code == 0
    assert "Nothing can be compared" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "21/20", "7/20"), "'21/20' counts more than there were: 21 of 20"),
        (("compare", "a/b", "7/20"), "'a/b' is not a count"),
        (("compare", "18/20", "7"), "'7' is not a count"),
        (("compare", "18/20", "-1/20"), ""),
        (("compare", "1.5/20", "7/20"), "'1.5/20' is not a count"),
        (("compare", "18/20"), "Missing argument"),
        (("compare", "5/10", "0/1000000000000"), "1000000000000 runs"),
        (("compare", "18/20", "7/20", "--confidence", "95"), "--confidence 95.0"),
        (("power", "--base", "many"), "'many' is neither a rate"),
        (("power", "--base", "1.2"), "--base 1.2"),
        (("power", "--base", "0"), "--base 0"),
        (("power", "--base", "nan"), "--base nan"),
        (("power", "--base", "0/20"), "'0/20' has no failure"),
        (("power", "--base", "21/20"), "'21/20' counts more"),
        (("power", "--base", "0.5", "--treated", "1.5"), "--treated 1.5"),
        (("power", "--base", "0.5", "--blocks", "101"), "--blocks 101"),
        (("power", "--base", "0.5", "--alpha", "0"), "--alpha 0.0"),
        (("power",), "--base"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_a_usage_error_that_names_it(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_power_plans_from_a_history():
    result = run("power", "--base", "13/20", "--treated", "0.1")
    assert result.exit_code == 0
    sentence = result.stdout.splitlines()[0]
    assert "16 blocks are at most 32 executions" in sentence
    assert "Boschloo) would need 15 runs per arm" in sentence
    assert "6 clean blocks end as NOT_REPRODUCED" in sentence
    assert "full cure" in result.stdout
    assert result.stdout.count("█" * 5) >= 4


def test_power_prints_one_json_object():
    result = run("power", "--base", "0.3", "--blocks", "30", "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert (printed["blocks"], printed["proposed_blocks"]) == (30, 25)
    assert list(printed["ends"]) == ["full cure", "no effect"]
    cure = printed["ends"]["full cure"]
    assert cure["implicated"] == pytest.approx(0.939, abs=1e-3)
    assert cure["implicated"] == power_to_implicate(30, 0.3, 0.0)
    assert cure["expected_executions"] == pytest.approx(31.8, abs=0.05)
    assert printed["clean_runs_to_exclude_base"] == 9
    assert printed["early_not_reproduced_blocks"] is None


def test_power_says_when_a_rate_is_too_rare():
    result = run("power", "--base", "0.02")
    assert result.exit_code == 0
    assert "No number of blocks up to 100 has power 0.9" in result.stdout
    assert "Not even a full cure is shown" in result.stdout
