#!/bin/sh
# Runs everything a GPU is needed for, from a bundle that `make gpu-bundle` made,
# on a machine without Go:
#   run.sh [-v] [SUITE…]
#   run.sh faults [-v] [-run ROWS]
# Prints one line per suite, what failed, and "N passed, N failed, N skipped" in
# the end; or a line per fault of docs/faults.md that is for a GPU.
# GPUFD_REQUIRE_GPU=1 makes a skip for want of a GPU a failure. With
# GPUFD_CALLED=DIRECTORY the tests note there which driver functions succeeded.
set -u
here=$(cd "$(dirname "$0")" && pwd)
verbose=
[ "${1:-}" != -v ] || { verbose=1; shift; }
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
xz -dc "$here/bundle.txz" | tar -C "$tree" -xf - || exit 1
suites=${*:-$(cat "$tree/SUITES")}
export GPUFD_DRIVER=cuda GPUFD_BIN="$tree/bin"
export GPUFD_REQUIRE_GPU="${GPUFD_REQUIRE_GPU:-0}"
[ -z "${GPUFD_CALLED:-}" ] || GPUFD_CALLED=$(cd "$GPUFD_CALLED" && pwd) || exit 1 # suites change directory

echo "gpufd $(cat "$tree/VERSION") on $(uname -m), Linux $(uname -r)"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no nvidia-smi here"
[ "${1:-}" != faults ] || { shift; "$tree/bin/faults" -bundle "$tree" "$@"; exit; }

count() { grep -cE "^ *--- $1:" "$2"; }
passed=0 failed=0 skipped=0
suite() { # name, command…
	name=$1
	shift
	log=$tree/log.$(echo "$name" | tr / _)
	begun=$(date +%s)
	"$@" >"$log" 2>&1
	code=$?
	p=$(count PASS "$log") f=$(count FAIL "$log") s=$(count SKIP "$log")
	[ "$code" -eq 0 ] || [ "$f" -gt 0 ] || f=1 # it crashed, or left something behind
	echo "suite $name: $p passed, $f failed, $s skipped, exit $code, $(($(date +%s) - begun)) s"
	if [ "$code" -ne 0 ] || [ -n "$verbose" ]; then cat "$log"; else grep -B1 -E '^ *--- SKIP|^conformance:' "$log"; fi
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}
in_suite() { cd "$tree/$1" && ./suite.test -test.v -test.timeout "${GPUFD_TEST_TIMEOUT:-9m}"; }
for s in $suites; do
	suite "$s" in_suite "$s"
done
cd "$here"
[ -n "$*" ] || suite demo sh -c "sh '$here/demo.sh' '$tree/bin' && echo '--- PASS: demo' || { echo '--- FAIL: demo'; exit 1; }"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
