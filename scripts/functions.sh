#!/bin/sh
# Runs all tests (make test), judges the faults by them, and writes docs/functions.md from
# what they called; with -check compares instead.
#   functions.sh [-check]
set -eu
called=$(mktemp -d)
trap 'rm -rf "$called"' EXIT
GPUFD_CALLED=$called ${MAKE:-make} test SUITEFLAGS='-faults ./...'
${GO:-go} run ./internal/functions ${1:-} -called "$called" soft
