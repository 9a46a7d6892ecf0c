"""Runs the test binaries of a bundle on a GPU, and prints a line for each package, what failed, what was not run and why.

    run-gpu.py TREE [-v] [-run RE] [-slowest N] [-deadline SECONDS] [PACKAGE...]

Packages of TREE/TOGETHER share the GPU; their tests that may not (cutest.Alone) run when these are done, and the other
packages after them, one by one.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time

AT_ONCE = 4  # the driver starts one process after the other, and each takes longer the more there are
ALONE = "runs alone: "


class Run:
    def __init__(self, options: argparse.Namespace) -> None:
        self.tree, self.options = options.tree, options
        self.end = time.monotonic() + options.deadline
        self.results: dict[tuple[str, str], tuple[str, float, str]] = {}  # (package, test): action, seconds, output

    def package(self, package: str, tests: str = "", shared: bool = False) -> None:
        began, place = time.monotonic(), os.path.join(self.tree, package)
        left = max(1, int(self.end - began))
        command = [self.tree + "/bin/test2json", "-t", place + "/suite.test", "-test.v=test2json", "-test.paniconexit0", f"-test.timeout={left}s"]
        if tests or self.options.run:
            command.append("-test.run=" + (tests or self.options.run))
        environment = dict(os.environ, PWD=place, GPUFD_SHARED_GPU="1" if shared else "")
        try:
            process = subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        except OSError as err:
            self.results[package, ""] = ("fail", 0, f"{err}\n")
            return
        try:
            out, _ = process.communicate(timeout=left + 10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
        counts = self.read(package, out, process.returncode, may_be_none=bool(self.options.run and not tests))
        words = ", ".join(f"{counts[a]} {w}" for a, w in (("pass", "passed"), ("fail", "failed"), ("skip", "skipped")))
        print("FAIL" if counts["fail"] else "ok  ", f"{package}: {words}, {time.monotonic() - began:.0f} s", flush=True)

    def read(self, package: str, out: str, code: int, may_be_none: bool) -> "collections.Counter[str]":
        text: dict[str, list[str]] = collections.defaultdict(list)
        counts: collections.Counter[str] = collections.Counter()
        open_tests: set[str] = set()
        for line in out.splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                event = {"Action": "output", "Output": line + "\n"}
            test, action = event.get("Test", ""), event["Action"]
            if action == "output":
                text[test].append(event["Output"])
                if self.options.v:
                    print(event["Output"], end="", flush=True)
            elif action == "run":
                open_tests.add(test)
            elif test and action in ("pass", "fail", "skip"):
                open_tests.discard(test)
                counts[action] += 1
                self.results[package, test] = (action, event.get("Elapsed", 0), "".join(text[test]))
        for test in open_tests:  # it crashed, hung or was cut off
            counts["fail"] += 1
            self.results[package, test] = ("fail", 0, "".join(text[test]) + "it did not end\n")
        if code and not counts["fail"] or not counts and not may_be_none:
            counts["fail"] += 1
            self.results[package, ""] = ("fail", 0, "".join(text[""]) or f"it ended with {code} and ran no test\n")
        return counts

    def deferred(self) -> dict[str, str]:
        """Return the tests that have to run alone, by package, as a pattern."""
        tests: dict[str, set[str]] = collections.defaultdict(set)
        for (package, test), (action, _, output) in list(self.results.items()):
            if action == "skip" and ALONE in output:
                tests[package].add(test.split("/")[0])
                del self.results[package, test]
        return {p: "^(" + "|".join(sorted(names)) + ")$" for p, names in tests.items()}

    def summary(self) -> int:
        counts = collections.Counter(action for action, _, _ in self.results.values())
        skips = collections.defaultdict(list)
        for (package, test), (action, _, output) in sorted(self.results.items()):
            if action == "fail":
                print(f"--- FAIL: {package} {test}\n{output}", end="")
            if action == "skip":
                why = re.findall(r"_test\.go:\d+: (.*)|\w+\.go:\d+: (.*)", output)
                skips["; ".join(a or b for a, b in why) or "no reason"].append(f"{package} {test}")
        for why, names in sorted(skips.items()):
            print(f"not run: {why}: {', '.join(names)}")
        slow = sorted(((s, p, t) for (p, t), (_, s, _) in self.results.items() if "/" not in t), reverse=True)
        for seconds, package, test in slow[: self.options.slowest]:
            print(f"slow: {seconds:7.2f} s {package} {test}")
        print(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped")
        return 1 if counts["fail"] or not counts["pass"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="run.sh", description="run the tests of a bundle on a GPU")
    parser.add_argument("tree", help=argparse.SUPPRESS)
    parser.add_argument("-v", action="store_true", help="print the tests' output as it comes")
    parser.add_argument("-run", default="", metavar="RE", help="run only tests that match, as go test does")
    parser.add_argument("-slowest", type=int, default=0, metavar="N", help="name the N slowest tests")
    parser.add_argument("-deadline", type=int, default=3600, metavar="SECONDS", help="tests that have not ended by then fail")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="such as cu or tests/interop; the default is all")
    run = Run(parser.parse_intermixed_args())

    def listed(name: str) -> list[str]:
        with open(os.path.join(run.tree, name)) as f:
            return f.read().split()

    packages = run.options.packages or listed("PACKAGES")
    together = [p for p in packages if p in listed("TOGETHER")]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda p: run.package(p, shared=True), together))
    for package, tests in run.deferred().items():
        run.package(package, tests)
    for package in packages:
        if package not in together:
            run.package(package)
    return run.summary()


if __name__ == "__main__":
    sys.exit(main())
