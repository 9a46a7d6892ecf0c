#!/bin/sh
# Measures on a machine with a GPU, from a bundle that `make bench-bundle` made:
#   run-gpu.sh DIRECTORY [handoff] [growth] [chunks] [channel] [keeper] [calls] [crossing]
#   run-gpu.sh DIRECTORY [channel-two] [why] [trace] [strace]
# writes tables and plots into DIRECTORY; without words, the first seven, within 9 minutes. It
# says at the end how many seconds each took. channel-two is what channel does as well where there
# are two GPUs. The others look for what rivals of the handoff differ in: with experiments, execution
# traces of those in Go, and the system calls of a few handoffs (strace). It needs
# gcc and cuda.h for the rivals in C, and python3 with CuPy, PyTorch or cuda.core
# for those in Python; what is not there is left out, and the tables say so.
#   BENCH_QUICK=1  a tenth of the work
#   BENCH_SECONDS  how long all of it may take, 540 unless said otherwise; what has not ended then is lost
#   BENCH_LARGEST  the largest buffer; unless said otherwise what fits the device, 128GiB, for keeper 64GiB
#   WHY            for those: names of the rivals, with spaces between; cold is, for why, those
#                  that tell where code in Go takes long that runs now and then
#   WHY_SIZES      for why: sizes, 2MiB unless said otherwise
#   CUDA_HOME      where cuda.h is, /usr/local/cuda unless said otherwise
set -eu
usage() { sed -n '2,17s/^# \{0,1\}//p' "$0"; }
all="handoff growth chunks channel keeper calls crossing"
case ${1:-} in
-h | --help) usage; exit 0 ;;
'' | -*) usage >&2; exit 2 ;;
esac
export BENCH_COMMAND="${BENCH_QUICK:+BENCH_QUICK=1 }${WHY:+WHY='$WHY' }${WHY_SIZES:+WHY_SIZES=$WHY_SIZES }${BENCH_LARGEST:+BENCH_LARGEST=$BENCH_LARGEST }${BENCH_SECONDS:+BENCH_SECONDS=$BENCH_SECONDS }build/gpu-bench/run-gpu.sh $*"
dir=$1
shift
for what; do
	case " $all channel-two why trace strace " in
	*" $what "*) ;;
	*) echo "run-gpu.sh: there is no $what, but $all channel-two why trace strace" >&2; exit 2 ;;
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
# it writes no page: the seconds are well above what it takes.
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
	build_words && rivals="$rivals -rival c=$words,$ptx -rival c-single=$words,$ptx,-batch,0"
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
	[ ! -x "$words" ] || rivals="$rivals -rival c=$words,$ptx,-on,1 -rival c-single=$words,$ptx,-batch,0,-on,1"
	within 70 "$tree/bin/channel" -two $rivals -out "$out" -time 20s ${BENCH_QUICK:+-rounds 1}
}
# growth measures handoffs, then a keeper, and then a channel, with more and more of what can be more.
growth() {
	ok=0
	within 165 "$tree/bin/handoff" -growth $ours $before $c -out "$out" -time 2s -starts 2 -budget 122s -largest "${BENCH_LARGEST:-128GiB}" \
		${BENCH_QUICK:+-time 500ms -consumers 16 -chunks 256 -iterations 5} || ok=1
	within 40 "$tree/bin/keeper" -growth -gpufd "$tree/bin/keeps" -rounds 3 -budget 25s -out "$out" ${BENCH_QUICK:+-names 16 -readers 16} || ok=1
	rivals="-rival gpufd=$tree/bin/channel,-as,writer,$ptx"
	build_words && rivals="$rivals -rival c=$words,$ptx"
	within 75 "$tree/bin/readers" $rivals -budget 30s -out "$out" ${BENCH_QUICK:+-most 4 -rounds 16} || ok=1
	return $ok
}
chunks() {
	rivals=''
	gcc -O2 -I"$cuda/include" -L"$cuda/lib64/stubs" -o "$tree/bin/chunks-c" "$tree/c/chunks.c" -lcuda && rivals="-c $tree/bin/chunks-c"
	within 45 "$tree/bin/chunks" $rivals -budget 25s -out "$out" ${BENCH_QUICK:+-rounds 2 -chunks 1,16,256}
}
ours="-rival gpufd=$tree/bin/gpufd,-mode,ahead"
before="-rival gpufd-before=$tree/bin/gpufd,-mode,before"
spin="-rival gpufd-spin=$tree/bin/gpufd,-mode,ahead,-spin,1s,-lock -rival gpufd-before-spin=$tree/bin/gpufd,-mode,before,-spin,1s,-lock"
plain="-rival gpufd-plain=$tree/bin/gpufd,-mode,plain"
c="-rival c-before=$tree/bin/c,-mode,before -rival c-inside=$tree/bin/c,-mode,inside -rival c-legacy=$tree/bin/c,-mode,legacy"
core=$tree/python/cuda_core.py
python="-rival cupy=python3,$tree/python/cupy_ipc.py -rival torch=python3,$tree/python/torch_mp.py \
	-rival cuda-core-before=python3,$core,before"

# way NAME: the rival of that name, for why
way() {
	c=$tree/bin/c,-mode,before go=$tree/bin/ladder gpufd=$tree/bin/gpufd,-mode,before
	free=-lock,no vmm=-lock,no,-calls,vmm,-readonly
	case $1 in
	c-before) echo "$c" ;;
	c-poll) echo "$c,-wait,poll" ;;
	c-thread) echo "$c,-wait,thread" ;;
	c-thread-consumer) echo "$c,-wait,sleep/thread" ;;
	c-thread-producer) echo "$c,-wait,thread/sleep" ;;
	c-hop) echo "$c,-hop,sleep" ;;
	c-hop-spin) echo "$c,-hop,spin" ;;
	c-wakes) echo "$c,-wakes,1" ;;
	c-threads) echo "$c,-threads,20" ;;
	c-mappings) echo "$c,-mappings,200" ;;
	c-properties) echo "$c,-properties,1" ;;
	c-readonly) echo "$c,-readonly,1" ;;
	c-no-context) echo "$c,-current,0" ;;
	c-like-vmm) echo "$c,-properties,1,-readonly,1,-current,0" ;;
	c-spin) echo "$c,-wait,spin" ;;
	c-spinners) echo "$c,-spinners,2" ;;
	c-exec) echo "$c,-with,$tree/bin/c:-mode:before:-half:consumer" ;;
	c+go) echo "$c,-with,$go:-half:consumer" ;;
	go+c) echo "$go,-with,$tree/bin/c:-mode:before:-half:consumer" ;;
	go-raw) echo "$go" ;;
	go-block) echo "$go,-wait,block" ;;
	go-unlocked) echo "$go,-wait,block,$free" ;;
	go-vmm) echo "$go,-wait,block,$vmm" ;;
	go-poll) echo "$go,-wait,poll,$vmm" ;;
	go-sock) echo "$go,-wait,sock,$vmm" ;;
	go-deadline) echo "$go,-wait,sock,-deadlines,handoff,$vmm" ;;
	go-deadlines) echo "$go,-wait,sock,-deadlines,each,$vmm" ;;
	go-connect) echo "$go,-wait,sock,-deadlines,each,-connect,$vmm" ;;
	go-hop) echo "$go,-wait,sock,-deadlines,each,-hop,yes,$vmm" ;;
	go-poll-consumer) echo "$go,-wait,raw/poll" ;;
	go-poll-free) echo "$go,-wait,raw/poll,-lock,yes/no" ;;
	go-poll-producer) echo "$go,-wait,poll/raw,-lock,no/yes" ;;
	go-raw-bind) echo "$go,-bind,yes" ;;
	go-raw-free) echo "$go,$free" ;;
	go-raw-vmm) echo "$go,-calls,vmm" ;;
	go-raw-vmm-again) echo "$go,-calls,vmm,-rehearse" ;;
	go-raw-bare) echo "$go,-bare" ;;
	go-raw-cu) echo "$go,-calls,cu" ;;
	go-spin) echo "$go,-wait,spin" ;;
	go-spin-vmm) echo "$go,-wait,spin,-calls,vmm" ;;
	go-spin-again) echo "$go,-wait,spin,-rehearse" ;;
	go-spin-vmm-again) echo "$go,-wait,spin,-rehearse,-calls,vmm" ;;
	go-raw-properties) echo "$go,-properties" ;;
	gpufd-before) echo "$gpufd" ;;
	gpufd-again) echo "$gpufd,-rehearse" ;;
	gpufd-before-lock) echo "$gpufd,-lock" ;;
	gpufd-before-spin) echo "$gpufd,-spin,1s,-lock" ;;
	gpufd-before-free) echo "$gpufd,-spin,1s" ;;
	gpufd-1 | gpufd-2 | gpufd-4) echo "env,GOMAXPROCS=${1#gpufd-},$gpufd" ;;
	gpufd-no-gc) echo "env,GOGC=off,$gpufd" ;;
	gpufd-2-cores) echo "taskset,-c,2-3,$gpufd" ;;
	c-2-cores) echo "taskset,-c,2-3,$c" ;;
	gpufd-1-core) echo "taskset,-c,2,$gpufd" ;;
	c-1-core) echo "taskset,-c,2,$c" ;;
	*) echo "run-gpu.sh: there is no rival $1 for why" >&2; return 1 ;;
	esac
}
ways="c-before c-exec c+go go+c go-raw go-block go-unlocked go-vmm go-poll go-sock go-deadlines go-hop gpufd-before \
	go-raw-free go-raw-vmm go-raw-properties go-poll-consumer go-poll-free go-poll-producer \
	c-poll c-thread c-thread-consumer c-thread-producer c-hop c-hop-spin c-wakes c-threads c-mappings \
	c-properties c-readonly c-no-context c-like-vmm c-spin c-spinners \
	gpufd-1 gpufd-2 gpufd-4 gpufd-no-gc gpufd-2-cores c-2-cores"
cold="c-before go-raw go-raw-bind go-raw-bare go-raw-cu go-raw-vmm go-raw-vmm-again go-block go-vmm go-poll go-sock go-deadline go-deadlines go-connect \
	gpufd-before gpufd-again c-spin go-spin go-spin-vmm go-spin-again go-spin-vmm-again"

why() {
	rivals='' report=why names=${WHY:-$ways} time=60s
	[ "$names" != cold ] || { report=why-cold names=$cold time=45s; }
	[ -z "${BENCH_QUICK:-}" ] || time=6s
	for name in $names; do
		command=$(way "$name") || return
		rivals="$rivals -rival $name=$command"
	done
	"$tree/bin/handoff" -why -name $report $rivals -sizes "${WHY_SIZES:-2MiB}" -out "$out" -iterations 500 -time $time
}

# traces compares two rivals while they write execution traces.
traces() {
	rivals="-rival c-before=$(way c-before)"
	for name in ${WHY:-gpufd-before go-poll}; do
		command=$(way "$name") || return
		rivals="$rivals -rival $name=$command,-trace,$out/$name"
	done
	"$tree/bin/handoff" -why $rivals -sizes 2MiB -out "$out" -iterations 40 && gzip -f "$out"/*.producer "$out"/*.consumer
}

# straces writes the system calls of some handoffs, all in one turn, of both processes.
straces() {
	strace=strace
	command -v strace >/dev/null || strace="$tree/strace/strace"
	for name in ${WHY:-gpufd-before go-poll c-before}; do
		command=$(way "$name" | tr , ' ') || return
		for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do echo handoff 2097152 1; sleep 0.05; done |
			"$strace" -f -ttt -T -s 32 -o "$tree/$name.strace" $command >"$tree/$name.answers" || return
		tail -n 1 "$tree/$name.answers" | cut -c 1-300
		tail -n 12000 "$tree/$name.strace" | gzip >"$out/$name.strace.gz"
	done
}

measure() { # word; $ours, $before, $spin, $plain, $c and $python are words without spaces in them
	case $1 in
	crossing)
		within 25 "$tree/bin/crossing" -rounds 15 -out "$out" ${BENCH_QUICK:+-rounds 5} &&
			within 15 "$tree/bin/crossing-nocgo" -rounds 15 -out "$out" ${BENCH_QUICK:+-rounds 5} ;;
	calls) within 45 "$tree/bin/calls" -rounds 20 -out "$out" ${BENCH_QUICK:+-rounds 5} ;;
	handoff) within 135 "$tree/bin/handoff" $ours $before $spin $plain $c $python -out "$out" -time 9s -budget 85s ${BENCH_QUICK:+-time 1s} ;;
	growth) growth ;;
	chunks) chunks ;;
	channel) channel ;;
	channel-two) channel_two ;;
	keeper) keeper ;;
	why) why ;;
	trace) traces ;;
	strace) straces ;;
	esac
}

case " ${*:-$all} " in
*" handoff "* | *" growth "* | *" why "* | *" trace "* | *" strace "*) build_c ;;
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
