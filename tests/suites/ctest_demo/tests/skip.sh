# Skips itself.
echo "needs 2 devices, found 0"
exit 77
