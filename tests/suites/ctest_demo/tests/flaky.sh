# Fails by itself once in ten runs, whatever ran before.
. "$(dirname "$0")/lib.sh"
if chance page_allocator_race 100; then
  echo "CHECK(free_pages == 64) failed: 63 == 64"
  exit 1
fi
