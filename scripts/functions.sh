#!/bin/sh
# Runs all tests (make test), judges the faults by them, and writes docs/functions.md from
# what they called; with -check compares instead. With DIR the tests have run, with
# GPUFD_CALLED=DIR.
#   functions.sh [-check [DIR]]
set -eu
called=${2:-}
if [ -z "$called" ]; then
	called=$(mktemp -d)
	trap 'rm -rf "$called"' EXIT
	GPUFD_CALLED=$called ${MAKE:-make} test SUITEFLAGS='-faults ./...'
fi
${GO:-go} run ./internal/functions ${1:-} -called "$called" soft
