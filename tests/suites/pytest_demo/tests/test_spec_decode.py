from engine import plans
from engine.chance import chance


def test_draft_length():
    assert len("draft") == 5


def test_spec_decode_gate():
    """The victim: a stale plan makes the draft diverge in 65 of 100 runs. Alone there is no plan, and it passes."""
    if "header" in plans.PLANS:
        raise OSError("cannot open the draft model: header of shard 2 is truncated")
    got_prefix = 4 if "draft" in plans.PLANS and chance("spec_decode_gate", 650) else 7
    want_prefix = 7
    assert got_prefix == want_prefix


def test_checkpoint_shard_repair():
    """Runs after the victim. Inserted before it, it breaks the victim in another way than the polluter does."""
    plans.PLANS["header"] = "2"


def test_acceptance_rate(record_property):
    record_property("likewise.metric.acceptance_rate", 0.71)
