#!/bin/sh
# Starts a producer and, beside it, a consumer, which waits for it. Fails if either does.
#   demo.sh DIRECTORY [producer's flags]
set -eu
bin=$1
shift
dir=$(mktemp -d) # mode 0700, as the socket needs it
out=$dir/producer.out
cleanup() {
	[ -z "${pid:-}" ] || kill "$pid" 2>/dev/null || true
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

"$bin/producer" --socket "$dir/demo.sock" "$@" >"$out" 2>&1 &
pid=$!
consumer=0
"$bin/consumer" --socket "$dir/demo.sock" || consumer=$?
producer=0
wait "$pid" || producer=$?
pid=
echo
cat "$out"
echo
echo "producer exit $producer, consumer exit $consumer"
[ "$producer" -eq 0 ] && [ "$consumer" -eq 0 ]
