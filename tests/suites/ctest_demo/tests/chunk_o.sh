# Two realizations of one kernel, chosen by the environment; each says that it ran.
if [ "${LIKEWISE_DEMO_CHUNK_O:-1}" = 0 ]; then
  echo "LIKEWISE_COUNTER chunk_o.triton.fired=0"
  echo "LIKEWISE_COUNTER chunk_o.hand.fired=48"
else
  echo "LIKEWISE_COUNTER chunk_o.triton.fired=48"
  echo "LIKEWISE_COUNTER chunk_o.hand.fired=0"
fi
echo "LIKEWISE_METRIC chunk_o.max_abs_error=0.0078125"
