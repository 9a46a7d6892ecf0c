#!/bin/sh
# Measures on a machine with a GPU, from a bundle that `make bench-bundle` made:
#   run-gpu.sh DIRECTORY [handoff] [channel] [channel-two] [keeper] [growth] [sleep] [link] [crossing]
# prints tables and writes CSV files into DIRECTORY; without words, all but channel-two, which channel does as well
# where there are two GPUs. It says at the end how many seconds each took. It needs
# gcc and cuda.h for the rivals in C, and python3 with CuPy or PyTorch
# for those in Python; what is not there is left out, and the tables say so.
#   BENCH_QUICK=1  a tenth of the work
#   BENCH_SECONDS  how long all of it may take, 540 unless said otherwise; what has not ended then is lost
#   BENCH_LARGEST  what keeper attaches to; unless said otherwise what fits the device, 64GiB at most
#   CUDA_HOME      where cuda.h is, /usr/local/cuda unless said otherwise
set -eu
usage() { sed -n '2,12s/^# \{0,1\}//p' "$0"; }
all="handoff channel keeper growth sleep link crossing"
case ${1:-} in
-h | --help) usage; exit 0 ;;
'' | -*) usage >&2; exit 2 ;;
esac
export BENCH_COMMAND="${BENCH_QUICK:+BENCH_QUICK=1 }${BENCH_LARGEST:+BENCH_LARGEST=$BENCH_LARGEST }${BENCH_SECONDS:+BENCH_SECONDS=$BENCH_SECONDS }build/gpu-bench/run-gpu.sh $*"
dir=$1
shift
for what; do
	case " $all channel-two " in
	*" $what "*) ;;
	*) echo "run-gpu.sh: there is no $what, but $all channel-two" >&2; exit 2 ;;
	esac
done
mkdir -p "$dir"
out=$(cd "$dir" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
trap 'exit 130' INT TERM # so that dash gets to EXIT
tar -C "$tree" -xJf "$here/bundle.txz"
cuda=${CUDA_HOME:-/usr/local/cuda}

begun=$(date +%s)
left() { echo $((begun + ${BENCH_SECONDS:-540} - $(date +%s))); }
# within SECONDS COMMAND ends the command after that time at the latest, and with all of it. Then
# it writes no file: the seconds are well above what it takes.
within() {
	seconds=$1
	shift
	[ "$(left)" -ge "$seconds" ] || seconds=$(left)
	[ "$seconds" -gt 0 ] || { echo "run-gpu.sh: no time left for $1" >&2; return 1; }
	timeout -k 5 "$seconds" "$@"
}

build_c() { # a rival that could not be built is one that cannot be started
	gcc -O2 -pthread -I"$cuda/include" -L"$cuda/lib64/stubs" -o "$tree/bin/c" "$tree/c/handoff.c" -lcuda ||
		echo "run-gpu.sh: no rival in C" >&2
}
# largest says which size the device has room for, beside a few contexts.
largest() {
	free=$(nvidia-smi -i 0 --query-gpu=memory.free --format=csv,noheader,nounits) || free=0
	for gib in 64 32 16 8; do
		[ "$free" -lt $((gib * 1024 + 4096)) ] || { echo ${gib}GiB; return; }
	done
	echo 1GiB
}
# keeper measures on a file in memory. What is not there is no rival.
keeper() {
	rivals=''
	gcc -O2 -I"$cuda/include" -L"$cuda/lib64/stubs" -o "$tree/bin/attach" "$tree/c/attach.c" -lcuda && rivals="-c $tree/bin/attach"
	python3 -c 'import safetensors.torch' && rivals="$rivals -python python3,$tree/python/load_file.py"
	within 90 "$tree/bin/keeper" -gpufd "$tree/bin/keeps" $rivals -attach "${BENCH_LARGEST:-$(largest)}" -rounds 4 -dir /dev/shm -out "$out" \
		${BENCH_QUICK:+-rounds 2 -load 2GiB}
}
words=$tree/bin/words ptx=-ptx,$tree/c/check.ptx
build_words() { gcc -O2 -I"$cuda/include" -L"$cuda/lib64/stubs" -o "$words" "$tree/c/channel.c" -lcuda; }
# channel has frames pass between processes, for a minute and a half, and a minute more where there are two GPUs.
channel() {
	rivals="-rival gpufd=$tree/bin/channel,-as,writer,$ptx"
	build_words && rivals="$rivals -rival c=$words,$ptx"
	for python in torch cupy; do
		python3 -c "import $python" 2>/dev/null && rivals="$rivals -frames $python=python3,$tree/python/frames.py,$python"
	done
	within 110 "$tree/bin/channel" $rivals -out "$out" -time 50s ${BENCH_QUICK:+-rounds 1} || return
	if [ "$(nvidia-smi -L | wc -l)" -lt 2 ]; then
		echo "run-gpu.sh: one GPU: no frames between two"
		return
	fi
	channel_two
}
# channel_two has them pass between two GPUs.
channel_two() {
	rivals="-rival gpufd=$tree/bin/channel,-as,writer,$ptx,-on,1"
	[ -x "$words" ] || build_words || true
	[ ! -x "$words" ] || rivals="$rivals -rival c=$words,$ptx,-on,1"
	within 70 "$tree/bin/channel" -two $rivals -out "$out" -time 20s ${BENCH_QUICK:+-rounds 1}
}
# growth measures a keeper with more and more names and readers.
growth() {
	within 40 "$tree/bin/keeper" -growth -gpufd "$tree/bin/keeps" -rounds 3 -budget 25s -out "$out" ${BENCH_QUICK:+-names 16 -readers 16}
}
# link says how fast the link is, in GB/s.
link() {
	within 60 "$tree/bin/link" $([ -n "${BENCH_QUICK:-}" ] && echo 1 || echo 8) >"$out/link.json" || { cat "$out/link.json" >&2; return 1; }
	cat "$out/link.json"
}
ours="-rival gpufd=$tree/bin/handoff,-as,producer"
c="-rival c=$tree/bin/c"
python="-rival cupy=python3,$tree/python/cupy_ipc.py -rival torch=python3,$tree/python/torch_mp.py"

measure() { # word; $ours, $c and $python are words without spaces in them
	case $1 in
	crossing) within 25 "$tree/bin/crossing" -rounds 15 -out "$out" ${BENCH_QUICK:+-rounds 5} ;;
	handoff) within 135 "$tree/bin/handoff" $ours $c $python -out "$out" -time 9s -budget 85s ${BENCH_QUICK:+-time 1s} ;;
	growth) growth ;;
	channel) channel ;;
	channel-two) channel_two ;;
	keeper) keeper ;;
	sleep) within 60 "$tree/bin/sleep" -rival "gpufd=$tree/bin/sleep,-as,engine" -rival "c=$tree/bin/remap" -out "$out" ${BENCH_QUICK:+-rounds 5} ;;
	link) link ;;
	esac
}

case " ${*:-$all} " in
*" handoff "*) build_c ;;
esac
failed='' took=''
for what in ${*:-$all}; do
	echo "== $what"
	from=$(date +%s)
	(measure "$what") || failed="$failed $what"
	took="$took $what $(($(date +%s) - from)),"
done
echo "== seconds:$took all $(($(date +%s) - begun))"
[ -z "$failed" ] || { echo "run-gpu.sh: failed:$failed" >&2; exit 1; }
