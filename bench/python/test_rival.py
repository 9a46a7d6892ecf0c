"""Tests of the protocol with a library that shares files instead of GPU memory.

	python3 -m unittest discover -s bench/python
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import rival

HERE = os.path.dirname(os.path.abspath(__file__))
SIZE = 4 << 20


class Files(rival.Side):
    """Memory is a file in a directory; fault says what goes wrong in which half."""

    name = "files"

    def __init__(self, directory, fault):
        if fault == "start":
            raise RuntimeError("no device")
        self.directory, self.fault = directory, fault
        self.path = self.mapped = None

    def info(self):
        print("a library that prints")
        return "files 1.0"

    def make(self, size, salt):
        if self.fault == "make":
            raise MemoryError(f"no room for {size} bytes")
        self.path = os.path.join(self.directory, "buffer")
        with open(self.path, "xb") as f:  # "x": the last one must be gone
            f.write(salt)
            f.seek(size - 8)
            f.write(salt)

    def give(self, conn):
        conn.send(self.path)

    def free(self):
        path, self.path = self.path, None
        if path:
            os.remove(path)

    def take(self, conn, data):
        if self.fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang":
            signal.pause()
        if self.mapped:
            raise OSError("the last one is still mapped")
        self.mapped = open(rival.loads(data), "rb")
        if self.fault == "take":
            raise OSError("cannot\nmap")

    def read(self):
        if self.fault == "read":
            raise OSError("cannot read")
        first = self.mapped.read(8)
        self.mapped.seek(-8, os.SEEK_END)
        return [first, self.mapped.read(8) if self.fault != "salt" else bytes(8)]

    def drop(self):
        mapped, self.mapped = self.mapped, None
        if mapped:
            mapped.close()
        if self.fault == "drop":
            raise OSError("cannot unmap")


class Protocol(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def ask(self, fault, *lines):
        """The answers and the exit status of a rival that is asked these lines."""
        done = subprocess.run(
            [sys.executable, os.path.join(HERE, "test_rival.py"), "files", self.directory, fault],
            input="".join(line + "\n" for line in lines),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(os.listdir(self.directory), [], "something is left on disk")
        return [json.loads(line) for line in done.stdout.splitlines()], done.returncode

    def test_answers_each_handoff_and_ends_with_its_input(self):
        answers, code = self.ask("", f"handoff {SIZE}", f"handoff {SIZE}")
        self.assertEqual(code, 0)
        self.assertEqual(answers[0], {"ready": True, "name": "files", "info": "files 1.0"})
        self.assertEqual(len(answers), 3)
        for answer in answers[1:]:
            self.assertGreater(answer["ns"], 0)

    def test_lives_on_after_a_bad_line(self):
        want, size = "want: handoff SIZE", "^SIZE is not a multiple"
        bad = [("", want), ("nonsense 1", want), ("handoff x", want), ("handoff", want), (f"handoff {SIZE} 1", want)]
        bad += [("handoff 5", size), ("handoff 0", size)]
        answers, code = self.ask("", *(line for line, _ in bad), f"handoff {SIZE}")
        self.assertEqual((len(answers), code), (len(bad) + 2, 0))
        for (line, text), answer in zip(bad, answers[1:]):
            self.assertRegex(answer["error"], text, line)
        self.assertIn("ns", answers[-1])

    def test_lives_on_after_a_failure(self):
        for fault, text in [
            ("make", f"MemoryError: no room for {SIZE} bytes"),
            ("take", "consumer: OSError: cannot map"),
            ("read", "consumer: OSError: cannot read"),
            ("drop", "consumer: OSError: cannot unmap"),
        ]:
            with self.subTest(fault):
                answers, code = self.ask(fault, f"handoff {SIZE}", f"handoff {SIZE}")
                self.assertEqual((answers[1:], code), ([{"error": text}] * 2, 0))

    def test_finds_a_wrong_salt(self):
        answers, _ = self.ask("salt", f"handoff {SIZE}")
        self.assertRegex(answers[1]["error"], f"^salt: wrote ([0-9a-f]{{16}}), the consumer read \\1 and {'00' * 8}$")

    def test_ends_when_the_consumer_does(self):
        answers, code = self.ask("die", f"handoff {SIZE}", f"handoff {SIZE}")
        self.assertEqual((answers[1:], code), ([{"error": "the consumer is gone, exit status -9"}], 1))

    def test_does_not_wait_for_ever(self):
        answers, code = self.ask("hang", f"handoff {SIZE}", f"handoff {SIZE}")
        self.assertEqual((answers[1:], code), ([{"error": "no answer from the consumer within 1 s"}], 1))

    def test_says_why_it_did_not_start(self):
        answers, code = self.ask("start")
        self.assertEqual((answers, code), ([{"error": "RuntimeError: no device"}], 1))

    def test_sweeps_up_after_its_own_processes_only(self):
        for name in ["cuda.shm.0.1f.1", "cuda.shm.0.20.1", "cuda.shm.0.1f0.1", "cuda.shm.0.31.1"]:
            open(os.path.join(self.directory, name), "x").close()
        rival.sweep(0x1F, 0x20, directory=self.directory)
        self.assertEqual(sorted(os.listdir(self.directory)), ["cuda.shm.0.1f0.1", "cuda.shm.0.31.1"])

    def test_says_which_package_is_missing(self):
        done = subprocess.run(
            [sys.executable, "-c", "import rival; rival.need('no_such_module', 'such')"],
            cwd=HERE,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual((json.loads(done.stdout), done.returncode), ({"error": "such is not installed"}, 3))


if __name__ == "__main__":
    if sys.argv[1:2] == ["files"]:
        rival.DEADLINE = 1
        sys.exit(rival.run(Files, *sys.argv[2:]))
    unittest.main()
