"""`likewise threshold` as a user meets it: the three file forms, the decision, JSON, and mistakes."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from service.cli import threshold

app = typer.Typer()
app.command()(threshold.threshold)


def run(*arguments, stdin=None):
    return CliRunner().invoke(
        app, [str(a) for a in arguments], input=stdin, env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


def sample(seed, n=400, median=0.002, eps=0.01):
    rng = np.random.default_rng(seed)
    x = median * np.exp(0.7 * rng.standard_normal(n))
    out = rng.random(n) < eps
    x[out] = rng.uniform(0.12, 0.27, out.sum())
    return x


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("threshold") / "kl.txt"
    path.write_text("\n".join(map(repr, sample(1).tolist())) + "\n\n")
    return path


def test_text_tells_what_passes_what_is_caught_and_what_to_assert(lines):
    result = run(lines, "--limit", "0.008", "--n", "32", "--cut", "0.05")
    assert result.exit_code == 0, result.output
    assert "above the cut 0.05" in result.stdout
    assert "mean of 32 < 0.008 passes with probability" in result.stdout
    assert "Recommended for 32 values: mean without the largest 10% <" in result.stdout
    assert result.stdout.count("█") > 50


def test_json_holds_the_same_and_repeats_with_the_same_seed(lines):
    first, second = (run(lines, "--limit", "0.008", "--json", "--seed", "5").stdout for _ in range(2))
    assert first == second
    document = json.loads(first)
    assert document["sample"]["n"] == 400
    assert document["present"]["pass_rate"]["threshold"] == 0.008
    assert document["recommended"]["assertion"]["n"] == threshold.DEFAULT_N
    assert document["change"] is None


@pytest.mark.parametrize(
    ("median", "eps", "word"), [(0.004, 0.01, "SHIFT"), (0.002, 0.3, "MORE OUTLIERS"), (0.002, 0.01, "No change")]
)
def test_a_second_sample_is_named_as_what_it_is(lines, tmp_path, median, eps, word):
    after = tmp_path / "after.txt"
    after.write_text("\n".join(map(repr, sample(2, 100, median, eps).tolist())))
    assert word in run(lines, "--after", after, "--cut", "0.05").stdout


FORMS = {
    "list": ("x.json", "[1, 2.5, 3]", ""),
    "objects": ("x.json", '[{"kl": 1}, {"kl": 2.5}, {"kl": 3}]', "kl"),
    "object of lists": ("x.json", '{"kl": [1, 2.5, 3]}', "kl"),
    "json lines": ("x.jsonl", '{"kl": 1}\n{"kl": 2.5}\n{"kl": 3}\n', "kl"),
    "csv": ("x.csv", "name,kl\na,1\nb,2.5\nc,3\n", "kl"),
    "lines": ("x.txt", "1\n\n2.5\n3", ""),
}


@pytest.mark.parametrize(("name", "text", "column"), FORMS.values(), ids=FORMS)
def test_every_form_of_file_is_read(tmp_path, name, text, column):
    (tmp_path / name).write_text(text)
    assert threshold.read_numbers(tmp_path / name, column) == [1.0, 2.5, 3.0]


def test_standard_input_and_a_constant_sample_work():
    result = run("-", stdin="2\n2\n2\n2\n")
    assert result.exit_code == 0, result.output
    assert "4 values: mean 2" in result.stdout


MISTAKES = {
    "word": ("x.txt", "1\nfast\n", (), "x.txt:2"),
    "column": ("x.csv", "a,b\n1,2\n", ("--column", "c"), "a or b"),
    "key": ("x.json", '[{"a": 1}]', ("--column", "b"), "no key 'b'"),
    "no list": ("x.json", '{"a": 1}', (), "--column a"),
    "deep": ("x.json", "[" * 100_000, (), "x.json:1 is not JSON"),
    "digits": ("x.json", "[" + "9" * 5000 + "]", (), "x.json:1 is not JSON"),
    "twice": ("x.csv", "a,a\n1,2\n", ("--column", "a"), "several columns 'a'"),
    "broken": ("x.json", "[1, 2", (), "not JSON"),
    "empty": ("x.txt", "", (), "x.txt holds no numbers"),
    "infinite": ("x.txt", "1\ninf\n", (), "not finite"),
    "n": ("x.txt", "1\n2\n", ("--n", "1"), "--n 1: an execution averages 2 to 1,000 values"),
    "large n": ("x.txt", "1\n2\n", ("--n", "1001"), "--n 1001"),
    "seed": ("x.txt", "1\n2\n", ("--seed", "-1"), "--seed -1"),
    "limit": ("x.txt", "1\n2\n", ("--limit", "nan"), "--limit nan"),
    "cut": ("x.txt", "1\n2\n", ("--cut", "inf"), "--cut inf"),
    "no core": ("x.txt", "1\n2\n", ("--cut", "0.5"), "no value is at or below the cut 0.5"),
    "missing": (None, "", (), "cannot be read"),
}


@pytest.mark.parametrize(("name", "text", "options", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_a_usage_error_that_names_it(tmp_path, name, text, options, words):
    path = tmp_path / (name or "nowhere")
    if name:
        path.write_text(text)
    result = run(path, *options)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("text", "column"),
    [("\ufeff1\n2\n", ""), ("\ufeffkl\n1\n2\n", "kl"), ("\ufeff[1, 2]", ""), ('{"kl": 1}\n', "kl"), ("123\n123\n", "")],
    ids=["lines with a mark", "table with a mark", "list with a mark", "one JSON line", "equal values"],
)
def test_odd_files_are_read_as_what_they_say(tmp_path, text, column):
    path = tmp_path / "x"
    path.write_text(text, encoding="utf-8")
    result = run(path, "--column", column, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["sample"]["n_outliers"] == 0
