#!/usr/bin/env bash
# Runs every fuzzer of the module for the given time, one after the other.
set -euo pipefail
time=$1
log=$(mktemp)
trap 'rm "$log"' EXIT

# over says whether the log's only complaint is that the time was over, which Go before
# 1.27 now and then takes for a failure (go.dev/issue/75804). Of an input that fails
# more is said.
over() {
	[ "$(awk '/^FAIL/ { within = 0 } within; /^--- FAIL: / { within = 1 }' "$log")" = "    context deadline exceeded" ]
}

packages=$(${GO:-go} list ./...)
for pkg in $packages; do
	listed=$(${GO:-go} test -list '^Fuzz' "$pkg") # fails if the tests cannot be built
	for name in $(echo "$listed" | grep '^Fuzz' || true); do
		echo "fuzz $pkg $name"
		${GO:-go} test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 100x "$pkg" 2>&1 | tee "$log" || over
	done
done
