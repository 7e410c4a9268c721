"""The four commands, their results and their refusals."""

import json

import pytest
import torch

from gpu_runner.gdn.__main__ import LARGEST_DECODE_ERROR, main
from gpu_runner.gdn.config import Family
from gpu_runner.gdn.registry import OPERATORS
from gpu_runner.gdn.tiny import random_tensors, tiny_config, tiny_tensors, write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint")
    config = tiny_config(Family.QWEN3_5)
    write_checkpoint(directory, config, tiny_tensors(config, seed=1))
    return str(directory)


@pytest.fixture
def run(capsys, checkpoint):
    def result(command, *arguments, status=0):
        where = [] if command == "doctor" else ["--model", checkpoint]
        assert main([command, *where, "--device", "cpu", *arguments]) == status
        out, err = capsys.readouterr()
        return err if status else json.loads(out)

    return result


def test_generate_is_greedy_by_default_and_equal_with_drafts(run):
    plain = run("generate", "--prompt", "1,2,3", "--max-new-tokens", "9")
    drafted = run("generate", "--prompt", "1,2,3", "--max-new-tokens", "9", "--draft-tokens", "2")
    assert len(plain["token_ids"]) == len(plain["log_probabilities"]) == 9
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["proposed"] == 2 * drafted["passes"]


def test_sampling_repeats_with_its_seed(run):
    arguments = ("--prompt", "1,2,3", "--temperature", "2", "--top-p", "0.95")
    first, again, other = (run("generate", *arguments, "--seed", seed)["token_ids"] for seed in "112")
    assert first == again
    assert first != other


def test_score_gives_the_log_probabilities_that_generate_gave(run):
    made = run("generate", "--prompt", "1,2,3", "--max-new-tokens", "4", "--deterministic")
    ids = ",".join(str(token) for token in [1, 2, 3, *made["token_ids"]])
    scored = run("score", "--prompt", ids, "--deterministic")
    assert scored["log_probabilities"][-4:] == pytest.approx(made["log_probabilities"], abs=1e-4)
    assert scored["sum"] == pytest.approx(sum(scored["log_probabilities"]), abs=1e-5)


def test_bench_times_what_it_has_checked(run):
    result = run("bench", "--tokens", "20", "--steps", "2", "--repeats", "1")
    assert result["decode_error"] < 1e-3
    assert result["prefill_tokens_per_s"] > 0
    assert result["counters"]["gdn.chunk_o.torch.fired"] > 0


def test_bench_times_nothing_that_is_wrong(run, monkeypatch):
    monkeypatch.setitem(LARGEST_DECODE_ERROR, "float32", -1.0)
    assert "nothing was timed" in run("bench", "--tokens", "20", "--steps", "2", status=1)


def test_doctor_names_versions_realizations_and_faults(run, monkeypatch):
    monkeypatch.setenv("LIKEWISE_GDN_FAULT", "env_leak")
    monkeypatch.setenv("LIKEWISE_GDN_REALIZE_CHUNKO", "triton")
    result = run("doctor")
    assert set(result["realizations"]) == set(OPERATORS)
    assert result["realizations"]["chunk_o"] == "triton"
    assert result["faults"] == ["env_leak"]
    assert "does not restore" in result["fault_mechanisms"]["env_leak"]
    assert result["counters"]["gdn.fault.env_leak"] == 1


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LIKEWISE_GDN_FAULT": "env_leek"}, "unknown fault 'env_leek'"),
        ({"LIKEWISE_GDN_FAULT": "env_leak", "LIKEWISE_GDN_PRODUCTION": "1"}, "on in production mode"),
        ({"LIKEWISE_GDN_REALIZE_CHUNK_P": "triton"}, "no operator 'chunk_p'"),
        ({"LIKEWISE_GDN_REALIZE_WU": "cuda"}, "'cuda'"),
    ],
)
def test_an_environment_without_meaning_is_refused(run, monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert message in run("doctor", status=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "--prompt", "1,99"), r"[99] are outside of the vocabulary of 64"),
        (("generate", "--prompt", "1", "--draft-tokens", "2", "--temperature", "1"), "speculation is greedy"),
        (("generate", "--prompt", "1,,2"), "prompt '1,,2' is not token ids"),
        (("generate", "--prompt", "1", "--temperature", "nan"), "temperature nan"),
        (("generate", "--prompt", "1", "--temperature", "inf"), "temperature inf"),
        (("score", "--prompt", "1"), "at least two tokens"),
    ],
)
def test_what_cannot_be_done_is_said(run, arguments, message):
    assert message in run(*arguments, status=1)


def test_a_missing_checkpoint_is_named(capsys, tmp_path):
    assert main(["score", "--model", str(tmp_path), "--prompt", "1,2", "--device", "cpu"]) == 1
    assert "config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "--prompt", "1", "--max-new-tokens", "-3"), "-3 is below 0"),
        (("generate", "--prompt", "1", "--draft-tokens", "-1"), "-1 is below 0"),
        (("bench", "--tokens", "1"), "1 is below 2"),
        (("bench", "--steps", "0"), "0 is below 1"),
        (("bench", "--repeats", "0"), "0 is below 1"),
        (("doctor", "--device", "foo"), "neither cpu nor cuda"),
        (("doctor", "--device", "meta"), "neither cpu nor cuda"),
        (("doctor", "--device", "cuda:99"), "is not here"),
    ],
)
def test_a_count_or_device_that_cannot_be_is_wrong_usage(capsys, arguments, message):
    with pytest.raises(SystemExit) as refused:
        main([*arguments])
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


def test_weights_that_hold_nan_give_no_scores(capsys, tmp_path):
    config = tiny_config(Family.QWEN3_5)
    tensors = random_tensors(config, seed=1)
    write_checkpoint(tmp_path, config, tensors | {"model.norm.weight": torch.full((32,), float("nan"))})
    for command in ("score", "generate"):
        assert main([command, "--model", str(tmp_path), "--prompt", "1,2", "--device", "cpu"]) == 1
        assert "not finite" in capsys.readouterr().err


def test_a_file_of_events_that_cannot_be_written_is_named(run, monkeypatch, tmp_path):
    monkeypatch.setenv("LIKEWISE_EVENTS", str(tmp_path / "missing" / "events"))
    assert "missing" in run("doctor", status=1)
