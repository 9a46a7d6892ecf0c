#!/bin/sh
# Makes the PTX of cu/soft/internal/ptx/testdata/corpus of its CUDA C: each file
# optimised (.opt.ptx.gz) and for debugging (.dbg.ptx.gz). Wants nvcc of CUDA
# 13.0, which a machine with a GPU has:
#   corpus.sh [DIRECTORY to write to, instead of where the files are]
# A file's first line may name the architecture that it needs. What an H200
# makes of it is recorded there by
#   GPUFD_DRIVER=cuda go test ./tests/corpus -corpus DIRECTORY -record DIRECTORY
set -eu
cd "$(dirname "$0")/../cu/soft/internal/ptx/testdata/corpus"
out=${1:-.}
failed=
for cu in *.cu; do
	name=${cu%.cu}
	arch=$(sed -n 's,^// arch: ,,p' "$cu")
	for variant in opt dbg; do
		case $variant in
		opt) flags=-O3 ;;
		dbg) flags="-O0 -G" ;;
		esac
		# shellcheck disable=SC2086
		if "${NVCC:-nvcc}" -std=c++17 $flags -arch="${arch:-compute_75}" -ptx -o "$out/$name.ptx" "$cu"; then
			gzip -9nc "$out/$name.ptx" >"$out/$name.$variant.ptx.gz"
			rm "$out/$name.ptx"
		else
			failed="$failed $name.$variant"
		fi
	done
done
test -z "$failed" || { echo "corpus.sh: nvcc did not compile:$failed" >&2; exit 1; }
