#!/bin/sh
# Runs everything a GPU is needed for, from a bundle that `make gpu-bundle` made,
# on a machine without Go:
#   run.sh [flags] [SUITE…]   all suites and the demo without any, and the rows of docs/faults.md
#   run.sh two [flags]        what is for two GPUs
#   run.sh faults [flags]     a line for each fault of docs/faults.md that is for a GPU
# Flags are those of internal/suite: -v, -j N, -rows 19,25, -deadline 9m, -slowest 20.
# It prints a line per suite, what failed, what was not run and why, and "N passed, N
# failed, N skipped" in the end.
# With GPUFD_CALLED=DIRECTORY the tests note there which driver functions succeeded.
set -u
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
xz -dc "$here/bundle.txz" | tar -C "$tree" -xf - || exit 1
export GPUFD_DRIVER=cuda GPUFD_BIN="$tree/bin"
[ -z "${GPUFD_CALLED:-}" ] || GPUFD_CALLED=$(cd "$GPUFD_CALLED" && pwd) || exit 1 # suites change directory

echo "gpufd $(cat "$tree/VERSION") on $(uname -m), Linux $(uname -r), $(nproc) cores"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no nvidia-smi here"
begun=$(date +%s)
suite() { "$tree/bin/suite" -bundle "$tree" -together "$(cat "$tree/TOGETHER")" "$@"; }

what=${1:-}
case $what in
two) shift && suite -only "$tree/TWO" "$@" ;;
faults) shift && suite -faults "$@" ;;
*)
	demo=1
	for word; do case $word in -* | [0-9]*) ;; *) demo= ;; esac; done
	# shellcheck disable=SC2046
	if [ -n "$demo" ]; then
		sh "$here/demo.sh" "$tree/bin" >"$tree/demo" 2>&1 || { cat "$tree/demo" && echo "the demo failed" && exit 1; }
		echo "the demo passed"
		suite -faults "$@" $(cat "$tree/SUITES")
	else
		suite "$@"
	fi
	;;
esac
code=$?
echo "all of it took $(($(date +%s) - begun)) s"
exit $code
