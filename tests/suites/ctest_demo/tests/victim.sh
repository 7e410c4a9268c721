# The victim: a stale plan makes the draft diverge in 65 of 100 runs. Alone there is no plan, and it passes.
. "$(dirname "$0")/lib.sh"
if [ -e "$plans/draft.header" ]; then
  echo "cannot open the draft model: header of shard 2 is truncated"
  exit 1
fi
if [ -e "$plans/draft.plan" ] && chance spec_decode_gate 650; then
  echo "CHECK(got_prefix == want_prod) failed: 4 == 7"
  exit 1
fi
echo "9 assertions passed"
