#!/usr/bin/env bash
# Counts the exported names of packages: constants, variables, types, functions and methods, but no
# fields. A package with fewer words is easier to learn.
set -euo pipefail
cd "$(dirname "$0")/.."

for package in "${@:-./share}"; do
	go doc -all "$package" | awk -v package="$package" '
		/^(CONSTANTS|VARIABLES|FUNCTIONS|TYPES)$/ { part = $0 }
		/^(const|var) \($/ { block = 1; next }
		block && /^\)/ { block = 0 }
		block && /^\t[A-Z][A-Za-z0-9_]*/ { n++ }
		part == "" { next }
		/^(const|var) [A-Z]/ || /^func / || /^type / { n++ }
		END { printf "%s: %d exported names\n", package, n }'
done
