"""gpufd.weights on a GPU: every bit of every update, by streams, in place under a graph, and when processes are killed.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_weights.py [GIB] -v

GIB of weights, 16 by default, are handed over twice. It needs a GPU and PyTorch 2; two tests need two GPUs. In the end it prints what was
seen. Times are printed, and not judged.
"""

import contextlib
import gc
import itertools
import json
import random
import sys
import threading
import time

import gpu  # first: it says where the package is
import weights_peers as peers
from keepers import wait_for

import common
import gpufd
from common import PATIENCE
from gpufd.weights import Meta

GIB = int(sys.argv.pop(1)) if sys.argv[1:] and sys.argv[1].isdigit() else 16
SMALL = {"layers": 4, "width": 512, "bucket": 2 << 20}  # 3 MiB a layer
DEATHS, FLAT = 20, 1000
SLEEP = 500_000_000  # cycles that a stream has other work to do


class Peers(gpu.OnGPU):
    """Tests with trainers and engines of their own beside them."""

    def setUp(self):
        super().setUp()
        self.torch = gpu.Torch().lib
        self.addCleanup(self.clear)

    def clear(self):
        gc.collect()
        self.torch.cuda.empty_cache()

    def peer(self, role, **options):
        """A trainer or an engine in a process of its own, which is ready."""
        command = "import weights_peers as p, json; getattr(p, sys.argv[1])(json.loads(sys.argv[2]))"
        return self.python(command, role, json.dumps({"socket": self.path, **SMALL, **options}), waits_for="ready")

    def peers(self, count, role, ahead=4, **options):
        """Such processes one after the other, started ahead, each of which begins when it is told."""
        started = []
        for n in range(count):
            while len(started) < min(count, n + ahead):
                started.append(self.peer(role, held=True, **options, first=1 + 1000 * len(started)))
            yield started[n]

    def tell(self, p, word):
        p.stdin.write(f"{word}\n")
        p.stdin.flush()

    def lines(self, p):
        """What a process says, until it ends well."""
        others = []
        for line in p.stdout:
            if line.startswith("{"):
                yield json.loads(line)
            else:
                others.append(line)
        self.assertEqual(p.wait(PATIENCE), 0, "".join(others))

    def subscriber(self, **options):
        sub = gpufd.weights.Subscriber("policy", socket=self.path, wait=PATIENCE, **options)
        self.addCleanup(sub.close)
        return sub

    def publisher(self, metadata=None, **options):
        pub = gpufd.weights.Publisher("policy", metadata, socket=self.path, **{"bucket": SMALL["bucket"], **options})
        self.addCleanup(pub.close)
        return pub

    def shapes(self):
        return list(peers.layout(SMALL["layers"], SMALL["width"]))


class Weights(Peers):
    """What an engine gets is what was sent."""

    def test_every_bit(self):
        """As large as a model, into storage of the engine's."""
        width = 4096 if GIB else 512
        layers = max(1, (GIB << 30) // (12 * width * width))
        shapes = list(peers.layout(layers, width))
        p = self.peer("train", layers=layers, width=width, bucket=256 << 20, count=2)
        held, steps, began = peers.storage(shapes), [], time.monotonic()
        for update in self.subscriber():
            update.load(lambda tensors: [held[name].copy_(t) for name, t in tensors])
            self.assertEqual(peers.wrong(update.step, held, shapes), [])
            steps.append(update.step)
        self.assertEqual(steps, [1, 2])
        self.assertEqual(list(self.lines(p)), [{"trained": 2}])
        size = sum(t.numel() * t.element_size() for t in held.values())
        gpu.seen("weights", f"{size / 2**30:.1f} GiB of random bits in {len(held)} tensors, twice", f"all equal; {time.monotonic() - began:.1f} s with making and comparing them")

    def test_layers_that_wait_for_their_last_tensor(self):
        """An engine keeps the tensors of a layer, which is larger than all buckets, and then those of a whole update over the next one."""
        shapes = self.shapes()
        p = self.peer("train", count=6, bucket=1 << 20, buckets=2)
        held, layer, before = peers.storage(shapes), {}, {}

        def by_layers(tensors):
            for name, t in tensors:
                layer[name] = t
                if len(layer) == len(peers.PARTS):
                    for name, t in layer.items():
                        held[name].copy_(t)
                    layer.clear()
                del t

        for update in self.subscriber():
            if update.step <= 3:
                update.load(by_layers)
                self.assertEqual(peers.wrong(update.step, held, shapes), [])
                continue
            now = {}
            update.load(now.update)
            for step, kept in ((update.step - 1, before), (update.step, now)):
                self.assertEqual(peers.wrong(step, kept, shapes) if kept else [], [], (step, update.step))
            before = now
        self.assertEqual(update.step, 6)
        del before, now, kept
        self.assertEqual(list(self.lines(p)), [{"trained": 6}])

    def test_nobody_waits_for_the_device(self):
        """The trainer's thread goes on before its stream has even begun with the weights, and the engine has the right ones."""
        torch, shapes = self.torch, self.shapes()
        p = self.peer("work")
        weights, took = peers.storage(shapes), []
        pub = self.publisher(weights, bucket=16 << 20)
        pub.await_subscribers(1, PATIENCE)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        for step in range(1, 6):
            made = dict(peers.update_of(step, shapes))
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                if step > 1:  # the first one loads kernels
                    torch.cuda._sleep(SLEEP)
                for name, t in made.items():
                    weights[name].copy_(t)
                began = time.monotonic()
                with pub.update(step) as send:
                    for name, t in weights.items():
                        send(name, t)
                took.append(time.monotonic() - began)
                self.assertTrue(step == 1 or not stream.query(), f"update {step} waited for the stream")
                for t in weights.values():
                    t.zero_()  # behind the update
            pub.await_loaded(PATIENCE)
        pub.close()
        self.assertEqual(list(self.lines(p)), [{"step": n, "wrong": []} for n in range(1, 6)])
        gpu.seen("weights", "an update behind other work of the stream", f"the thread went on after {1e3 * max(took[1:]):.1f} ms at most, before the stream had begun")

    def test_a_bucket_is_used_again_behind_the_engine(self):
        """An engine that lets go at once, and whose stream reads late, has the right bits."""
        shapes = self.shapes()
        p = self.peer("work", slow=SLEEP)
        pub = self.publisher(buckets=2)
        pub.await_subscribers(1, PATIENCE)
        for step in range(1, 11):
            with pub.update(step) as send:
                for name, t in peers.update_of(step, shapes):
                    send(name, t)
        pub.await_loaded(PATIENCE)
        pub.close()
        self.assertEqual(list(self.lines(p)), [{"step": n, "wrong": []} for n in range(1, 11)])

    def exchange(self, sent, metadata=None, **options):
        """Publish tensors, and return what an engine has of them."""
        pub, got = self.publisher(metadata, **options), {}
        sub = self.subscriber()

        def send_all():
            pub.await_subscribers(1, PATIENCE)
            with pub.update(1) as send:
                for name, t in sent.items():
                    send(name, t)

        thread = threading.Thread(target=send_all)
        thread.start()
        try:
            sub.next(PATIENCE).load(lambda tensors: got.update((name, t.clone()) for name, t in tensors))
        finally:
            thread.join(PATIENCE)
        self.torch.cuda.synchronize()
        sub.close()
        pub.close()
        return got

    def test_pieces(self):
        """Tensors larger than a bucket, between small ones, and of the size of one."""
        torch = self.torch
        sizes = (3, (7 << 20) + 5, 1, 2 << 20, (2 << 20) - 1, 0, 9 << 20)
        sent = {f"t{i}": torch.randint(0, 256, (n,), dtype=torch.uint8, device=peers.place()) for i, n in enumerate(sizes)}
        got = self.exchange(sent)
        self.assertEqual(list(got), list(sent))
        self.assertEqual([name for name, t in sent.items() if not torch.equal(t, got[name])], [])

    def test_conversion(self):
        """On the sender's stream, from any type, strides and device."""
        torch = self.torch
        x = torch.randn(512, 768, device=peers.place())
        sent = {"plain": x, "turned": x.t(), "every second": x[:, ::2], "half": x.half(), "double": x.double(), "of the CPU": x.cpu(), "as it is": x.bfloat16()}
        got = self.exchange(sent, {name: Meta("BF16", tuple(t.shape)) for name, t in sent.items()})
        for name, t in sent.items():
            self.assertEqual((got[name].dtype, got[name].shape), (torch.bfloat16, t.shape), name)
            self.assertTrue(torch.equal(got[name], t.to(torch.bfloat16).to(peers.place())), name)

    def test_small_types(self):
        torch = self.torch
        raw = torch.arange(256, dtype=torch.uint8, device=peers.place()).view(16, 16)
        sent = {str(d): raw.view(d) for d in (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)} | {"bool": raw > 9}
        got = self.exchange(sent)
        for name, t in sent.items():
            self.assertEqual(got[name].dtype, t.dtype)
            self.assertTrue(torch.equal(got[name].view(torch.uint8), t.view(torch.uint8)), name)


class InPlace(Peers):
    def test_a_graph_replays(self):
        """Over updates, and over those of a new trainer's process, at the same addresses."""
        torch, shapes = self.torch, self.shapes()
        first = self.peer("tune")
        module, sub = peers.module_of(shapes), self.subscriber()
        self.tell(first, 1)
        sub.bind(module)
        addresses = [p.data_ptr() for p in module.parameters()]
        copies = peers.storage(shapes)

        def read():
            for copy, p in zip(copies.values(), module.parameters()):
                copy.copy_(p)

        replay = self.captured(read)

        def check(step):
            replay()
            torch.cuda.synchronize()
            self.assertEqual(peers.wrong(step, copies, shapes), [], step)

        check(1)
        for step in range(2, 12):
            self.tell(first, step)
            self.load(sub, step)
            check(step)
        first.kill()
        first.wait()
        check(11)  # the memory stays
        second = self.peer("tune")
        for step in range(12, 22):
            self.tell(second, step)
            self.load(sub, step)
            check(step)
            self.assertEqual([p.data_ptr() for p in module.parameters()], addresses)
        gpu.seen("weights", "in place: a graph over 20 updates, of two trainers", "all bits, at the same addresses")

    def captured(self, work):
        """Capture work in a graph. Returns what replays that."""
        side, graph = self.torch.cuda.Stream(), self.torch.cuda.CUDAGraph()
        with self.torch.cuda.stream(side):
            work()
        side.synchronize()
        with self.torch.cuda.graph(graph):
            work()
        return graph.replay

    def load(self, sub, step):
        """Take updates until that step is loaded."""
        update = sub.next(PATIENCE)
        update.load()
        self.assertEqual((update.step, sub.step), (step, step))


class Deaths(Peers):
    """Whatever is killed: an update that is whole has the right bytes, all of them."""

    def test_trainers(self):
        shapes, whole, torn = self.shapes(), 0, 0
        held, sub = peers.storage(shapes), self.subscriber()
        for n, p in enumerate(self.peers(DEATHS, "train")):
            self.tell(p, "go")
            update = None
            while not update or update.step <= 1000 * n:  # what the one before has left
                update = sub.next(PATIENCE)
                bad = self.load(update, held, shapes)
                whole, torn = whole + (not bad), torn + bad
            threading.Timer(random.uniform(0, 0.2), p.kill).start()
            while p.poll() is None:
                with contextlib.suppress(gpufd.TimedOutError):
                    bad = self.load(sub.next(0.1), held, shapes)
                    whole, torn = whole + (not bad), torn + bad
        self.assertGreaterEqual(whole, DEATHS)
        gpu.seen("weights", f"{DEATHS} trainers killed", f"{whole} updates whole, every bit right; {torn} torn, and said to be")

    def load(self, update, held, shapes):
        """Load an update, and check it. Returns whether it was torn."""
        try:
            update.load(lambda tensors: [held[name].copy_(t) for name, t in tensors])
        except gpufd.WeightsError as e:
            self.assertEqual(e.reason, "torn")
            return True
        self.assertEqual(peers.wrong(update.step, held, shapes), [])
        return False

    def test_engines(self):
        """No engine that is killed holds up the trainer, or the engine that is there all the time."""
        shapes, steps, longest = self.shapes(), itertools.count(1), 0.0
        stays = self.peer("work", quiet=True)
        pub = self.publisher()
        pub.await_subscribers(1, PATIENCE)
        for p in self.peers(DEATHS, "work"):
            self.tell(p, "go")
            wait_for(lambda: self.update(pub, next(steps), shapes) and len(pub.subscribers) == 2, "the next engine")
            threading.Timer(random.uniform(0, 0.2), p.kill).start()
            while p.poll() is None or len(pub.subscribers) == 2:
                longest = max(longest, self.update(pub, next(steps), shapes))
            for line in p.stdout.read().splitlines()[:-1]:  # the last one may be half a line
                self.assertEqual(json.loads(line)["wrong"], [])
        pub.await_loaded(PATIENCE)
        pub.close()
        count = next(steps) - 1
        self.assertEqual(list(self.lines(stays)), [{"right": count}])
        gpu.seen("weights", f"{DEATHS} engines killed", f"{count} updates whole for the one that stayed; the longest took {1e3 * longest:.0f} ms")
        self.assertLess(longest, PATIENCE / 4)

    def update(self, pub, step, shapes):
        """Publish an update, and return how long it took."""
        began = time.monotonic()
        with pub.update(step) as send:
            for name, t in peers.update_of(step, shapes):
                send(name, t)
        return time.monotonic() - began


class Growth(Peers):
    def test_nothing_grows(self):
        """Descriptors, mappings and device memory of both sides over many updates, with tensors in pieces."""
        shapes, warm, ours = self.shapes(), 50, []
        p = self.peer("work", quiet=True, vitals=[warm, warm + FLAT])
        pub = self.publisher(bucket=(1 << 20) - 4096, buckets=3)
        pub.await_subscribers(1, PATIENCE)
        with self.torch.cuda.stream(self.torch.cuda.Stream()):
            for step in range(1, warm + FLAT + 1):
                with pub.update(step) as send:
                    for name, t in peers.update_of(step, shapes):
                        send(name, t)
                if step in (warm, warm + FLAT):
                    pub.await_loaded(PATIENCE)
                    self.clear()
                    ours.append(gpu.vitals())
        pub.close()
        said = list(self.lines(p))
        self.assertEqual(said[-1], {"right": warm + FLAT})
        theirs = [line["vitals"] for line in said if "vitals" in line]
        before, after = ours
        gpu.seen("weights", f"{FLAT} updates", f"trainer: descriptors, maps, free bytes before {before}, after {after}; engine: descriptors, maps, bytes of tensors {theirs}")
        self.assertLessEqual(after[0], before[0] + 2)
        self.assertLessEqual(after[1], before[1] + 32)
        self.assertLessEqual(before[2] - after[2], 8 << 20)
        self.assertLessEqual(theirs[1][0], theirs[0][0] + 2)
        self.assertLessEqual(theirs[1][1], theirs[0][1] + 32)
        self.assertEqual(theirs[1][2], theirs[0][2])


class TwoGPUs(Peers):
    def setUp(self):
        super().setUp()
        if self.torch.cuda.device_count() < 2:
            common.missing("two", f"PyTorch sees {self.torch.cuda.device_count()} GPU here")

    def test_each_its_own(self):
        """Engines that see only their own GPU, as number 0, take the weights of the trainer that is there. Steps tell the trainers apart."""
        self.environ(XDG_RUNTIME_DIR=self.dir)
        engines = [self.peer("work", socket=None, visible=str(n)) for n in range(2)]
        trainers = [self.peer("train", socket=None, device=n, first=1 + 1000 * n, count=10) for n in range(2)]
        for n, (engine, trainer) in enumerate(zip(engines, trainers)):
            self.assertEqual(list(self.lines(trainer)), [{"trained": 1000 * n + 10}])
            self.assertEqual(list(self.lines(engine)), [{"step": 1000 * n + i, "wrong": []} for i in range(1, 11)])

    def test_of_the_other_gpu(self):
        """By peer access: an engine on GPU 1 takes the weights of a trainer on GPU 0."""
        uuid = f"GPU-{self.torch.cuda.get_device_properties(0).uuid}"
        engine = self.peer("work", device=1, publisher=uuid)
        trainer = self.peer("train", count=10)
        self.assertEqual(list(self.lines(trainer)), [{"trained": 10}])
        self.assertEqual(list(self.lines(engine)), [{"step": n, "wrong": []} for n in range(1, 11)])


if __name__ == "__main__":
    sys.exit(gpu.main())
