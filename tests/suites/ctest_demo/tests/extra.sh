# Registered by a build flag only. With POISON it leaves the same stale plan behind as warm_plan_cache.
. "$(dirname "$0")/lib.sh"
echo "first load by 8 threads: 1 module"
if [ "$1" = POISON ]; then
  mkdir -p "$plans"
  echo stale > "$plans/draft.plan"
fi
