#!/bin/sh
# Runs the tests that run on both drivers, on the software driver, and writes
# docs/functions.md from what they called; with -check compares instead.
#   functions.sh [-check]
set -eu
called=$(mktemp -d)
trap 'rm -rf "$called"' EXIT
GPUFD_CALLED=$called ${GO:-go} test -count=1 ./...
${GO:-go} run ./internal/functions ${1:-} -called "$called" soft
