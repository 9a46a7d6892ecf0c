#!/bin/sh
# Packs the benchmarks into build/gpu-bench, for a GPU machine without Go:
#   bench-bundle.sh VERSION
# What is ours is built without cgo, as everybody gets it; what compares with
# cgo, with it.
set -eu
version=${1:?usage: bench-bundle.sh VERSION}
out=$PWD/build/gpu-bench
rm -rf "$out"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$out" "$tree/bin"
ldflags="-s -w -X github.com/gpufd/gpufd/bench/internal/report.Commit=$version"
cd bench
CGO_ENABLED=1 ${GO:-go} build -ldflags="$ldflags" -o "$tree/bin/" ./crossing
CGO_ENABLED=0 ${GO:-go} build -ldflags="$ldflags" -o "$tree/bin/" ./handoff ./keeper ./channel ./sleep
CGO_ENABLED=0 ${GO:-go} build -C .. -ldflags="-s -w" -o "$tree/bin/keeps" ./cmd/gpufd
for c in remap link; do # which take no header of CUDA
	${CC:-cc} -O2 -Wall -Wextra -o "$tree/bin/$c" "c/$c.c"
done
cp -r c python "$tree/"
# A dictionary larger than a binary sees what the binaries have in common.
tar -C "$tree" -cf - . | xz -T1 --lzma2=preset=6,dict=256MiB >"$out/bundle.txz"
cp run-gpu.sh "$out/"
echo "build/gpu-bench: $(du -m "$out/bundle.txz" | cut -f1) MiB, version $version"
