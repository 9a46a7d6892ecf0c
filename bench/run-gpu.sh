#!/bin/sh
# Measures on a machine with a GPU, from a bundle that `make bench-bundle` made:
#   run-gpu.sh DIRECTORY [crossing] [calls] [chunks] [handoff] [growth]
# writes tables and plots into DIRECTORY; without words, all of them. It needs
# gcc and cuda.h for the rival in C, and python3 with CuPy, PyTorch or cuda.core
# for those in Python; what is not there is left out, and the tables say so.
#   BENCH_QUICK=1  a tenth of the work
#   BENCH_LARGEST  the largest buffer, 128GiB unless said otherwise
#   CUDA_HOME      where cuda.h is, /usr/local/cuda unless said otherwise
set -eu
usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; }
all="crossing calls chunks handoff growth"
case ${1:-} in
-h | --help) usage; exit 0 ;;
'' | -*) usage >&2; exit 2 ;;
esac
export BENCH_COMMAND="${BENCH_QUICK:+BENCH_QUICK=1 }${BENCH_LARGEST:+BENCH_LARGEST=$BENCH_LARGEST }build/gpu-bench/run-gpu.sh $*"
dir=$1
shift
for what; do
	case " $all " in
	*" $what "*) ;;
	*) echo "run-gpu.sh: there is no $what, but $all" >&2; exit 2 ;;
	esac
done
mkdir -p "$dir"
out=$(cd "$dir" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
trap 'exit 130' INT TERM # so that dash gets to EXIT
tar -C "$tree" -xzf "$here/bundle.tgz"
cuda=${CUDA_HOME:-/usr/local/cuda}

build_c() { # a rival that could not be built is one that cannot be started
	gcc -O2 -I"$cuda/include" -L"$cuda/lib64/stubs" -o "$tree/bin/c" "$tree/c/handoff.c" -lcuda ||
		echo "run-gpu.sh: no rival in C" >&2
}
ours="-rival gpufd=$tree/bin/gpufd,-mode,ahead"
before="-rival gpufd-before=$tree/bin/gpufd,-mode,before"
plain="-rival gpufd-plain=$tree/bin/gpufd,-mode,plain"
c="-rival c-before=$tree/bin/c,-mode,before -rival c-inside=$tree/bin/c,-mode,inside -rival c-legacy=$tree/bin/c,-mode,legacy"
core=$tree/python/cuda_core.py
python="-rival cupy=python3,$tree/python/cupy_ipc.py -rival torch=python3,$tree/python/torch_mp.py \
	-rival cuda-core-before=python3,$core,before"

measure() { # word; $ours, $before, $plain, $c and $python are words without spaces in them
	case $1 in
	crossing)
		"$tree/bin/crossing" -out "$out" ${BENCH_QUICK:+-rounds 5} &&
			"$tree/bin/crossing-nocgo" -out "$out" ${BENCH_QUICK:+-rounds 5} ;;
	calls) "$tree/bin/calls" -out "$out" ${BENCH_QUICK:+-rounds 5} ;;
	chunks) "$tree/bin/chunks" -out "$out" ${BENCH_QUICK:+-rounds 2} ;;
	handoff) "$tree/bin/handoff" $ours $before $plain $c $python -out "$out" ${BENCH_QUICK:+-time 1s} ;;
	growth) "$tree/bin/handoff" -growth $ours $before $c -out "$out" -time 3s -largest "${BENCH_LARGEST:-128GiB}" \
		${BENCH_QUICK:+-time 500ms -starts 2 -consumers 16 -chunks 256} ;;
	esac
}

case " ${*:-$all} " in
*" handoff "* | *" growth "*) build_c ;;
esac
failed=
for what in ${*:-$all}; do
	echo "== $what"
	(measure "$what") || failed="$failed $what"
done
[ -z "$failed" ] || { echo "run-gpu.sh: failed:$failed" >&2; exit 1; }
