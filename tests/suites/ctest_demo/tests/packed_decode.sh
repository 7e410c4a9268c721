# The kernel whose toggle is declared in likewise.toml and read by nobody.
echo "LIKEWISE_COUNTER packed_decode.fired=30"
