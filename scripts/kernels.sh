#!/bin/sh
# Makes the .ptx of the .cu in kernels and kernels/digest, and kernels/kernels.sum, which a test
# holds both against. Wants nvcc (of CUDA 13.0: what another version makes
# differs), which a machine with a GPU has:
#   kernels.sh [DIRECTORY to write to, instead of kernels]
# The code is for compute capability 7.5 and all later ones. The PTX version is
# set to 7.4, that of CUDA 11.4, so that drivers from there on take it: nvcc
# names its own, which the code does not need.
set -eu
cd "$(dirname "$0")/../kernels"
out=${1:-.}
mkdir -p "$out/digest"
for cu in *.cu digest/*.cu; do
	ptx=$out/${cu%.cu}.ptx
	"${NVCC:-nvcc}" -arch=compute_75 -ptx -o "$ptx.tmp" "$cu"
	sed 's/^\.version .*/.version 7.4/' "$ptx.tmp" >"$ptx"
	rm "$ptx.tmp"
done
{
	sha256sum *.cu digest/*.cu
	cd "$out"
	sha256sum *.ptx digest/*.ptx
} >"$out/kernels.sum"
