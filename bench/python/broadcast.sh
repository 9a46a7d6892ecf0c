#!/usr/bin/env bash
# A broadcast from one keeper to another, beside torch.distributed's bare rate in the same run: over
# NVLink, and over sockets. It takes two GPUs of one host, because two ranks of NCCL cannot have one
# GPU. GPUFD is the command gpufd, GPUFD_PYTHON the package.
#
#     GPUFD=…/gpufd ./broadcast.sh [GiB [ROUNDS]]
#
# The last lines have the medians, and ok says whether the broadcast has 0.9 of the bare rate. The
# exit status is 1 unless it has, either way. 32 GiB and 3 rounds take about four minutes.
set -euo pipefail
cd "$(dirname "$0")"
gib=${1:-32} rounds=${2:-3}
: "${GPUFD:=gpufd}" "${GPUFD_PYTHON:=$(cd ../../python && pwd)}"
export GPUFD GPUFD_PYTHON PYTHONPATH=$GPUFD_PYTHON NCCL_NVLS_ENABLE=0 GLOO_SOCKET_IFNAME=lo
if [ "$(python3 -c 'import torch; print(torch.cuda.device_count())')" -lt 2 ]; then
	echo "broadcast.sh takes two GPUs, and there are fewer here: not run" >&2
	exit 3
fi
dir=$(mktemp -d)
pids=()
finish() {
	[ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
	for i in 0 1; do kill "$(grep -o '"store_pid":[0-9]*' "$dir/k$i.log" | cut -d: -f2)" 2>/dev/null || true; done
	rm -rf "$dir"
}
trap finish EXIT
for i in 0 1; do
	"$GPUFD" keeper --socket "$dir/k$i" --json >"$dir/k$i.log" 2>&1 </dev/null &
	pids+=($!)
done
for i in 0 1; do until [ -S "$dir/k$i.ctl" ]; do kill -0 "${pids[i]}"; sleep 0.1; done; done
run() { python3 -m torch.distributed.run --nproc_per_node 2 --master_port "$1" "${@:2}"; }

python3 - "$dir/k0" "$gib" <<'PY'
import sys
import gpufd.torch, torch
n = int(float(sys.argv[2]) * 2**30) // 16
state = {f"t{i}": torch.randint(0, 255, (n,), dtype=torch.uint8, device="cuda:0") for i in range(16)}
print(gpufd.torch.put("model", state, socket=sys.argv[1], labels={"revision": "bench"}, timeout=120))
PY
for way in nvlink sockets; do
	if [ $way = sockets ]; then export NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4; fi
	for round in $(seq "$rounds"); do
		echo "{\"way\":\"$way\",\"round\":$round}" | tee -a "$dir/lines"
		run 29541 barerate.py --gib "$gib" | tee -a "$dir/lines"
		# The second keeper's memory goes to the second GPU: --device is that of a rank's keeper.
		run 29542 -m gpufd.broadcast model --socket "$dir/k{rank}" --json --timeout 300s --device 1 | tee -a "$dir/lines"
		"$GPUFD" get model --verify --label revision=bench --socket "$dir/k1"
		"$GPUFD" rm model --socket "$dir/k1"
	done
done
python3 ratios.py <"$dir/lines"
