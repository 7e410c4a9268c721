# Dies of a signal.
ulimit -c 0
echo "terminate called after throwing an instance of 'std::system_error'"
kill -ABRT $$
