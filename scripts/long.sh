#!/usr/bin/env bash
# Runs what the gate leaves out: long.sh [SLICE…]. Without words, all slices in this order; each may take half an hour.
# GATE_OLD, GATE_RACE and GATE_ARM64 list what the gate tests; without one, its slice tests all packages.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go} make=${MAKE:-make}
slices=(lint old race arm64 channel fuzz hostile)

# but lists all packages but those that the gate tests in the same way.
but() {
	local all gate=
	all=$($go list ./...) && { [ $# -eq 0 ] || gate=$($go list "$@"); } && comm -23 <(sort <<<"$all") <(sort <<<"$gate") | xargs
}

slice() {
	case $1 in
	lint) $make lint ;;
	old) pkgs=$(but ${GATE_OLD:-}) && $make test-old PKGS="$pkgs" ;;
	race) pkgs=$(but ${GATE_RACE:-}) && $make race PKGS="$pkgs" ;;
	arm64) pkgs=$(but ${GATE_ARM64:-}) && $make test-arm64 PKGS="$pkgs" ;;
	# Everything that the model walks through, 20,000 frames for arm64, and 200 kills of trainers and their engines.
	channel) GPUFD_SOAK=1 $go test -count=1 -run TestModel ./channel && GPUFD_SOAK=1 $make test-arm64 PKGS=./channel &&
		GPUFD_SOAK=1 $go test -count=1 -run TestModules/test_weightskill ./tests/python ;;
	fuzz) $make fuzz ;;
	hostile) $make soak && $make hostile ;;
	*) echo "long.sh: there is no slice $1, but ${slices[*]}" >&2 && exit 2 ;;
	esac
}

[ "${1:-}" != -slice ] || { slice "$2"; exit; }
[ $# -gt 0 ] || set -- "${slices[@]}"
for s; do
	begun=$SECONDS
	echo "== $s"
	timeout -k 10 1800 scripts/long.sh -slice "$s" || { echo "slice $s failed, or took more than half an hour" >&2; exit 1; }
	echo "== $s took $((SECONDS - begun)) s"
done
