# The build step: LIKEWISE_DEMO_EXTRA=ON registers one more test, POISON one that is a second polluter.
extra=tests/test_gdn_first_load.py
rm -f "$extra"
case "${LIKEWISE_DEMO_EXTRA:-OFF}" in
OFF) ;;
POISON) printf 'from engine import plans\n\n\ndef test_gdn_aot_concurrent_first_load():\n    plans.PLANS["draft"] = "stale"\n' > "$extra" ;;
*) printf 'def test_gdn_aot_concurrent_first_load():\n    assert len({8 // 8}) == 1\n' > "$extra" ;;
esac
