#!/bin/sh
# Runs everything a GPU is needed for, from a bundle that `make gpu-bundle` made,
# on a machine with Python, but without Go:
#   run.sh [flags] [PACKAGE…]      the demo and all packages' tests; or those of some
#   run.sh two [flags] [PACKAGE…]  the same where there are two GPUs: no test may be skipped for want of the second
#   run.sh doctor                  what gpufd doctor says here and in containers
# Flags: -v, -run RE, -slowest N, -deadline SECONDS. GPUFD_ALL=1 runs also what is otherwise left to the software driver.
set -u
case ${1:-} in -h | --help | -help)
	sed -n '2,7s/^# \{0,1\}//p' "$0"
	exit 0
	;;
esac
here=$(cd "$(dirname "$0")" && pwd)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
xz -dc "$here/bundle.txz" | tar -C "$tree" -xf - || exit 1
export GPUFD_DRIVER=cuda GPUFD_BIN="$tree/bin" GPUFD_REQUIRE="${GPUFD_REQUIRE:+$GPUFD_REQUIRE,}gpu"

echo "gpufd $(cat "$tree/VERSION") on $(uname -m), Linux $(uname -r), $(nproc) cores"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no nvidia-smi here"
begun=$(date +%s)
case ${1:-} in
doctor) sh "$here/doctor.sh" "$tree/bin"; exit ;;
two) shift && GPUFD_REQUIRE="$GPUFD_REQUIRE,two" ;;
esac
code=0
if ! sh "$here/demo.sh" "$tree/bin" >"$tree/demo" 2>&1; then
	cat "$tree/demo" && echo "the demo failed" && code=1
fi
python3 "$tree/run-gpu.py" "$tree" "$@" || code=1
echo "all of it took $(($(date +%s) - begun)) s"
exit $code
