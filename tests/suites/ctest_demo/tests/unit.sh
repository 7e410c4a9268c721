# A test that always passes.
echo "$1: 3 assertions passed"
