"""examples/serve/serve.py on a GPU: what its swaps cost, and two minutes of load while servers, keeper and store are killed.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_serve.py [GIB [SECONDS]] -v

The model is a Llama of random weights of GIB, 16 by default. Two servers share its weights. The rate of one is measured, and 70 % of it is
asked for, for SECONDS (120). A lost request fails it; gaps between tokens are printed, and not judged. It needs a GPU, transformers, and gpufd's
programs (GPUFD_BIN, or Go to build them). Two more copies of the model have to fit the device.
"""

import collections
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gpu  # first: it says where the package is
from gpu_scripts import Running
from keepers import ROOT, Keeper, stop_store, wait_for
from serve_client import Stream, call

given = [int(sys.argv.pop(1)) for _ in range(2) if sys.argv[1:] and sys.argv[1].isdigit()]
GIB, SECONDS = given + [16, 120][len(given) :]
WRITER = pathlib.Path(__file__).resolve().parent / "serve_writer.py"
SERVER = ROOT / "examples" / "serve" / "serve.py"
PROMPTS = [[1, 7, 300, 42, 5, 99], [5, 6, 7], list(range(1000, 1100))]
TOKENS = 48
STREAMS = 4  # that go on while a version is swapped
SWAPS = 9
PATIENCE = 180  # seconds that a process takes to be ready


class Done:
    """What a request came to."""

    def __init__(self, prompt, adapter):
        self.prompt, self.adapter, self.cut, self.refused = prompt, adapter, 0, 0
        self.stream, self.fault = None, ""


class Serve(gpu.OnGPU):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        gpu.Torch()
        gpu.module("transformers")
        directory = tempfile.TemporaryDirectory(prefix="gpufd-serve-")
        cls.addClassCleanup(directory.cleanup)
        cls.home = directory.name
        cls.keeper = Keeper(cls.home)
        cls.addClassCleanup(lambda: cls.keeper.close())
        cls.env = {**os.environ, "GPUFD_DRIVER": "cuda", "GPUFD_SOCKET": cls.keeper.socket, "HF_HUB_OFFLINE": "1"}
        cls.servers = [cls.server(), cls.server()]
        prompts = [",".join(map(str, p)) for p in PROMPTS]
        cls.writer = cls.running(WRITER, str(GIB), str(TOKENS), *prompts)
        cls.want = {}  # tokens of each model, alone and with each adapter
        for seed in (1, 2):
            made = cls.ask(make=seed, adapters=[1, 2])
            cls.want[seed], cls.size = made["tokens"], made["bytes"]
        cls.ask(put=1)
        cls.ask(adapter=1)
        for s in cls.servers:
            cls.ready(s)

    # Processes.

    @classmethod
    def running(cls, script, *flags):
        r = Running(sys.executable, "-B", "-u", str(script), *flags, env=cls.env)
        cls.addClassCleanup(lambda: r.process.stdin.closed or r.end(signal.SIGKILL))
        return r

    @classmethod
    def server(cls, port=0):
        return cls.running(SERVER, "llama", "--listen", f"127.0.0.1:{port}")

    @classmethod
    def ready(cls, server):
        wait_for(lambda: cls.version(server) or server.process.poll() is not None, "a server", PATIENCE)
        if server.process.poll() is not None:
            raise AssertionError("".join(server.errors))

    @classmethod
    def port(cls, server):
        said = next((line for line in server.said() if "listening" in line), None)
        return said and int(said["listening"].rpartition(":")[2])

    @classmethod
    def version(cls, server):
        with contextlib.suppress(OSError):
            return cls.port(server) and json.loads(call(cls.port(server), "GET", "/healthz")[2]).get("version")

    @classmethod
    def ask(cls, **what):
        known = len(cls.writer.lines)
        cls.writer.process.stdin.write(json.dumps(what) + "\n")
        cls.writer.process.stdin.flush()
        wait_for(lambda: len(cls.writer.lines) > known or cls.writer.process.poll() is not None, f"an answer to {what}", PATIENCE)
        if len(cls.writer.lines) == known:
            raise AssertionError("".join(cls.writer.errors))
        return json.loads(cls.writer.lines[known])

    # Swaps.

    def test_1_swaps(self):
        """The longest gap of streams that are under way, from the commit of a version to half a second behind its first use."""
        port, found = self.port(self.servers[0]), []
        for n in range(SWAPS):
            streams = [Stream(port, PROMPTS[0], 1500) for _ in range(STREAMS)]
            readers = [threading.Thread(target=self.drain, args=(s,), daemon=True) for s in streams]
            for t in readers:
                t.start()
            wait_for(lambda: all(len(s.times) > 30 for s in streams), "the first steps")  # noqa: B023
            time.sleep(3)  # of plain steps
            put = self.ask(put=2 - n % 2)
            wait_for(lambda: {"serving": put["version"]} in self.servers[0].said(), "the new version")  # noqa: B023
            served = time.monotonic()
            wait_for(lambda: all(s.times[-1] > served + 1 for s in streams), "steps behind the swap")  # noqa: B023
            for s in streams:
                s.conn.sock.shutdown(2)
            for t, s in zip(readers, streams):
                t.join()
                s.close()
            gaps = [(b, b - a) for s in streams for a, b in zip(s.times, s.times[1:]) if b > put["began"] - 3]
            plain = statistics.median(gap for at, gap in gaps if at < put["began"])

            def longest(begin, end):
                return max(gap for at, gap in gaps if begin <= at < end)  # noqa: B023

            took = served + 0.5 - put["committed"]
            stretches = [longest(put["began"] - (i + 1) * took, put["began"] - i * took) for i in range(int(3 / took))]
            found.append((longest(put["committed"], served + 0.5) / plain, statistics.median(stretches) / plain))
            told = f"{1e3 * plain:.1f} ms; the longest, over that: of a plain stretch as long {found[-1][1]:.2f}, of the swap {found[-1][0]:.2f}"
            gpu.seen("serve.py", f"{STREAMS} streams, swap {n + 1}", f"gap between tokens, median {told}")
            self.right(Stream(port, PROMPTS[0], TOKENS).read(), [2 - n % 2], False)
        swap, plain = (statistics.median(ratios) for ratios in zip(*found))
        gpu.seen("serve.py", "swaps, median", f"the longest gap over the median one: plain {plain:.2f}, swap {swap:.2f}; swap over plain {swap / plain:.2f}")

    @staticmethod
    def drain(stream):
        with contextlib.suppress(OSError):
            stream.read()

    def right(self, stream, seeds, adapter, prompt=0):
        """The tokens are those of one model, alone or with one adapter."""
        allowed = [self.want[seed][a][prompt] for seed in seeds for a in (("1", "2") if adapter else ("None",))]
        self.assertIn(stream.tokens, allowed, stream.last)

    # Load.

    def test_2_load(self):
        rate = self.rate()
        self.done, self.killed, self.phases, self.over = [], set(), [("plain", time.monotonic())], threading.Event()
        pool = ThreadPoolExecutor(64)
        asker = threading.Thread(target=self.ask_for, args=(pool, 0.7 * rate))
        began = time.monotonic()
        asker.start()
        try:
            self.story()
            while time.monotonic() < began + SECONDS:
                time.sleep(0.1)
        finally:
            self.over.set()
            asker.join()
            pool.shutdown()
        self.tell(rate, time.monotonic() - began)

    def rate(self):
        """Return how many requests a second one server answers eight clients, by the tokens of 12 seconds."""
        port, over, streams = self.port(self.servers[0]), threading.Event(), []

        def client(n):
            while not over.is_set():
                streams.append(Stream(port, PROMPTS[n % len(PROMPTS)], TOKENS, "formal" if n % 3 == 0 else None))
                streams[-1].read()

        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(client, n) for n in range(8)]
            wait_for(lambda: sum(len(s.times) for s in streams) > 8 * TOKENS, "the first requests")
            began = time.monotonic()
            time.sleep(12)
            over.set()
        for job in jobs:
            job.result()
        return sum(began <= at < began + 12 for s in streams for at in s.times) / 12 / TOKENS

    def ask_for(self, pool, rate):
        """Ask for so many requests a second, at random times, whatever the answers are."""
        pick, at, jobs = random.Random(1), time.monotonic(), []
        while not self.over.is_set():
            at += pick.expovariate(rate)
            time.sleep(max(0.0, at - time.monotonic()))
            d = Done(pick.randrange(len(PROMPTS)), pick.random() < 1 / 3)
            self.done.append(d)
            jobs.append(pool.submit(self.request, d))
        for job in jobs:
            job.result(PATIENCE)

    def request(self, d):
        """Ask the first server, or else the second one, until one answers, for a minute at most."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for server in list(self.servers):
                try:
                    s = Stream(self.port(server), PROMPTS[d.prompt], TOKENS, "formal" if d.adapter else None)
                except OSError as e:
                    d.cut += server.process.pid in self.killed and not isinstance(e, ConnectionRefusedError)
                    continue
                if s.status in (429, 503):
                    d.refused += 1
                    continue
                if s.status != 200:
                    d.fault = f"{s.status}: {s.answer.read()}"
                    return
                try:
                    d.stream = s.read()
                    d.fault = "" if s.last["event"] == "end" else str(s.last)
                    return
                except OSError as e:
                    if server.process.pid not in self.killed:
                        d.fault = f"{type(e).__name__}: {e}"
                        return
                    d.cut += 1
            time.sleep(0.1)
        d.fault = "no server has answered for a minute"

    def phase(self, name):
        self.phases.append((name, time.monotonic()))

    def story(self):
        """All that happens under load, one after the other."""
        pause = SECONDS / 14

        def behind(name, *serve):
            for server, version in serve:
                wait_for(lambda: self.version(server) == version, f"{name}: version {version}", PATIENCE)  # noqa: B023
            time.sleep(pause)  # of load, before the next event
            self.phase(name)

        a, b = self.servers
        behind("a version is swapped")
        version = self.ask(put=2)["version"]
        behind("an adapter is swapped", (a, version), (b, version))
        self.ask(adapter=2)
        behind("the keeper is killed")
        self.keeper.kill()
        behind("the keeper is there again")
        self.keeper.log.close()
        type(self).keeper = Keeper(self.home)
        behind("a server sleeps")
        self.assertEqual(call(self.port(a), "POST", "/sleep")[0], 200)
        behind("it wakes")
        self.assertEqual(call(self.port(a), "POST", "/wake")[0], 200)
        behind("a server is killed")
        self.killed.add(a.process.pid)
        port = self.port(a)
        wait_for(lambda: "gpufd_serve_active 0\n" not in call(port, "GET", "/metrics")[2], "a request under way")
        a.end(signal.SIGKILL)
        self.servers[0] = a = self.server(port)
        behind("the server is there again", (a, version))
        behind("keeper and store are killed")
        self.keeper.kill()
        stop_store(self.keeper.store)
        self.keeper.close()
        type(self).keeper = Keeper(self.home)
        behind("the weights are put again")
        self.ask(adapter=1)
        version = self.ask(put=1)["version"]
        behind("plain", (a, version), (b, version))

    def tell(self, rate, took):
        lost = [d for d in self.done if d.fault]
        cut, refused = sum(d.cut for d in self.done), sum(d.refused > 0 for d in self.done)
        told = f"{len(self.done)} requests in {took:.0f} s; {cut} were under way in the killed server and were repeated; {refused} were refused by a server first; {len(lost)} lost"
        gpu.seen("serve.py", f"{self.size / 2**30:.1f} GiB, {0.7 * rate:.2f} of {rate:.2f} requests a second ({TOKENS} tokens each)", told)
        gaps = collections.defaultdict(lambda: [0.0])
        for d in self.done:
            times = d.stream.times if d.stream else []
            for a, b in zip(times, times[1:]):
                gaps[[name for name, at in self.phases if at <= b][-1]].append(b - a)
        for name, _ in self.phases[:-1]:
            gpu.seen("serve.py", name, f"gap between tokens of a stream: median {1e3 * statistics.median(gaps[name]):.0f} ms, longest {1e3 * max(gaps[name]):.0f} ms")
        gpu.seen("serve.py", "all of it", f"longest gap {1e3 * max(max(g) for g in gaps.values()):.0f} ms")
        self.assertEqual([(d.prompt, d.adapter, d.fault) for d in lost], [])
        for d in self.done:
            self.right(d.stream, (1, 2), d.adapter, d.prompt)


if __name__ == "__main__":
    sys.exit(gpu.main())
