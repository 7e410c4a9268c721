import os

from engine import plans


def test_plan_is_found_again():
    plans.PLANS["prefill"] = "m=64"
    assert plans.PLANS.pop("prefill") == "m=64"


def test_warm_plan_cache():
    """The polluter: warms a plan for the draft model and leaves it in the registry."""
    written = 0 if os.environ.get("LIKEWISE_DEMO_PLAN_CACHE", "1") == "0" else 1
    if written:
        plans.PLANS["draft"] = "stale"
    print(f"LIKEWISE_COUNTER plan_cache.written={written}")


def test_autotune_gemm():
    """The innocent suspect: it writes into the same registry, an entry that nobody reads."""
    plans.PLANS["gemm"] = "m=64 n=64 k=64"
