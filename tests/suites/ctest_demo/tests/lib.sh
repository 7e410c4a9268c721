# Sourced by the tests.

plans="${XDG_CACHE_HOME:-$HOME/.cache}/likewise-demo"

# chance NAME PER_THOUSAND: true with that chance, decided by the run's seed alone.
chance() {
  digest=$(printf '%s:%s' "${LIKEWISE_RUN_SEED:-0}" "$1" | sha256sum)
  [ $((0x$(printf '%.6s' "$digest") * 1000 / 16777216)) -lt "$2" ]
}
