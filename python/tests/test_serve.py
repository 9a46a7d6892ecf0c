"""examples/serve/serve.py in a process of its own, over a keeper on the software driver, with a stand-in model."""

import json
import pathlib
import signal
import socket
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

from keepers import ROOT, KeeperTest, stop_store, wait_for  # first: it says where the package is

import common
import forks

try:
    import torch
except ImportError:
    torch = None

import gpufd

sys.path.insert(0, str(ROOT / "examples" / "python"))

if torch is not None:
    import serve_standins as standins
    from serve_client import LONG, PROMPT, Stream, call
    from test_scripts import Running

HERE = pathlib.Path(__file__).resolve().parent
STEP = 0.002


def setUpModule():
    if torch is None:
        common.missing("python", f"{sys.executable} has no PyTorch")
    forks.begin("serve_standins")


class Serving(KeeperTest):
    config = {"step": STEP, "max_position_embeddings": LONG + 100}

    def setUp(self):
        super().setUp()
        self.kept = self.keeper()
        self.environ(GPUFD_SOCKET=self.kept.socket)
        self.models = {}
        self.put(1)

    def put(self, seed, **config):
        """Keep a version of the weights of a seed."""
        model = standins.random_model(seed, **self.config | config)
        private = standins.copy_of(model)
        version = gpufd.transformers.put("llama", model).version
        self.models[version] = private
        return version

    def want(self, version, n, layers=None, prompt=PROMPT):
        return standins.generate(self.models[version], prompt, n, layers)

    def server(self, *flags, serves=1, timeout="30"):
        r = Running(sys.executable, "-B", "-u", str(HERE / "serve_standins.py"), "--timeout", timeout, "llama", "--listen", "127.0.0.1:0", *flags)
        self.addCleanup(lambda: r.process.stdin.closed or r.end(signal.SIGKILL))
        self.r = r
        wait_for(lambda: any("listening" in line for line in r.said()) or r.process.poll() is not None, "the port", 5 * common.PATIENCE)
        self.assertIsNone(r.process.poll(), "".join(r.errors))
        self.port = int(next(line for line in r.said() if "listening" in line)["listening"].rpartition(":")[2])
        if serves:
            r.until(lambda: self.version() == serves, f"version {serves}")
        return r

    def stream(self, *args, **fields):
        s = Stream(self.port, *args, **fields)
        self.addCleanup(s.close)
        return s

    def health(self):
        status, _, text = call(self.port, "GET", "/healthz")
        return status, json.loads(text)

    def version(self):
        return self.health()[1].get("version")

    def metrics(self):
        _, headers, text = call(self.port, "GET", "/metrics")
        self.assertIn("version=0.0.4", headers["Content-Type"])
        lines = [line.removeprefix("gpufd_serve_").rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    def leases(self, name="llama"):
        """The versions that readers have, with how many those are."""
        with gpufd.Client(self.kept.socket) as client:
            info = client.stat(name)
            retired = {v["version"]: len(v.get("holders") or ()) for v in info.raw.get("retired") or ()}
            return {v: n for v, n in (retired | {info.version: len(info.holders)}).items() if n}

    def is_right(self, stream, version, n=20, layers=None):
        stream.read()
        self.assertEqual((stream.status, stream.last["event"], stream.last["version"]), (200, "end", version))
        self.assertEqual(stream.tokens, self.want(version, n, layers))

    def ended(self, r, code=0):
        """Wait for the end of a server. Nothing stands on its standard error."""
        got, errors = r.end()
        self.assertEqual((got, errors), (code, ""))


class Streams(Serving):
    def test_streams_go_on_side_by_side(self):
        r = self.server()
        prompts = [[n + 1, 7, 30] for n in range(4)]
        streams = [self.stream(p, n=LONG) for p in prompts]
        for s, p in zip(streams, prompts):
            self.assertEqual(s.read(60).tokens, self.want(1, 60, prompt=p))
        self.is_right(self.stream(), 1)
        for s in streams:
            s.close()
        wait_for(lambda: self.metrics()["active"] == 0, "the end of requests whose clients have gone")
        self.assertEqual(self.metrics()['requests_total{result="gone"}'], 4)
        m = self.metrics()
        self.assertEqual((m['requests_total{result="done"}'], m["version"], m["waiting"], m["asleep"]), (1, 1, 0, 0))
        self.assertEqual(m["step_seconds_count"], m['step_seconds_bucket{le="+Inf"}'])
        self.assertGreater(m["step_seconds_sum"], m["tokens_total"] * STEP)
        self.assertLessEqual(m['step_seconds_bucket{le="0.005"}'], m['step_seconds_bucket{le="0.01"}'])
        lines = call(self.port, "GET", "/metrics")[2].splitlines()
        buckets = [float(line.split('"')[1]) for line in lines if "_bucket" in line]
        self.assertEqual(buckets, sorted(buckets))
        at = lines.index("# TYPE gpufd_serve_step_seconds histogram")
        self.assertTrue(all("step_seconds_" in line for line in lines[at + 1 : at + len(buckets) + 3]))
        self.assertEqual([line for line in lines if line.startswith("# TYPE gpufd_serve_requests_total ")], ["# TYPE gpufd_serve_requests_total counter"])
        self.ended(r)

    def test_a_prompt_goes_in_chunks(self):
        self.server()
        prompt = [n % 101 for n in range(2000)]
        self.assertEqual(self.stream(prompt, n=3).read().tokens, self.want(1, 3, prompt=prompt))
        wait_for(lambda: self.metrics().get("step_seconds_count") == 4 + 2, "four chunks, the last of which gives a token, and two tokens")

    def test_text(self):
        """It goes out when its last character is whole."""
        self.put(1, vocab_size=256)
        self.server("--tokenizer", "here", serves=2)
        s = self.stream("café", n=40).read()
        self.assertEqual(s.tokens, self.want(2, 40, prompt=list("café".encode())))
        texts = [bytes(s.tokens[:n]).decode(errors="replace") for n in range(41)]
        self.assertEqual(s.text, [text for text in texts if not text.endswith("\ufffd")][-1])
        self.assertNotEqual(s.text, "")
        status, _, said = call(self.port, "POST", "/generate", '{"prompt": "\\ud800"}')
        self.assertEqual((status, "prompt is no text" in said), (400, True), said)

    def test_the_models_end(self):
        tokens = self.want(1, 20)
        at = next(i for i, t in enumerate(tokens) if t not in tokens[:i] and i > 0)
        self.put(1, stop=[tokens[at], 100])
        self.server(serves=2)
        s = self.stream().read()
        self.assertEqual((s.tokens, s.last["reason"]), (tokens[:at], "stop"))

    def test_wrong_input(self):
        r = self.server()
        for body, text in (
            ("{", "not JSON"), ("[]", "no object"), ("{}", "prompt is"), ('{"prompt": []}', "prompt is"), ('{"prompt": [1, "x"]}', "prompt is"),
            ('{"prompt": [true]}', "prompt is"), ('{"prompt": [-1]}', "prompt is"), ('{"prompt": [101]}', "the model knows 101"), ('{"prompt": "hello"}', "--tokenizer"),
            ('{"prompt": [1], "max_tokens": 0}', "max_tokens"), ('{"prompt": [1], "max_tokens": "9"}', "max_tokens"), ('{"prompt": [1], "n": 2}', "unknown field 'n'"),
            (json.dumps({"prompt": [1], "max_tokens": 2 * LONG}), "has room for"), ('{"prompt": [1], "adapter": 3}', "adapter is"),
            ("[" * 100_000, "not JSON"), ('{"prompt": [' + "9" * 5000 + "]}", "JSON"),
        ):  # fmt: skip
            with self.subTest(body[:60]):
                status, _, said = call(self.port, "POST", "/generate", body)
                self.assertEqual(status, 400, said)
                self.assertIn(text, json.loads(said)["error"])
        self.assertEqual(call(self.port, "GET", "/healthz", "POST /sleep HTTP/1.1\r\n\r\n")[0], 400)
        self.assertEqual(call(self.port, "POST", "/nothing")[0], 404)
        self.assertEqual(call(self.port, "GET", "/generate")[0], 404)
        self.assertEqual(call(self.port, "POST", "/generate", headers={"Transfer-Encoding": "chunked"})[0], 411)
        for length in (str(1 << 40), "9" * 5000):
            self.assertEqual(call(self.port, "POST", "/generate", headers={"Content-Length": length})[0], 413)
        self.is_right(self.stream(), 1)
        self.ended(r)

    def test_wrong_addresses(self):
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        wrong = {text: (2, "want HOST:PORT") for text in ("8000", ":8000", "127.0.0.1", "127.0.0.1:http")}
        wrong |= {f"127.0.0.1:{port}": (1, f"serve.py: cannot listen at 127.0.0.1:{port}: ") for port in (taken.getsockname()[1], 99999)}
        for text, (code, why) in wrong.items():
            with self.subTest(text):
                p = self.run_program([sys.executable, "-B", str(HERE / "serve_standins.py"), "llama", "--listen", text])
                said = p.communicate(timeout=common.PATIENCE)[0]
                self.assertIn(why, said)
                self.assertNotIn("Traceback", said)
                self.assertEqual(p.returncode, code)

    def test_the_queue_is_bounded(self):
        self.server("--queue", "2")
        running = [self.stream(n=LONG).read(1) for _ in range(8)]
        pool = ThreadPoolExecutor(2)
        self.addCleanup(pool.shutdown)
        waiting = [pool.submit(lambda: self.is_right(self.stream(), 1)) for _ in range(2)]
        wait_for(lambda: self.metrics()["waiting"] == 2, "two that wait")
        status, headers, text = call(self.port, "POST", "/generate", json.dumps({"prompt": PROMPT}))
        self.assertEqual((status, headers["Retry-After"]), (429, "1"))
        self.assertIn("2 requests wait", text)
        self.assertEqual(self.metrics()['refusals_total{status="429"}'], 1)
        for s in running:
            s.close()
        for job in waiting:
            job.result(common.PATIENCE)

    def test_requests_that_come_at_once_have_their_turns(self):
        """No request is refused while fewer than eight take turns."""
        self.put(1, step=0.2)
        self.server("--queue", "0", serves=2)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: self.is_right(self.stream(n=2), 2, 2), range(8)))

class Load:
    """Clients that ask all the time, and what they got."""

    def __init__(self, case, clients, adapters=(None,)):
        self.case, self.adapters, self.stop, self.streams = case, adapters, threading.Event(), []
        self.pool = ThreadPoolExecutor(clients)
        self.jobs = [self.pool.submit(self._ask, n) for n in range(clients)]
        case.addCleanup(self.end)

    def _ask(self, n):
        while not self.stop.is_set():
            adapter = self.adapters[n % len(self.adapters)]
            s = Stream(self.case.port, adapter=adapter)
            if s.status != 200:
                raise AssertionError(f"{s.status}: {s.answer.read()}")
            s.read().adapter = adapter
            self.streams.append(s)

    def await_version(self, version, key="version"):
        wait_for(lambda: self.streams[-1:] and self.streams[-1].last[key] == version or self.failed(), f"{key} {version}")

    def failed(self):
        return [job.result() for job in self.jobs if job.done()]

    def end(self):
        """Stop asking, and return what was got. Raises what a client has met."""
        self.stop.set()
        for job in self.jobs:
            job.result(common.PATIENCE)
        self.pool.shutdown()
        return self.streams


class Versions(Serving):
    def test_no_request_is_lost_and_none_is_of_two_versions(self):
        r = self.server()
        load = Load(self, 4)
        load.await_version(1)
        for seed in (2, 3, 4):
            load.await_version(self.put(seed))
        want = {v: self.want(v, 20) for v in self.models}
        streams = load.end()
        self.assertEqual([s.last for s in streams if s.tokens != want[s.last["version"]]], [])
        self.assertEqual({s.last["version"] for s in streams}, {1, 2, 3, 4})
        self.assertEqual(self.metrics()["swaps_total"], 3)
        wait_for(lambda: self.leases() == {4: 1}, "the end of the old leases")
        self.ended(r)

    def test_what_is_under_way_finishes_on_its_version(self):
        self.server()
        first = self.stream(n=LONG).read(5)
        self.put(2)
        wait_for(lambda: self.version() == 2, "version 2")
        second = self.stream(n=LONG).read(5)
        self.put(3)
        self.assertEqual(first.read(20).tokens, self.want(1, 25))
        self.assertEqual(second.read(20).tokens, self.want(2, 25))
        self.assertEqual(self.version(), 2, "three modules are there")
        self.assertEqual({v: n for v, n in self.leases().items() if v < 3}, {1: 1, 2: 1})
        first.close()
        wait_for(lambda: self.version() == 3, "version 3")
        second.close()
        wait_for(lambda: self.leases() == {3: 1}, "the end of old leases")
        self.is_right(self.stream(), 3)

    def test_what_does_not_fit_is_refused(self):
        r = self.server()
        stream, model = self.stream(n=LONG).read(1), standins.random_model(5)
        state = {name: t for name, t in model.state_dict().items() if name != "mix.bias"}
        with gpufd.get("llama") as version:
            texts = version.metadata
        for n, (tensors, metadata, why) in enumerate((
            ({"embed.weight": torch.ones(3)}, {}, "was not put by gpufd.transformers.put"),
            (state, texts, "mix.bias"), ({**state, "mix.bias": torch.ones(3)}, texts, "mix.bias"),
        )):  # fmt: skip
            gpufd.torch.put("llama", tensors, metadata=metadata)
            r.until(lambda n=n: any(line.get("refused") == n + 2 for line in r.said()), why)
            self.assertIn(why, r.said()[-1]["why"])
            self.assertEqual(self.health(), (200, {"version": 1}))
            self.is_right(self.stream(), 1)
            wait_for(lambda: self.leases() == {1: 1}, "the end of the lease of what was refused")
        self.assertEqual(self.metrics()["versions_refused_total"], 3)
        self.assertEqual(stream.read(9).tokens, self.want(1, 10))
        stream.close()
        self.put(5)
        wait_for(lambda: self.version() == 5, "version 5")
        self.is_right(self.stream(), 5)

    def test_another_configuration_gets_modules_of_its_own(self):
        self.server()
        first = self.stream(n=LONG).read(1)
        for seed, width in ((2, 24), (3, 24), (4, 16), (5, 24)):
            version = self.put(seed, hidden_size=width)
            wait_for(lambda: self.version() == version, f"version {version}")  # noqa: B023
            self.is_right(self.stream(), version)
        self.assertEqual(first.read(9).tokens, self.want(1, 10))
        first.close()
        wait_for(lambda: self.leases() == {5: 1}, "the end of old leases")

    def test_a_server_before_its_weights(self):
        with gpufd.Client(self.kept.socket) as client:
            client.remove("llama")
        r = self.server(serves=0)
        self.assertEqual((self.health()[0], call(self.port, "POST", "/generate", json.dumps({"prompt": PROMPT}))[0]), (503, 503))
        self.assertEqual(call(self.port, "POST", "/sleep")[0], 503)
        version = self.put(2)
        wait_for(lambda: self.version() == version, "the weights")
        self.is_right(self.stream(), version)
        self.ended(r)


class AdaptersTest(Serving):
    def add(self, name, seed, rank=2, rows=16, base=None):
        """Keep an adapter, as examples/python/lora.py does. Return what it changes."""
        g = torch.Generator().manual_seed(seed)
        a, b = torch.randn(rank, 16, generator=g), torch.randn(rows, rank, generator=g)
        labels = {"rank": str(rank), "alpha": "2"} | ({"base": str(base)} if base else {})
        gpufd.torch.put(f"llama/adapters/{name}", {"mix.A": a.clone(), "mix.B": b.clone()}, labels=labels)
        return {"mix": (a, b, 2 / rank)}

    def refused(self, status, text, adapter):
        s = self.stream(adapter=adapter)
        said = json.loads(s.answer.read())["error"]
        self.assertEqual(s.status, status, said)
        self.assertIn(text, said)

    def test_adapters_come_change_and_go(self):
        r = self.server()
        self.refused(404, "llama/adapters/formal", "formal")
        formal, rude = self.add("formal", 1), self.add("rude", 2, rank=4)
        self.is_right(self.stream(adapter="formal"), 1, layers=formal)
        self.is_right(self.stream(adapter="rude"), 1, layers=rude)
        self.is_right(self.stream(), 1)
        old = self.stream(adapter="formal", n=LONG).read(1)
        newer = self.add("formal", 3)
        wait_for(lambda: self.stream(adapter="formal").read().last["adapter_version"] == 2, "the newer adapter")
        self.is_right(self.stream(adapter="formal"), 1, layers=newer)
        self.assertEqual(old.read(9).tokens, self.want(1, 10, formal))
        old.close()
        with gpufd.Client(self.kept.socket) as client:
            client.remove("llama/adapters/rude")
        wait_for(lambda: self.stream(adapter="rude").status == 404, "the removal")
        self.assertEqual(self.metrics()["adapters"], 1)
        self.is_right(self.stream(), 1)
        self.ended(r)

    def test_what_does_not_fit(self):
        r = self.server()
        self.add("large", 1, rows=17)
        self.refused(409, "mix: B·A is [17, 2]·[2, 16] of torch.float32, and the weight [16, 16]", "large")
        gpufd.torch.put("llama/adapters/plain", {"mix.A": torch.ones(2, 16)})
        self.refused(409, "does not fit", "plain")
        self.add("other", 1, base=7)
        self.refused(409, "is for version 7, and version 1 is served", "other")
        good = self.add("good", 2, base=1)
        self.is_right(self.stream(adapter="good"), 1, layers=good)
        self.add("good", 3, rows=17)
        wait_for(lambda: self.stream(adapter="good").read() and any("serves_on" in line for line in r.said()), "the newer adapter")
        self.is_right(self.stream(adapter="good"), 1, layers=good)
        self.put(2)
        wait_for(lambda: self.version() == 2, "version 2")
        self.refused(409, "is for version 1, and version 2 is served", "good")

    def test_adapters_and_versions_change_under_load(self):
        self.server()
        layers = {1: self.add("formal", 1)}
        load = Load(self, 4, (None, "formal"))
        load.await_version(1, "adapter_version")
        for n in (2, 3):
            load.await_version(self.put(n))
            layers[n] = self.add("formal", n)
            load.await_version(n, "adapter_version")
        want = {(v, a): self.want(v, 20, layers.get(a)) for v in (1, 2, 3) for a in (None, 1, 2, 3)}
        streams = load.end()
        self.assertEqual([s.last for s in streams if s.tokens != want[s.last["version"], s.last["adapter_version"]]], [])
        self.assertEqual([s.last for s in streams if (s.adapter is None) != (s.last["adapter_version"] is None)], [])


class Sleeping(Serving):
    def post(self, path, status=200):
        got, _, text = call(self.port, "POST", path)
        self.assertEqual(got, status, text + "".join(self.r.errors))
        return json.loads(text)

    def detached(self):
        with gpufd.Client(self.kept.socket) as client:
            return [h.get("detached", False) for h in client.stat("llama").raw["holders"]]

    def test_sleep_and_wake(self):
        r = self.server()
        under_way, pool = self.stream(n=200), ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        under_way.read(1)
        asleep = pool.submit(self.post, "/sleep")
        self.is_right(under_way, 1, 200)
        self.assertEqual(asleep.result(common.PATIENCE), {"asleep": 1, "lease_kept": True})
        self.assertEqual(self.post("/sleep"), {"asleep": 1})
        status, headers, text = call(self.port, "POST", "/generate", json.dumps({"prompt": PROMPT}))
        self.assertEqual((status, headers["Retry-After"], json.loads(text)["error"]), (503, "1", "the model sleeps"))
        self.assertEqual((self.health()[0], self.metrics()["asleep"]), (503, 1))
        wait_for(lambda: self.detached() == [True], "the word that the memory is unmapped")
        self.assertEqual((self.post("/wake"), self.post("/wake")), ({"version": 1}, {"version": 1}))
        self.is_right(self.stream(), 1)
        self.ended(r)

    def test_a_version_that_comes_meanwhile(self):
        r = self.server()
        for n in (2, 3):
            self.post("/sleep")
            self.put(10 * n)
            wait_for(lambda n=n: self.leases() == {n - 1: 1, n: 1}, "the lease of the new version")
            wait_for(lambda: self.detached() == [True], "the word that it is unmapped")
            self.assertEqual(self.post("/wake"), {"version": n})
            self.is_right(self.stream(), n)
            wait_for(lambda n=n: self.leases() == {n: 1}, "the end of the old lease")
        self.post("/sleep")
        gpufd.torch.put("llama", {"embed.weight": torch.ones(3)})
        wait_for(lambda: self.leases() == {3: 1, 4: 1}, "the lease of what does not fit")
        self.assertEqual(self.post("/wake"), {"version": 3})
        self.assertEqual(r.said()[-1]["refused"], 4)
        self.is_right(self.stream(), 3)
        self.put(5)
        wait_for(lambda: self.version() == 5, "version 5")
        self.is_right(self.stream(), 5)

    def test_the_keeper_is_killed_meanwhile(self):
        self.server(timeout="5")
        self.post("/sleep")
        self.kept.kill()
        self.assertIn("error", self.post("/wake", 503))
        self.assertEqual(self.health()[1]["error"], "the model sleeps")
        self.kept = self.keeper()
        wait_for(lambda: self.leases() == {1: 1}, "the lease")
        self.assertEqual(self.post("/wake"), {"version": 1})
        self.is_right(self.stream(), 1)

    def test_the_store_is_killed_meanwhile(self):
        self.server()
        self.post("/sleep")
        self.kept.close()
        self.kept = self.keeper()
        self.put(2)  # version 1 again, of the next keeper
        wait_for(lambda: self.leases() == {1: 1}, "the lease")
        self.assertEqual(self.post("/wake"), {"version": 1})
        self.is_right(self.stream(), 1)

        self.post("/sleep")
        self.kept.close()
        self.kept = self.keeper()
        gpufd.put("another", b"name")
        self.assertEqual(self.post("/wake", 503), {"error": "no version of llama is here yet"})
        self.put(3)
        wait_for(lambda: self.version() == 1, "the next version")
        self.is_right(self.stream(), 1)


class Deaths(Serving):
    def test_the_keeper_is_killed(self):
        r = self.server()
        stream, load = self.stream(n=LONG).read(1), Load(self, 2)
        load.await_version(1)
        for seed in (2, 3):
            self.kept.kill()
            known = len(load.streams)
            wait_for(lambda: len(load.streams) > known + 4, "requests without a keeper")  # noqa: B023
            self.kept = self.keeper()
            load.await_version(self.put(seed))
            if seed == 2:
                self.assertEqual(stream.read(9).tokens, self.want(1, 10))
                stream.close()  # version 3 takes the module of version 1
                wait_for(lambda: self.leases() == {2: 1}, "the end of the first lease")
        want = {v: self.want(v, 20) for v in self.models}
        self.assertEqual([s.last for s in load.end() if s.tokens != want[s.last["version"]]], [])
        wait_for(lambda: self.leases() == {3: 1}, "the end of the old leases")
        self.ended(r)

    def test_keeper_and_store_are_killed(self):
        r = self.server()
        stream, load = self.stream(n=LONG).read(1), Load(self, 2)
        load.await_version(1)
        self.kept.kill()
        stop_store(self.kept.store)
        self.kept.close()
        self.kept = self.keeper()
        known = len(load.streams)
        wait_for(lambda: len(load.streams) > known + 4, "requests over memory that no keeper has")
        want, self.models = [self.want(1, 20)], {}
        self.put(2)
        wait_for(lambda: load.streams[-1].tokens != want[0], "the next version")
        want.append(self.want(1, 20))
        self.assertEqual([s.last for s in load.end() if s.tokens not in want], [])
        stream.read(9).close()
        wait_for(lambda: self.leases() == {1: 1}, "the lease")
        self.is_right(self.stream(), 1)
        self.ended(r)

    def test_an_adapter_outlives_the_keeper(self):
        r = self.server()
        a, b = torch.ones(2, 16), torch.ones(16, 2)
        gpufd.torch.put("llama/adapters/one", {"mix.A": a.clone(), "mix.B": b.clone()}, labels={"rank": "2", "alpha": "2"})
        layers = {"mix": (a, b, 1.0)}
        self.is_right(self.stream(adapter="one"), 1, layers=layers)
        self.kept.kill()
        answers = []

        def looked():
            self.is_right(self.stream(adapter="one"), 1, layers=layers)
            answers.append(1)
            return any("serves_on" in line for line in r.said())

        wait_for(looked, "the word that the server has looked for the adapter in vain")
        self.assertGreater(len(answers), 3, "requests wait for it")
        stop_store(self.kept.store)
        self.kept.close()
        self.kept = self.keeper()
        self.is_right(self.stream(adapter="one"), 1, layers=layers)

    def test_an_adapter_that_nobody_asked_for_outlives_the_keeper(self):
        a, b = torch.ones(2, 16), torch.ones(16, 2)
        for name, more in (("one", torch.ones(16, 2)), ("large", torch.ones(17, 2)), ("flat", torch.ones(16))):
            gpufd.torch.put(f"llama/adapters/{name}", {"mix.A": a.clone(), "mix.B": more}, labels={"rank": "2", "alpha": "2"})
        for part in (0, 1):
            gpufd.torch.put("llama/adapters/two", {f"mix.{'AB'[part]}": a.clone()}, part=part, parts=2, transaction="t")
        r = self.server()
        told = {line["adapter"]: line["why"] for line in r.said() if "adapter" in line}
        self.assertEqual(sorted(told), ["flat", "large", "two"], told)
        self.assertIn("has 2 parts", told.pop("two"))
        self.assertTrue(all("does not fit" in why for why in told.values()), told)
        self.assertEqual([call(self.port, "POST", path)[0] for path in ("/sleep", "/wake")], [200, 200])
        self.assertEqual(self.metrics()["adapters"], 1)
        self.kept.kill()
        stop_store(self.kept.store)
        self.kept.close()
        self.kept = self.keeper()
        self.is_right(self.stream(adapter="one"), 1, layers={"mix": (a, b, 1.0)})

    def test_a_server_is_killed(self):
        """Another one answers, and the keeper takes the lease back."""
        first = self.server()
        stream, port = self.stream(n=LONG).read(1), self.port
        self.server()
        wait_for(lambda: self.leases() == {1: 2}, "both leases")
        first.end(signal.SIGKILL)
        self.assertRaises(ConnectionError, stream.read)
        self.assertRaises(ConnectionError, Stream, port)
        self.is_right(self.stream(), 1)
        wait_for(lambda: self.leases() == {1: 1}, "the end of the lease")

    def test_the_end_finishes_what_is_under_way(self):
        r = self.server()
        streams = [self.stream(n=200).read(1) for _ in range(3)]
        r.process.send_signal(signal.SIGTERM)
        wait_for(lambda: self.health()[1].get("error") == "the server ends", "the end")
        self.assertEqual(call(self.port, "POST", "/generate", json.dumps({"prompt": PROMPT}))[0], 503)
        for s in streams:
            self.is_right(s, 1, 200)
        self.assertEqual(r.process.wait(common.PATIENCE), 0, r.errors)
        self.assertEqual((r.said()[-1], *r.end()), ({"cut": 0}, 0, ""))

    def test_the_end_has_a_limit(self):
        r = self.server("--grace", "0.1")
        s = self.stream(n=LONG).read(1)
        r.process.send_signal(signal.SIGTERM)
        s.read()
        self.assertEqual((s.last["event"], s.last["error"]), ("error", "the server ends"))
        self.assertEqual(r.process.wait(common.PATIENCE), 1)
        self.assertEqual((r.said()[-1], *r.end()), ({"cut": 1}, 1, ""))


if __name__ == "__main__":
    unittest.main()
