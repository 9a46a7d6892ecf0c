#!/usr/bin/env bash
# Runs the tests of packages, the long ones shortened:
#   gotest.sh PACKAGE…
# Prints a line per package, what failed, what was skipped and why, how many checks
# of tests/conformance were, and
# "N passed, N failed, N skipped" in the end. FAILED names a file to write the package
# and name of each test to that failed, or ? where that is not all.
set -euo pipefail
${GO:-go} test -short -timeout=30m -count=1 -vet=off -v "$@" 2>&1 | awk -v failed_tests="${FAILED:-/dev/null}" '
/^=== (RUN|NAME|CONT) / { test = $3 }
/^ *[a-z_0-9]+\.go:[0-9]+: / { why[test] = $0; sub(/^ */, "", why[test]) }
/^ *--- PASS:/ { passed++ }
/^ *--- FAIL:/ { failed++; failures++ }
/^--- FAIL:/ { names[$3] }
/^(panic|fatal error|SIG[A-Z]+):/ { names["?"] } # and others did not run
/^ *--- SKIP:/ { skipped++; skips = skips "  skipped " $3 ": " why[$3] "\n" }
/^conformance: / { skips = skips "  " $0 "\n" }
!/^=== / && !/^ *--- PASS:/ && !/^PASS$/ { said = said $0 "\n" }
/^(ok|FAIL|\?) *\t/ {
	if ($1 == "FAIL" && failures == 0) { failed++; names["?"] } # it crashed, or left something behind
	for (name in names) print $2, name >failed_tests
	split("", names)
	if ($1 == "FAIL") printf "%s", said
	if ($1 == "ok") print
	printf "%s", skips
	fflush()
	said = skips = ""
	failures = 0
	split("", why)
}
END {
	printf "%s", said # nothing, or why go test itself failed
	printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
}'
