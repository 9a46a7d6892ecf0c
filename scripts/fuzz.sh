#!/bin/sh
# Runs every fuzzer of the module for the given time, one after the other.
set -eu
time=$1
packages=$(${GO:-go} list ./...)
for pkg in $packages; do
	listed=$(${GO:-go} test -list '^Fuzz' "$pkg") # fails if the tests cannot be built
	for name in $(echo "$listed" | grep '^Fuzz' || true); do
		echo "fuzz $pkg $name"
		${GO:-go} test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 100x "$pkg"
	done
done
