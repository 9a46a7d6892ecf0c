#!/bin/sh
# Packs what a GPU is needed for into build/gpu, for a machine without Go:
#   gpu-bundle.sh COMMANDS PACKAGES TOGETHER VERSION
# TOGETHER are those of the packages whose tests may share a GPU.
# Test binaries lie in directories like the sources', with the files they read.
set -eu
commands=$1 packages=$2 together=$3 version=$4
out=build/gpu
rm -rf "$out"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$out" "$tree/bin" "$tree/abi"
cp abi/*.json "$tree/abi/"
for c in $commands; do
	${GO:-go} build -ldflags='-s -w' -o "$tree/bin/$c" "./cmd/$c"
done
${GO:-go} build -ldflags='-s -w' -o "$tree/bin/" cmd/test2json
# The lessons, and the comments that say what they print, and the whole programs.
for lesson in examples/go/[0-9]* examples/go/weights examples/go/vector-add examples/go/mem-map-ipc; do
	${GO:-go} build -ldflags='-s -w' -o "$tree/bin/" "./$lesson"
	mkdir -p "$tree/$lesson"
	cp "$lesson/main.go" "$tree/$lesson/"
done
for p in $packages; do
	mkdir -p "$tree/$p"
	${GO:-go} test -c -ldflags='-s -w' -o "$tree/$p/suite.test" "./$p"
	[ ! -d "$p/testdata" ] || cp -r "$p/testdata" "$tree/$p/"
	# Files that drift tests compare with, beside the binary as in the sources.
	cp "$p"/z*.go "$tree/$p/" 2>/dev/null || true
done
# The programs in other languages, which tests start, and the vectors of theirs.
mkdir -p "$tree/examples/python" "$tree/examples/serve" "$tree/examples/vllm" "$tree/examples/c" "$tree/python/gpufd" "$tree/python/tests" "$tree/scripts"
cp examples/python/*.py "$tree/examples/python/"
cp examples/serve/*.py "$tree/examples/serve/"
cp examples/vllm/*.py "$tree/examples/vllm/"
cp scripts/vllm_signatures.py "$tree/scripts/"
cp python/pyproject.toml "$tree/python/"
(cd python && find gpufd -name "*.py" -o -name "*.ptx" -o -name py.typed | tar -cf - -T -) | tar -C "$tree/python" -xf -
cp python/tests/*.py python/tests/*.c python/tests/*.json "$tree/python/tests/"
(cd python/tests && find vllmstandin -name "*.py" | tar -cf - -T -) | tar -C "$tree/python/tests" -xf -
cp examples/c/*.c "$tree/examples/c/"
mkdir -p "$tree/internal/wire/testdata"
cp internal/wire/testdata/vectors.json "$tree/internal/wire/testdata/"
# What tests/conformance compares itself with, what the faults are, and recipes in Python.
mkdir -p "$tree/docs"
cp docs/driver-facts.md docs/faults.md docs/ptx.md docs/python.md "$tree/docs/"
# The kernels of tests/corpus, and what they did.
mkdir -p "$tree/cu/soft/internal/ptx/testdata"
cp -r cu/soft/internal/ptx/testdata/corpus "$tree/cu/soft/internal/ptx/testdata/"
echo "$packages" >"$tree/PACKAGES"
echo "$together" >"$tree/TOGETHER"
cp scripts/run-gpu.py "$tree/"
echo "$version" >"$tree/VERSION"
# A dictionary larger than a binary sees what the binaries have in common.
tar -C "$tree" -cf - . | xz -T1 --lzma2=preset=6,dict=256MiB >"$out/bundle.txz"
cp scripts/run-gpu.sh "$out/run.sh"
cp scripts/demo.sh "$out/demo.sh"
cp scripts/doctor-runs.sh "$out/doctor.sh"
size=$(du -m "$out/bundle.txz" | cut -f1)
echo "build/gpu: $size MiB, version $version"
[ "$size" -lt 60 ] || { echo "the bundle is larger than 60 MiB"; exit 1; }
