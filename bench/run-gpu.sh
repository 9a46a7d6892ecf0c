#!/bin/sh
# Measures on a machine with a GPU, from a bundle that `make bench-bundle` made:
#   run-gpu.sh DIRECTORY [crossing] [calls] [handoff] [growth]
# writes tables and plots into DIRECTORY; without words, all of them. It needs
# gcc and cuda.h for the rival in C, and python3 with CuPy, PyTorch or cuda.core
# for those in Python; what is not there is left out, and the tables say so.
#   BENCH_QUICK=1  a tenth of the work
#   BENCH_LARGEST  the largest buffer, 128GiB unless said otherwise
#   CUDA_HOME      where cuda.h is, /usr/local/cuda unless said otherwise
set -eu
[ $# -ge 1 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
shift
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
tar -C "$tree" -xzf "$here/bundle.tgz"
cuda=${CUDA_HOME:-/usr/local/cuda}
export BENCH_COMMAND="bench/run-gpu.sh ${*:-}"
[ -z "${BENCH_QUICK:-}" ] || BENCH_COMMAND="BENCH_QUICK=1 $BENCH_COMMAND"

rivals() { # prints -rival flags; file names have no spaces here
	echo "-rival gpufd=$tree/bin/gpufd -rival gpufd-plain=$tree/bin/gpufd,-plain"
	if gcc -O2 -I"$cuda/include" -L"$cuda/lib64/stubs" -o "$tree/bin/c" "$tree/c/handoff.c" -lcuda; then
		for mode in before inside legacy; do echo "-rival c-$mode=$tree/bin/c,-mode,$mode"; done
	fi
	[ "$1" = python ] || return 0
	echo "-rival cupy=python3,$tree/python/cupy_ipc.py -rival torch=python3,$tree/python/torch_mp.py"
	for mode in before object; do echo "-rival cuda-core-$mode=python3,$tree/python/cuda_core.py,$mode"; done
}

for what in ${*:-crossing calls handoff growth}; do
	echo "== $what"
	case $what in
	crossing)
		"$tree/bin/crossing" -out "$out" ${BENCH_QUICK:+-rounds 5}
		"$tree/bin/crossing-nocgo" -out "$out" ${BENCH_QUICK:+-rounds 5} ;;
	calls) "$tree/bin/calls" -out "$out" ${BENCH_QUICK:+-rounds 5} ;;
	handoff) "$tree/bin/handoff" $(rivals python) -out "$out" ${BENCH_QUICK:+-time 1s} ;;
	growth) "$tree/bin/handoff" -growth $(rivals none) -out "$out" -time 3s -largest "${BENCH_LARGEST:-128GiB}" \
		${BENCH_QUICK:+-time 500ms -starts 2 -consumers 16 -chunks 256} ;;
	*) echo "run-gpu.sh: there is no $what" >&2; exit 2 ;;
	esac
done
