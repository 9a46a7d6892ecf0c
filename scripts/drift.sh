#!/bin/sh
# Fails if the generated files are not what the generator makes of abi/, or if
# one of them is not made by it.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/cu/sys"
${GO:-go} run ./internal/gen -out "$dir"
made=$(cd "$dir" && find . -name 'z*.go' | sort)
have=$(find ./cu -name 'z*.go' ! -path './cu/soft/*' | sort) # TestTable of cu/soft compares that package's
if [ "$made" != "$have" ]; then
	printf 'generated files are not those that are checked in:\n%s\n---\n%s\n' "$made" "$have"
	exit 1
fi
for f in $made; do
	diff -u "$f" "$dir/$f" || { echo "$f is stale: run make generate"; exit 1; }
done
${GO:-go} run ./internal/gen/functions | diff -u docs/functions.md - || { echo "docs/functions.md is stale: run make generate"; exit 1; }
cp docs/commands.md "$dir/commands.md"
${GO:-go} run ./internal/commands "$dir/commands.md"
diff -u docs/commands.md "$dir/commands.md" || { echo "docs/commands.md is stale: run make docs"; exit 1; }
