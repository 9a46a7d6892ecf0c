"""Hot swap of models: gpufd.torch.follow, Loaded.apply, and guards against writes, on the software driver."""

import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import unittest

from keepers import DEADLINE, Keeper, KeeperTest, wait_for  # first: it says where the package is

import common
import forks

try:
    import torch
except ImportError:
    torch = None

import gpufd

if torch is not None:
    import gpufd.torch
    from gpufd.memory.tensor import bytes_over


def setUpModule():
    if torch is None:
        common.missing("python", f"{sys.executable} has no PyTorch")
    forks.begin("gpufd.torch")


def model(value=0.0):
    """A model with tied weights, a buffer that is kept and one that is not."""
    m = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4))
    m[1].weight = m[0].weight
    m.register_buffer("scale", torch.full((2,), value))
    m.register_buffer("cache", torch.ones(2), persistent=False)
    with torch.no_grad():
        for p in m.parameters():
            p.fill_(value)
    return m


class Swapping(KeeperTest):
    def setUp(self):
        super().setUp()
        self.kept = self.keeper()
        self.socket = self.kept.socket
        gc.disable()  # nothing of this may need it
        self.addCleanup(gc.enable)

    def put(self, value, name="m", **options):
        return gpufd.torch.put(name, model(value).state_dict(), socket=self.socket, **options).version

    def holders(self, name="m"):
        with gpufd.Client(self.socket) as client:
            return len(client.stat(name).holders)

    def old(self, name="m"):
        """The versions that the keeper keeps for readers alone, with how many those are."""
        with gpufd.Client(self.socket) as client:
            return {v["version"]: len(v.get("holders") or ()) for v in client.stat(name).raw.get("retired") or ()}

    def follow(self, name="m", **options):
        versions = gpufd.torch.follow(name, socket=self.socket, within=DEADLINE, **options)
        self.addCleanup(versions.close)
        return versions

    def values(self, m):
        return {float(t.flatten()[0]) for t in m.state_dict().values()}


class Swap(Swapping):
    def test_version_after_version(self):
        """The new tensors are beside the old ones, which end with their last view."""
        self.put(1.0, labels={"step": "1"}, metadata={"format": "pt"})
        m, versions = model(), self.follow()
        version = next(versions)
        self.assertEqual((version.name, version.version, version.labels, version.part), ("m", 1, {"step": "1"}, 0))
        self.assertEqual(version.metadata, {"format": "pt"})
        self.assertEqual((list(version), len(version)), (list(m.state_dict()), 4))
        self.assertEqual(version["scale"].tolist(), [1.0, 1.0])
        cache = m.cache
        version.swap(m)
        self.assertEqual(self.values(m), {1.0})
        self.assertIs(m[0].weight, m[1].weight)
        self.assertIs(m.cache, cache)
        version.tensors.check(m)
        self.assertFalse(version.wait_superseded(0))
        self.assertFalse(any(p.requires_grad for p in m.parameters()))
        reader = m[1].bias[1:3]

        self.put(2.0)
        self.assertTrue(version.wait_superseded(DEADLINE))
        self.assertTrue(version.superseded)
        old, version = version.attachment, next(versions)
        self.assertEqual((version.version, version["0.weight"][0, 0].item()), (2, 2.0))
        self.assertEqual(self.values(m), {1.0}, "it is beside the old one")
        version.swap(m)
        self.assertEqual((self.values(m), reader.tolist()), ({2.0}, [1.0, 1.0]))
        old = old.memory  # the attachment is the reader's alone
        self.assertFalse(old.closed)
        del reader
        self.assertTrue(old.closed, "the last view is gone")

    def test_the_keeper_sees_old_leases_end(self):
        self.put(1.0)
        m, versions = model(), self.follow()
        next(versions).swap(m)
        wait_for(lambda: self.holders() == 1, "the lease")
        self.put(2.0)
        version = next(versions)
        wait_for(lambda: (self.holders(), self.old()) == (1, {1: 1}), "the leases of both versions")
        reader = m.scale
        version.swap(m)
        self.assertEqual(self.old(), {1: 1}, "what reads the old version has the lease")
        del reader
        wait_for(lambda: (self.holders(), self.old()) == (1, {}), "the end of the first version's lease")

    def test_what_does_not_fit_changes_nothing(self):
        self.put(1.0)
        m, versions = model(), self.follow()
        next(versions).swap(m)
        before = {name: t.data_ptr() for name, t in m.state_dict().items()}
        good = {name: t.clone() for name, t in m.state_dict().items()}
        for change, text in (
            ({"1.bias": None}, "it lacks tensors of the model: '1.bias'"),
            ({"more": torch.ones(1)}, "it has tensors that the model lacks: 'more'"),
            ({"1.bias": torch.ones(5)}, r"'1.bias': shape \[5\], and \[4\] in the model"),
            ({"1.bias": torch.ones(4).half()}, "'1.bias': torch.float16, and torch.float32 in the model"),
            ({"1.weight": torch.ones(4, 4) * 7}, "'0.weight': the model ties it to '1.weight'"),
            ({"0.weight": None, "1.weight": None}, "it lacks tensors of the model: '0.weight'"),
        ):
            with self.subTest(text):
                state = {name: t.clone() for name, t in {**good, **change}.items() if t is not None}
                gpufd.torch.put("m", state, socket=self.socket)
                version = next(versions)
                with common.raises(self, gpufd.MismatchError, "tensors", text):
                    version.swap(m)
                self.assertEqual({name: t.data_ptr() for name, t in m.state_dict().items()}, before)
                version.refuse("it does not fit")
                self.assertRaises(gpufd.ClosedError, lambda: version.tensors)
        self.put(2.0)
        next(versions).swap(m)
        self.assertEqual(self.values(m), {2.0})

    def test_an_assignment_that_fails_is_undone(self):
        class Odd(torch.nn.Module):
            def __setattr__(self, name, value):
                if name == "weight" and getattr(self, "closed", False) and not value.any():
                    raise RuntimeError("not this one")
                super().__setattr__(name, value)

        m = torch.nn.Sequential(torch.nn.Linear(2, 2), Odd())
        m[1].weight = torch.nn.Parameter(torch.ones(2))
        m[1].closed = True
        before = m[0].weight
        state = gpufd.torch.Loaded({"0.weight": torch.zeros(2, 2), "0.bias": torch.zeros(2), "1.weight": torch.zeros(2)}, gpufd.Kept("m", 1, 0, 1, {}, "", None))
        with self.assertRaisesRegex(RuntimeError, "not this one"):
            state.apply(m)
        self.assertIs(m[0].weight, before)
        self.assertEqual(m[1].weight.tolist(), [1, 1])

    def test_tied_weights_by_one_name(self):
        state = model(3.0).state_dict()
        del state["1.weight"]
        gpufd.torch.put("m", state, socket=self.socket)
        m = model()
        gpufd.torch.load("m", socket=self.socket).apply(m)
        self.assertIs(m[0].weight, m[1].weight)
        self.assertEqual(self.values(m), {3.0})

    def test_more_than_the_model_has(self):
        gpufd.torch.put("m", {**model(3.0).state_dict(), "head": torch.ones(1)}, socket=self.socket)
        m, state = model(), gpufd.torch.load("m", socket=self.socket)
        state.apply(m, strict=False)
        self.assertEqual(self.values(m), {3.0})

    def test_models_without_memory_and_parameters_with_attributes(self):
        class Marked(torch.nn.Parameter):
            pass

        self.put(3.0)
        with torch.no_grad():
            m = model().to("meta")
        m[0].weight = m[1].weight = Marked(m[0].weight)
        m[0].weight.loader = "a function of the engine's"
        gpufd.torch.load("m", socket=self.socket).apply(m)
        self.assertEqual(self.values(m), {3.0})
        self.assertEqual((type(m[0].weight), m[1].weight.loader), (Marked, "a function of the engine's"))

    def test_compiled_modules(self):
        """torch.compile's have the model within."""
        compiled = torch.nn.Module()
        compiled._orig_mod = model()
        self.put(3.0)
        gpufd.torch.load("m", socket=self.socket).apply(compiled)
        self.assertEqual(self.values(compiled._orig_mod), {3.0})

    def test_recurrent_modules(self):
        """They have their parameters twice."""
        a, b = torch.nn.LSTM(2, 3), torch.nn.LSTM(2, 3)
        x = torch.ones(1, 1, 2)
        want = a(x)[0]
        gpufd.torch.put("m", a.state_dict(), socket=self.socket)
        gpufd.torch.load("m", socket=self.socket).apply(b)
        self.assertTrue(torch.equal(b(x)[0], want))

    def test_one_thread_serves_and_one_swaps(self):
        self.put(1.0)
        m, turn, seen, end = model(), threading.Lock(), set(), threading.Event()
        fails = []

        def follow():
            try:
                for version in self.follow():
                    with turn:
                        version.swap(m)
                    if version.version == 5:
                        break
            except BaseException as e:
                fails.append(e)
            end.set()

        thread = threading.Thread(target=follow)
        thread.start()
        value, known = 1.0, 0.0
        while not end.is_set():
            with turn:
                now = self.values(m)
            self.assertEqual(len(now), 1, "no batch of two versions")
            seen |= now
            if now != {known} and now != {0.0} and value < 5:
                (known,) = now
                value += 1
                self.put(value)
        thread.join()
        self.assertEqual((fails, self.values(m)), ([], {5.0}))
        self.assertLessEqual({1.0, 2.0, 3.0, 4.0}, seen)

    def test_a_version_outlives_the_loop_that_gave_it(self):
        """It may wait in a queue for the thread that serves, and ends with its last reference."""
        self.put(1.0)
        versions = self.follow()
        version = next(versions)
        versions.close()
        m = model()
        version.swap(m)
        self.assertEqual(self.values(m), {1.0})
        memory = version.attachment.memory
        del version, m
        gc.collect()
        self.assertTrue(memory.closed)

    def test_a_refused_version_is_not_given_again(self):
        self.put(1.0)
        m, versions = model(), self.follow()
        next(versions).swap(m)
        self.put(float("nan"))
        version = next(versions)
        self.assertTrue(version["scale"].isnan().any())
        memory = version.attachment.memory
        version.refuse(ValueError("it has NaN"))
        version.refuse("again")
        self.assertTrue(memory.closed)
        self.assertIn("refused", repr(version))
        threading.Timer(0.2, self.put, (3.0,)).start()
        version = next(versions)
        self.assertEqual(version.version, 3)
        self.assertEqual(self.values(m), {1.0})
        with gpufd.Client(self.socket) as client:
            self.assertEqual([p.state for p in client.stat("m").parts], ["ok"])
            version.refuse("it is slow", quarantine=True)
            self.assertEqual([(p.state, p.reason) for p in client.stat("m").parts], [("quarantined", "it is slow")])

    def test_a_version_is_refused_by_another_thread_than_that_of_follow(self):
        """Follow waits over the same connection: the end that the verdict is answered with is not a lost keeper to it."""
        self.put(1.0)
        got = queue.SimpleQueue()

        def run():
            for version in gpufd.torch.follow("m", socket=self.socket, within=DEADLINE):
                if got.put(version) or version.labels.get("last"):
                    return

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        began = time.monotonic()
        for i in range(30):
            version = got.get(timeout=DEADLINE)
            wait_for(lambda: version.attachment._lease.bells, "follow's wait")  # noqa: B023
            version.refuse("as a test")
            self.put(2.0, labels={"last": "yes"} if i == 29 else {})
            del version
        got.get(timeout=DEADLINE)
        thread.join()
        self.assertLess(time.monotonic() - began, 25, "a refusal was answered by nobody")

    def test_what_holds_no_tensors_is_refused_in_the_body(self):
        gpufd.put("m", b"x", socket=self.socket)
        versions = self.follow()
        version = next(versions)
        with self.assertRaises(gpufd.FormatError) as caught:
            version.swap(model())
        version.refuse(caught.exception)
        threading.Timer(0.1, self.put, (3.0,)).start()
        self.assertEqual(next(versions)["scale"].tolist(), [3.0, 3.0])

    def test_the_keeper_restarts(self):
        self.put(1.0)
        m, versions = model(), self.follow()
        version = next(versions)
        version.swap(m)
        self.kept.kill()
        self.assertFalse(version.wait_superseded(0.01))
        self.assertEqual(self.values(m), {1.0})
        again = Keeper(self.directory)
        self.addCleanup(again.close)
        wait_for(lambda: not version.attachment.done and self.holders() == 1, "another lease")
        self.put(2.0)
        version = next(versions)
        version.swap(m)
        self.assertEqual((version.version, self.values(m)), (2, {2.0}))

    def test_the_death_of_another_that_follows(self):
        self.put(1.0)
        text = f"""import gpufd.torch
for version in gpufd.torch.follow("m", socket={self.socket!r}):
    print("has", version.version, version["scale"][0].item(), flush=True)
"""
        other = self.python(text, waits_for="has 1")
        m, versions = model(), self.follow()
        next(versions).swap(m)
        wait_for(lambda: self.holders() == 2, "both leases")
        other.send_signal(signal.SIGKILL)
        other.wait()
        wait_for(lambda: self.holders() == 1, "the end of the other's lease")
        self.put(2.0)
        version = next(versions)
        version.swap(m)
        self.assertEqual((version.version, self.values(m)), (2, {2.0}))

    def test_go_back(self):
        self.put(1.0)
        m, versions = model(), self.follow()
        first = next(versions)
        first.swap(m)
        self.put(2.0)
        next(versions).swap(m)
        first.swap(m)
        self.assertEqual(self.values(m), {1.0})

    def test_the_loop_ends_and_the_model_goes_on(self):
        self.put(1.0)
        m = model()
        for version in gpufd.torch.follow("m", socket=self.socket):
            version.swap(m)
            break
        memory = version.attachment.memory
        del version
        self.assertEqual(self.values(m), {1.0})
        self.assertFalse(memory.closed)
        del m
        gc.collect()  # a module is a cycle
        self.assertTrue(memory.closed)

    def test_a_version_of_get(self):
        self.put(1.0)
        with gpufd.get("m", socket=self.socket) as version:
            self.assertFalse(version.superseded)
            self.assertFalse(version.wait_superseded(0.01))
            self.put(2.0)
            self.assertTrue(version.wait_superseded(DEADLINE))
            self.assertTrue(version.superseded)


CHILD = """import gpufd.torch, torch
from test_swap import model
m = model().train(TRAIN)
m.norm = torch.nn.BatchNorm1d(4)
state = gpufd.torch.load("m", socket=SOCKET, debug=DEBUG)
state.apply(m)
def write():
    WRITE
if DEBUG:
    try:
        write()
    except gpufd.ReadOnlyError as e:
        print("refused:", e)
else:
    write()
print("lives")
"""


class Guards(Swapping):
    def setUp(self):
        super().setUp()
        m = model(1.0)
        m.norm = torch.nn.BatchNorm1d(4)
        gpufd.torch.put("m", m.state_dict(), socket=self.socket)

    def child(self, write, debug=True, train=False, popen=subprocess.Popen):
        text = CHILD.replace("TRAIN", str(train)).replace("SOCKET", repr(self.socket)).replace("DEBUG", str(debug)).replace("WRITE", write)
        head = f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); import common, gpufd\n"
        return forks.run([sys.executable, "-B", "-c", head + text], DEADLINE, popen)

    def test_without_a_guard_a_write_kills(self):
        for write in ("m[1].bias.add_(1)", "torch.add(m.scale, 1, out=m.scale)", "m.norm.train()(torch.ones(3, 4))"):
            done = self.child(write, debug=False, popen=forks.Popen)
            self.assertIn(done.returncode, (-signal.SIGSEGV, -signal.SIGBUS), (write, done.stdout, done.stderr))

    def test_a_child_ends_in_order(self):
        done = self.child("m[1].bias.add_(1)")
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1:], done.stderr), (0, ["lives"], ""))

    def guarded(self):
        m = model()
        m.norm = torch.nn.BatchNorm1d(4)
        gpufd.torch.load("m", socket=self.socket).apply(m)
        return m

    def test_what_is_refused(self):
        m = self.guarded()
        twin = m[1].bias.detach()
        for write, name in (
            (lambda: m[1].bias.add_(1), "1.bias"),
            (lambda: m[1].bias[2:].mul_(2), "1.bias"),
            (lambda: twin.view(2, 2).t().zero_(), "1.bias"),
            (lambda: torch.add(m.scale, 1, out=m.scale), "scale"),
            (lambda: m.scale.copy_(torch.ones(2)), "scale"),
            (lambda: m.scale.__setitem__(0, 1.0), "scale"),
            (lambda: torch._foreach_add_([torch.ones(1), m.scale], 1.0), "scale"),
            (lambda: torch.nn.init.zeros_(m[0].weight), "weight"),
            (lambda: m.norm.train()(torch.ones(3, 4)), "norm.num_batches_tracked"),
            (lambda: torch.nn.functional.batch_norm(torch.ones(3, 4), m.norm.running_mean, torch.ones(4), training=True), "norm.running_mean"),
            (lambda: torch.nn.functional.batch_norm(torch.ones(3, 4), torch.ones(4), m.norm.running_var, training=True), "norm.running_var"),
        ):
            for way in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                with self.subTest(name, way=way), gpufd.torch.WriteGuard(), way():
                    with common.raises(self, gpufd.ReadOnlyError, "read-only", f"would write .*{name}, which is kept memory, mapped read-only"):
                        write()

    def test_optimisers(self):
        m = self.guarded()
        p = m[1].bias
        for foreach in (False, True):
            for kind in (torch.optim.SGD, torch.optim.Adam):
                with self.subTest(kind=kind, foreach=foreach), gpufd.torch.WriteGuard():
                    p.grad = torch.ones(4)
                    with self.assertRaisesRegex(gpufd.ReadOnlyError, "1.bias"):
                        kind([p], lr=0.1, foreach=foreach).step()
        self.assertEqual(p.tolist(), [1.0] * 4)

    def test_what_is_not_refused(self):
        m = self.guarded().eval()
        with gpufd.torch.WriteGuard(), torch.no_grad():
            y = m.norm(m[1](m[0](torch.ones(3, 4))))
            y.add_(1)
            m.scale.clone().zero_()
            m.scale.unsqueeze(0).squeeze_(0)
            m.cache.zero_()
            for t in m.state_dict().values():
                t.numel() and t.float().sum()
            self.assertEqual(m.scale.numpy().tolist(), [1.0, 1.0])
        private = gpufd.allocate(1 << 20)
        self.addCleanup(private.close)
        with gpufd.torch.WriteGuard():
            torch.from_dlpack(private.view("F32")).zero_()

    def test_other_read_only_memory(self):
        with gpufd.get("m", socket=self.socket) as version:
            t = bytes_over(version[0].memory, 0, 16, "t", version[0])
            with gpufd.torch.WriteGuard(), self.assertRaisesRegex(gpufd.ReadOnlyError, "aten.zero_.default would write memory that is mapped read-only"):
                t.zero_()
            del t

    def test_a_model_that_was_put(self):
        m = model(2.0)
        gpufd.torch.put("other", m, socket=self.socket)
        with gpufd.torch.WriteGuard(), torch.no_grad(), self.assertRaisesRegex(gpufd.ReadOnlyError, "1.bias"):
            m[1].bias.add_(1)

    def test_follow_guards_its_thread(self):
        caught = []

        def follow():
            version = next(self.follow(debug=True))
            try:
                version["1.bias"].add_(1)
            except gpufd.ReadOnlyError as e:
                caught.append(str(e))

        thread = threading.Thread(target=follow)
        thread.start()
        thread.join()
        self.assertEqual(len(caught), 1)

    def test_nothing_requires_a_gradient(self):
        state = gpufd.torch.load("m", socket=self.socket)
        self.assertFalse(any(t.requires_grad for t in state.values()))
        m = self.guarded()
        self.assertFalse(any(p.requires_grad for p in m.parameters()))
        with self.assertRaisesRegex(RuntimeError, "does not require grad"):
            m[1](torch.ones(4)).sum().backward()


if __name__ == "__main__":
    unittest.main()
