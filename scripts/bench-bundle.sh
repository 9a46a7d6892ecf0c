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
CGO_ENABLED=1 ${GO:-go} build -ldflags="$ldflags" -o "$tree/bin/" ./crossing ./calls
CGO_ENABLED=0 ${GO:-go} build -ldflags="$ldflags" -o "$tree/bin/crossing-nocgo" ./crossing
CGO_ENABLED=0 ${GO:-go} build -ldflags="$ldflags" -o "$tree/bin/" ./chunks ./handoff ./gpufd ./ladder
cp -r c python "$tree/"
if [ -x ../build/strace/strace ]; then # for `run-gpu.sh DIR strace`; see bench/README.md
	cp -r ../build/strace "$tree/"
fi
tar -C "$tree" -czf "$out/bundle.tgz" .
cp run-gpu.sh "$out/"
echo "build/gpu-bench: $(du -m "$out/bundle.tgz" | cut -f1) MiB, version $version"
