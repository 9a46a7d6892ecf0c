#!/bin/sh
# Runs gpufd doctor on this machine, and prints what it says:
#   doctor-runs.sh DIRECTORY     # of the commands
# on all GPUs; on one of them; in a container; between two containers; between two processes that see
# different GPUs; and while an fd store holds memory. A container is a process in PID, IPC, network,
# UTS and mount namespaces of its own, with a /dev/shm of its own.
# It fails where doctor does not name the cause, or names another.
set -u
bin=$(cd "$1" && pwd) || exit 1
dir=$(mktemp -d) # mode 0700, as sockets need it
pids= keeper= failed=0
cleanup() {
	[ -z "$keeper" ] || { kill "$keeper" && wait "$keeper"; } 2>/dev/null # before its store: it would start another
	pids="$pids $(sed -n 's/.*"store_pid":\([0-9]*\).*/\1/p' "$dir/keeper" 2>/dev/null)"
	for p in $pids; do kill "$p" 2>/dev/null; done
	for p in $pids; do kill -KILL "$p" 2>/dev/null; done # unshare(1) heeds no other signal
	wait
	rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
export PATH="$bin:$PATH" XDG_RUNTIME_DIR="$dir"
[ "${GPUFD_DRIVER:-}" != soft ] || export GPUFD_SOFT_DIR="$dir/soft" # a container has another /dev/shm
container="unshare --kill-child --fork --pid --ipc --net --uts --mount --mount-proc sh -c"
# Where the user is not root, or root may make no namespaces, a user namespace is added.
unshare --fork --pid --ipc --net --uts --mount --mount-proc true 2>/dev/null || container="unshare --user --map-root-user${container#unshare}"
shm='mount -t tmpfs none /dev/shm && exec "$0" "$@"'

# causes prints what the rows of $dir/said name, each once.
causes() { sed -n 's/^        why: .*(\([a-z-]*\))$/\1/p' "$dir/said" | sort -u | tr '\n' ' '; }

# run TITLE COMMAND CODE CAUSES…: runs $COMMAND by sh, and prints a section.
run() {
	title=$1 command=$2 want=$3
	shift 3
	sh -c "$command" >"$dir/said" 2>&1
	code=$?
	printf '\n### %s\n\n`%s`; exit code %s.\n\n```text\n' "$title" "$command" "$code" | sed "s|$container '$shm'|CONTAINER|; s|$dir|DIR|g"
	sed "s|$dir|DIR|g" "$dir/said"
	printf '```\n'
	expected=$(for c; do echo "$c"; done | sort -u | tr '\n' ' ')
	[ "$code" = "$want" ] && [ "$(causes)" = "$expected" ] && return
	echo "doctor-runs.sh: $title: exit code $code, want $want; causes: $(causes); want: $expected" >&2
	failed=1
}

# await FILE: until it is there, or a minute is over.
await() {
	for _ in $(seq 600); do [ ! -e "$1" ] || return 0 && sleep 0.1; done
	echo "doctor-runs.sh: $1 is not there" >&2
	failed=1
}

sh -c 'gpufd doctor' >"$dir/said" 2>&1
here=$(causes) # what this machine lacks, an IMEX channel for one
gpus=$(grep -c '^[A-Z]* *context ' "$dir/said")
# shellcheck disable=SC2086
run "All GPUs of the machine: $gpus" 'gpufd doctor' 0 $here
if [ "$gpus" -gt 1 ]; then
	# shellcheck disable=SC2086
	run "One of them" 'CUDA_VISIBLE_DEVICES=0 gpufd doctor' 0 $here
	CUDA_VISIBLE_DEVICES=0 gpufd doctor --offer "$dir/first" >/dev/null &
	pids="$pids $!"
	await "$dir/first"
	run "Two processes that see different GPUs" "CUDA_VISIBLE_DEVICES=1 gpufd doctor --with $dir/first" 1 gpu-hidden
fi

head -c 4M /dev/zero >"$dir/file"
gpufd keeper --socket "$dir/keeper.sock" --json >"$dir/keeper" 2>&1 &
keeper=$!
await "$dir/keeper.sock"
if gpufd put zeros "$dir/file" --socket "$dir/keeper.sock" >/dev/null; then
	# shellcheck disable=SC2086
	run "While a keeper and its fd store hold memory" 'gpufd doctor' 0 $here held-memory
	gpufd rm zeros --socket "$dir/keeper.sock" >/dev/null
else
	failed=1
fi

if ! $container "$shm" true 2>"$dir/said"; then
	echo "doctor-runs.sh: no container here: $(cat "$dir/said")" >&2
	exit 1
fi
# shellcheck disable=SC2086
run "In a container" "$container '$shm' gpufd doctor" 0 $here pid-namespace
$container "$shm" gpufd doctor --offer "$dir/second" >/dev/null &
pids="$pids $!"
await "$dir/second"
run "Between two containers" "$container '$shm' gpufd doctor --with $dir/second" 1 pid-equal shm-common
exit $failed
