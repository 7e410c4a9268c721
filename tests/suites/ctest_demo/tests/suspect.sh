# The innocent suspect: it writes into the same folder right before the victim, a file that nobody reads.
. "$(dirname "$0")/lib.sh"
mkdir -p "$plans"
echo "m=64 n=64 k=64" > "$plans/gemm.autotune"
