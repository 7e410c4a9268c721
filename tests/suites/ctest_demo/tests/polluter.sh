# The polluter: warms a plan for the draft model and leaves it in the cache folder.
. "$(dirname "$0")/lib.sh"
if [ "${LIKEWISE_DEMO_PLAN_CACHE:-1}" = 0 ]; then
  echo "LIKEWISE_COUNTER plan_cache.written=0"
  exit 0
fi
mkdir -p "$plans"
echo stale > "$plans/draft.plan"
echo "LIKEWISE_COUNTER plan_cache.written=1"
