#!/bin/sh
# Runs everything a GPU is needed for, from a bundle that `make gpu-bundle` made,
# on a machine without Go:
#   run.sh [flags] [SUITE…]  all suites and the demo; or some suites
#   run.sh two [flags]       what is for two GPUs
#   run.sh doctor            what gpufd doctor says here and in containers
# Flags are those of internal/suite: -v, -j N, -deadline 9m, -slowest 20.
# It prints a line per suite, what failed, what was not run and why, and "N passed, N
# failed, N skipped" in the end.
# GPUFD_ALL=1 runs also what is otherwise left to the software driver.
set -u
case ${1:-} in -h | --help | -help)
	sed -n '2,10s/^# \{0,1\}//p' "$0"
	exit 0
	;;
esac
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
xz -dc "$here/bundle.txz" | tar -C "$tree" -xf - || exit 1
export GPUFD_DRIVER=cuda GPUFD_BIN="$tree/bin"

echo "gpufd $(cat "$tree/VERSION") on $(uname -m), Linux $(uname -r), $(nproc) cores"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no nvidia-smi here"
begun=$(date +%s)
suite() { "$tree/bin/suite" -bundle "$tree" -together "$(cat "$tree/TOGETHER")" "$@"; }

what=${1:-} demo=
case $what in
two) shift && export GPUFD_REQUIRE="${GPUFD_REQUIRE:+$GPUFD_REQUIRE,}two" && suite -only "$tree/TWO" "$@" ;;
doctor) sh "$here/doctor.sh" "$tree/bin" ;;
*)
	all=1 # unless a suite is named
	for word; do case $word in -* | [0-9]*) ;; *) all= ;; esac; done
	# shellcheck disable=SC2046
	if [ -n "$all" ]; then
		if sh "$here/demo.sh" "$tree/bin" >"$tree/demo" 2>&1; then echo "the demo passed"; else cat "$tree/demo" && demo=failed; fi
		suite "$@" $(cat "$tree/SUITES")
	else
		suite "$@"
	fi
	;;
esac
code=$?
[ -z "$demo" ] || { echo "the demo failed, see above" && code=1; }
echo "all of it took $(($(date +%s) - begun)) s"
exit $code
