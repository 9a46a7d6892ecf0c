#!/usr/bin/env bash
# Runs what the gate leaves out, in slices, and prints in the end which ran and which did not:
#   long.sh [SLICE…]      # these slices, or all
#   long.sh -some MINUTES # four, chosen by the number of commits; none begins later
# Slices of the same kind are split by package: each package is in one of them.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go} make=${MAKE:-make}
most=1800 # seconds for a slice
slices=(arm64-programs race-programs old arm64-library race-library fuzz hostile channel)

# programs lists the programs, and the packages whose tests start programs; library lists
# the others.
programs() { $go list ./tests/... ./share/... ./sock/... ./cmd/... ./internal/... ./examples/...; }
library() { $go list ./... | grep -vxF -f <(programs); }

slice() {
	case $1 in
	arm64-programs) $make test-arm64 PKGS="$(programs | xargs)" ;;
	arm64-library) $make test-arm64 PKGS="$(library | xargs)" ;;
	race-programs) $make race PKGS="$(programs | xargs)" ;;
	race-library) $make race PKGS="$(library | xargs)" ;;
	old) $make test-old ;;
	fuzz) $make fuzz ;;
	hostile) $make soak && $make hostile ;;
	# Everything that the model walks through, and 20,000 frames for arm64.
	channel) GPUFD_SOAK=1 $go test -count=1 -run TestModel ./channel && GPUFD_SOAK=1 $make test-arm64 PKGS=./channel ;;
	*) echo "long.sh: there is no slice $1, but ${slices[*]}" >&2 && exit 2 ;;
	esac
}

# chosen prints four of the slices, different ones for each number of commits: what one
# submission leaves out, the next is likely to run. A shallow history has a hash in place of
# a number.
chosen() {
	local n i
	if [ "$(git rev-parse --is-shallow-repository)" = true ]; then
		n=$((16#$(git rev-parse HEAD | cut -c1-7)))
	else
		n=$(git rev-list --count HEAD)
	fi
	for i in 0 1 2 3; do echo "${slices[(n + i * 2) % ${#slices[@]}]}"; done
}

# report prints what ran, however the script ends.
report() {
	local s rest=()
	for s in "${slices[@]}"; do [[ " ${ran[*]} " == *" $s ("* ]] || rest+=("$s"); done
	echo "slices that ran: ${ran[*]:-none}"
	echo "slices that did not, or failed: ${rest[*]:-none}${late:+ (no time was left for ${late[*]})}"
}

[ "${1:-}" != -slice ] || { slice "$2"; exit; } # one slice, without a report

ran=() late=() until=
if [ "${1:-}" = -some ]; then
	until=$((SECONDS + $2 * 60))
	picked=$(chosen)
	# shellcheck disable=SC2086
	set -- $picked
fi
[ $# -gt 0 ] || set -- "${slices[@]}"
trap report EXIT
for s; do
	if [ -n "$until" ] && [ "$SECONDS" -ge "$until" ]; then
		late+=("$s")
		continue
	fi
	begun=$SECONDS
	echo "== $s"
	timeout -k 10 "$most" scripts/long.sh -slice "$s" || { echo "slice $s failed, or took more than $most s" >&2; exit 1; }
	ran+=("$s ($((SECONDS - begun)) s)")
done
