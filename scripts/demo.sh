#!/bin/sh
# Starts a producer, then a consumer beside it, and fails if either does.
#   demo.sh DIRECTORY [producer's flags]
set -eu
bin=$1
shift
dir=$(mktemp -d) # mode 0700, as the socket wants it
out=$dir/producer.out
cleanup() {
	[ -z "${pid:-}" ] || kill "$pid" 2>/dev/null || true
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

touch "$out"
"$bin/producer" -socket "$dir/demo.sock" "$@" >"$out" 2>&1 &
pid=$!
# Once the producer names its device it listens, and a consumer that comes early
# waits.
tries=0
while ! grep -q -e '^Using CUDA device' -e '"event":"device"' "$out" && kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 300 ]; do
	tries=$((tries + 1))
	sleep 0.1
done

consumer=0
"$bin/consumer" -socket "$dir/demo.sock" || consumer=$?
producer=0
wait "$pid" || producer=$?
pid=
echo
cat "$out"
echo
echo "producer exit $producer, consumer exit $consumer"
[ "$producer" -eq 0 ] && [ "$consumer" -eq 0 ]
