"""The scripts that use kept weights and queues, on the software driver, with stand-ins for what is not here."""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "python" / "tests"))

import common
import forks
from keepers import KeeperTest, wait_for

if importlib.util.find_spec("torch"):
    import standins

import gpufd

PROMPT = "1 7 30 42 5 99"


def setUpModule():
    if not importlib.util.find_spec("torch"):
        common.missing("python", f"{sys.executable} has no PyTorch")
    forks.begin("torch")


class Running:
    """A script that runs, and the lines that it has said."""

    def __init__(self, *command, env=None, popen=forks.Popen):
        self.process = popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines, self.errors = [], []
        self.threads = [threading.Thread(target=self._read, args=a) for a in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def _read(pipe, lines):
        for line in pipe:
            lines.append(line)

    def said(self):
        return [json.loads(line) for line in list(self.lines) if line.endswith("\n")]  # one that was killed may leave half a line

    def ask(self, line):
        """Write a line, and return the answer to it."""
        known = len(self.lines)
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self.until(lambda: len(self.lines) > known, f"an answer to {line}")
        return json.loads(self.lines[known])

    def until(self, true, what):
        def check():
            if self.process.poll() is not None and not true():
                raise AssertionError(f"it ended with {self.process.returncode} before {what}: {''.join(self.errors)}")
            return true()

        wait_for(check, what)

    def end(self, number=signal.SIGTERM):
        """Send a signal, and return the exit code and the errors."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.stdin.close()
        code = self.process.wait(common.PATIENCE)
        for thread in self.threads:
            thread.join(common.PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()
        return code, "".join(self.errors)


class Scripts(KeeperTest):
    def setUp(self):
        super().setUp()
        keeper = self.keeper()
        self.environ(GPUFD_SOCKET=keeper.socket, GPUFD_HANDLE_DIR=self.dir)

    def running(self, script, *flags, popen=forks.Popen):
        r = Running(sys.executable, "-B", "-u", str(HERE / "standins.py"), str(HERE / script), *flags, popen=popen)
        self.addCleanup(lambda: r.process.stdin.closed or r.end(signal.SIGKILL))
        return r

    def script(self, script, *flags, code=0):
        """Run a script to its end, and return its lines."""
        done = forks.run([sys.executable, "-B", str(HERE / "standins.py"), str(HERE / script), *flags], timeout=common.PATIENCE)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout.splitlines()

    def directory_of(self, seed):
        """A model's directory, and the tokens that it generates."""
        directory = os.path.join(self.dir, f"model{seed}")
        model = standins.save(directory, seed)
        prompt = standins.torch.tensor([[int(n) for n in PROMPT.split()]])
        return directory, standins.small.generate(model, prompt, 16)

    def test_restart(self):
        directory, want = self.directory_of(1)
        flags = (directory, "--prompt", PROMPT)
        cold, put = map(json.loads, self.script("restart.py", *flags, "--cold", "--put", "--name", "python"))
        self.gpufd("put", "cli", directory)
        kept = [json.loads(*self.script("restart.py", *flags, "--name", name)) for name in ("python", "cli")]
        self.assertEqual([(line["how"], line["tokens"]) for line in (cold, put, *kept)], [("cold", want), ("put", want), ("kept", want), ("kept", want)])
        for line in (cold, *kept):
            self.assertLess(0, line["imports"])
            self.assertLess(line["imports"] + line["model_and_weights"], line["exec_to_first_token"])

    def test_engines(self):
        """Two engines; a new version under load; kill −9 of one; one more version; one that does not fit."""
        (one, first), (two, second) = self.directory_of(1), self.directory_of(2)
        want = {1: first, 2: second, 3: first}
        self.assertNotEqual(first, second)
        self.gpufd("put", "llama", one)
        engines = [self.running("engine.py", one, "--prompt", PROMPT, popen=popen) for popen in (forks.Popen, subprocess.Popen)]
        for e in engines:
            e.until(lambda e=e: e.lines, "a generation")
        self.gpufd("put", "llama", two)
        for e in engines:
            e.until(lambda e=e: e.said()[-1].get("version") == 2, "version 2")
        self.assertEqual(engines[0].end(signal.SIGKILL)[0], -signal.SIGKILL)
        self.gpufd("put", "llama", one)
        engines[1].until(lambda: engines[1].said()[-1].get("version") == 3, "version 3")
        gpufd.torch.put("llama", {"embed.weight": standins.torch.ones(3)})
        engines[1].until(lambda: any("refused" in line for line in engines[1].said()), "a refusal")
        known = len(engines[1].lines)
        engines[1].until(lambda: len(engines[1].lines) > known + 2, "generations behind a refusal")
        self.assertEqual(engines[1].end(), (0, ""))
        served = [line for line in engines[0].said() + engines[1].said() if "version" in line]
        self.assertEqual([line for line in served if line["tokens"] != want[line["version"]]], [])
        self.assertEqual({line["version"] for line in served}, {1, 2, 3})
        self.assertEqual(engines[1].said()[-1]["version"], 3)

    def test_lora(self):
        self.script("small.py")
        serve = self.running("lora.py", "serve")
        plain = serve.ask("- 1 7 300")["tokens"]
        self.assertEqual(serve.ask("formal 1 7 300"), {"adapter": "formal", "error": "not-found"})
        self.script("lora.py", "add", "formal", "--rank", "4", "--seed", "1")
        self.script("lora.py", "add", "rude", "--rank", "8", "--seed", "2")
        self.assertEqual(self.script("lora.py", "list"), ["formal version 1 alpha=2 base=1 rank=4", "rude version 1 alpha=2 base=1 rank=8"])
        formal, rude = (serve.ask(f"{name} 1 7 300")["tokens"] for name in ("formal", "rude"))
        self.assertEqual(len({tuple(t) for t in (plain, formal, rude)}), 3)
        self.script("lora.py", "add", "formal", "--rank", "8", "--seed", "2")  # as rude
        wait_for(lambda: serve.ask("formal 1 7 300") == {"adapter": "formal", "version": 2, "tokens": rude}, "the new adapter")
        self.script("lora.py", "remove", "rude")
        wait_for(lambda: serve.ask("rude 1 7 300") == {"adapter": "rude", "error": "not-found"}, "the removal")
        self.assertEqual(serve.ask("- 1 7 300")["tokens"], plain, "an adapter has changed the base")
        self.script("small.py", "--seed", "2")
        self.script("lora.py", "add", "rude")
        self.assertEqual(serve.ask("rude 1 7 300"), {"adapter": "rude", "error": "labels"})  # it is for another base
        serve.process.stdin.close()
        self.assertEqual(serve.process.wait(common.PATIENCE), 0)
        serve.end()

    def test_standby(self):
        """The first engine is killed; the standby answers as it did. A version that came meanwhile is what the next standby has."""
        self.script("small.py")
        engines = [self.running("standby.py")]
        engines[0].until(lambda: engines[0].lines, "the first engine")
        want = engines[0].ask("1 7 300")
        self.assertEqual((engines[0].said()[0], want["version"]), ({"serving": 1}, 1))
        for version in (1, 2):
            before = engines[-1]
            standby = self.running("standby.py", "--after", str(before.process.pid))
            engines.append(standby)
            standby.until(lambda: standby.lines, "the standby's sleep")  # noqa: B023
            self.assertEqual(standby.said(), [{"asleep": version, "lease_kept": True}])
            if version == 2:
                self.script("small.py", "--seed", "1")  # the first weights again
            self.assertEqual(before.end(signal.SIGKILL)[0], -signal.SIGKILL)
            standby.until(lambda: len(standby.lines) == 2, "the standby")  # noqa: B023
            self.assertEqual(standby.said()[1]["awake"], 1 if version == 1 else 3)
            if version == 1:
                self.assertEqual(standby.ask("1 7 300"), want)
                self.script("small.py", "--seed", "2")
                wait_for(lambda: standby.ask("1 7 300")["version"] == 2, "the second version")  # noqa: B023
                self.assertNotEqual(standby.ask("1 7 300")["tokens"], want["tokens"])
            else:
                self.assertEqual(standby.ask("1 7 300"), {**want, "version": 3})
                self.goes_on(standby, 3)
        engines[-1].process.stdin.close()
        self.assertEqual(engines[-1].process.wait(common.PATIENCE), 0)
        self.assertEqual(engines[-1].end(), (0, ""))

    def goes_on(self, engine, version):
        """An engine says why it does not take what its name stands for now, and serves what it has."""
        gpufd.put("small", b"no tensors")
        wait_for(lambda: engine.ask("1 7 300") and {"serving", "error"} in [line.keys() for line in engine.said()], "a version that does not fit")
        self.gpufd("rm", "small")
        for _ in range(3):
            engine.ask("1 7 300")
        self.assertEqual({line["version"] for line in engine.said() if "version" in line}, {version})

    def test_compile_and_export(self):
        self.script("small.py")
        said = self.script("compile_export.py")
        self.assertEqual(len(said), 4)
        self.assertEqual([line for line in said if ": equal, 6 inputs" not in line], [])

    def test_handles(self):
        (said,) = self.script("handles_queue.py", "--count", "5", "--elements", "1000")
        self.assertIn("5 tensors of 4000 bytes, all right", said)


if __name__ == "__main__":
    unittest.main()
