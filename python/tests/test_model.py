"""Models whose weights keep their address: gpufd.torch.follow(at=) and gpufd.torch.Model, on the software driver."""

import concurrent.futures
import gc
import os
import unittest
from unittest import mock

from test_swap import Swapping, model, setUpModule  # first: it says where the package is  # noqa: F401

import common
import gpufd
from gpufd.memory import mapped

try:
    import torch

    import gpufd.torch
except ImportError:
    torch = None

SIZE = 16 << 20  # of a reservation


def addresses(m):
    return {name: t.data_ptr() for name, t in m.state_dict().items()}


class Graph:
    """Captured reads of a module's tensors, as a CUDA graph has them: it knows addresses only."""

    def __init__(self, m):
        import ctypes

        self.words = [ctypes.c_float.from_address(t.data_ptr()) for t in m.state_dict().values()]

    def replay(self):
        return {word.value for word in self.words}


def mappings():
    with open("/proc/self/maps") as f:
        return sum(1 for _ in f)


class OneAddress(Swapping):
    """follow(at=)."""

    def setUp(self):
        super().setUp()
        self.at = gpufd.reserve(SIZE)
        self.addCleanup(lambda: self.at.close())

    def test_version_after_version(self):
        self.put(1.0)
        m, versions = model(), self.follow(at=self.at)
        next(versions).swap(m)
        before, graph = addresses(m), Graph(m)
        self.assertTrue(all(self.at.ptr <= a < self.at.ptr + SIZE for a in before.values()))
        for value in (2.0, 3.0, 4.0):
            self.put(value)
            version = next(versions)
            self.assertEqual(version["scale"].tolist(), [value, value])
            self.assertEqual((self.values(m), graph.replay()), ({value - 1}, {value - 1}), "it is beside the old one")
            version.swap(m)
            self.assertEqual((addresses(m), self.values(m), graph.replay()), (before, {value}, {value}))
            self.assertEqual(version["scale"].data_ptr(), m.scale.data_ptr())
            version.swap(m)
            version.tensors.check(m)
        self.assertEqual(version.version, 4)
        common.wait_for(lambda: (self.holders(), self.old()) == (1, {}), "the end of the old leases")

    def test_what_is_not_there_to_stay(self):
        """Nothing grows."""
        self.put(1.0)
        m, versions = model(), self.follow(at=self.at)

        def once():
            self.put(2.0)
            next(versions).swap(m)

        for _ in range(3):
            once()
        before = mappings(), len(common.settled_fds()), mapped.imports_of(os.getpid())
        for _ in range(20):
            once()
        self.assertEqual((mappings(), len(common.settled_fds()), mapped.imports_of(os.getpid())), before)

    def test_views_of_an_old_version_are_of_the_new_one_and_keep_it(self):
        self.put(1.0)
        m, versions = model(), self.follow(at=self.at)
        next(versions).swap(m)
        view = m[1].bias[1:3]
        for value in (2.0, 3.0):
            self.put(value)
            next(versions).swap(m)
            self.assertEqual(view.tolist(), [value, value])
        versions.close()
        here = mapped.imports_of(os.getpid())
        del m, versions
        gc.collect()
        self.assertEqual((view.tolist(), mapped.imports_of(os.getpid())), ([3.0, 3.0], here))
        del view
        self.assertEqual(mapped.imports_of(os.getpid()), here - 1)

    def test_another_layout(self):
        """It names the first tensor, and changes nothing. A version that fits comes next."""
        self.put(1.0)
        m, versions = model(), self.follow(at=self.at)
        next(versions).swap(m)
        before = addresses(m)
        state = {name: t.clone() for name, t in reversed(model(2.0).state_dict().items())}
        gpufd.torch.put("m", state, socket=self.socket)
        version = next(versions)
        with common.raises(self, gpufd.MismatchError, "layout", r"version 2 of m has another layout than version 1, .*: tensor '0.weight' is at byte \d+, and was at \d+"):
            version.swap(m)
        self.assertEqual((addresses(m), self.values(m)), (before, {1.0}))
        version.refuse("it lies elsewhere")
        self.put(3.0)
        next(versions).swap(m)
        self.assertEqual((addresses(m), self.values(m)), (before, {3.0}))

    def test_the_first_version_does_not_fit_the_model(self):
        gpufd.torch.put("m", {"0.weight": torch.ones(1)}, socket=self.socket)
        m, versions = model(), self.follow(at=self.at)
        version = next(versions)
        with common.raises(self, gpufd.MismatchError, "tensors"):
            version.swap(m)
        version.refuse("it does not fit")
        self.assertRaises(gpufd.ClosedError, version.swap, m)
        self.put(2.0)
        next(versions).swap(m)
        self.assertEqual(self.values(m), {2.0})

    def test_a_model_that_the_next_version_does_not_fit(self):
        self.put(1.0)
        m, versions = model(), self.follow(at=self.at)
        next(versions).swap(m)
        graph = Graph(m)
        self.put(2.0)
        version = next(versions)
        m.more = torch.nn.Parameter(torch.ones(1))
        with common.raises(self, gpufd.MismatchError, "tensors", "'more'"):
            version.swap(m)
        self.assertEqual(graph.replay(), {1.0}, "it was not moved")
        del m.more
        version.swap(m)
        self.assertEqual(graph.replay(), {2.0})

    def test_a_check_that_leaves_a_tensor(self):
        self.put(1.0)
        m, versions = model(), self.follow(at=self.at)
        next(versions).swap(m)
        self.put(2.0)
        version = next(versions)
        left = version["scale"]
        with common.raises(self, gpufd.InUseError, "in-use", "tensor"):
            version.swap(m)
        self.assertEqual((self.values(m), left.tolist()), ({1.0}, [2.0, 2.0]))
        del left
        version.swap(m)
        self.assertEqual(self.values(m), {2.0})

    def test_what_does_not_fit_into_the_reservation(self):
        small = gpufd.reserve(1)
        self.addCleanup(lambda: small.close())
        self.put(1.0)
        m, versions = model(), self.follow(at=small)
        next(versions).swap(m)
        self.put(2.0, chunk=8 << 20)
        version = next(versions)
        with common.raises(self, gpufd.MismatchError, "too-large"):
            version.swap(m)
        self.assertEqual(self.values(m), {1.0})
        del version

    def test_the_old_version_is_detached(self):
        """The new one has its address, and the old lease ends."""
        self.put(1.0)
        m, versions = model(), self.follow(at=self.at)
        version = next(versions)
        version.swap(m)
        before, graph = addresses(m), Graph(m)
        for value in (2.0, 3.0):
            version.attachment.detach()
            self.put(value)
            version = next(versions)
            version.swap(m)
            self.assertEqual((addresses(m), self.values(m), graph.replay()), (before, {value}, {value}))
        common.wait_for(lambda: (self.holders(), self.old()) == (1, {}), "the end of the old leases")

    def test_at_is_a_reservation(self):
        with common.raises(self, gpufd.UsageError, "usage", "at is a gpufd.Reservation"):
            gpufd.torch.follow("m", socket=self.socket, at=5)


class Sleeping(Swapping):
    """gpufd.torch.Model."""

    def setUp(self):
        super().setUp()
        self.put(1.0)

    def model(self, m=None, name="m", **options):
        made = gpufd.torch.Model(model() if m is None else m, name, socket=self.socket, **options)
        self.addCleanup(made.close)
        return made

    def newer(self, m, value, **options):
        """Keep a newer version than the model's, and wait until it has heard of that."""
        self.put(value, **options)
        common.wait_for(lambda: m.superseded, "the news")

    def lives(self, m, value, graph=None):
        """The module answers with a version's weights, and a graph reads them."""
        self.assertEqual(self.values(m.module), {value})
        self.assertEqual(m(torch.ones(1, 4)).tolist(), model(value)(torch.ones(1, 4)).tolist())
        if graph:
            self.assertEqual(graph.replay(), {value})

    def test_sleep_and_wake(self):
        m = self.model()
        before, graph, here = addresses(m.module), Graph(m.module), mapped.imports_of(os.getpid())
        tied = m.module[0].weight
        for _ in range(3):
            self.lives(m, 1.0, graph)
            self.assertIs(m.sleep(), True)
            self.assertEqual((m.asleep, m.version, mapped.imports_of(os.getpid())), (True, 1, here - 1))
            self.assertIs(m.sleep(keep=60), True)
            for call in (m, m.module, m.module[1], m.module[0]):
                with common.raises(self, gpufd.ClosedError, "detached", r"the model sleeps: wake\(\) first"):
                    call(torch.ones(1, 4))
            self.assertEqual((m.wake(), m.asleep), (1, False))
            self.assertEqual(m.wake(), 1)
        self.lives(m, 1.0, graph)
        self.assertEqual((addresses(m.module), m.module[0].weight is tied, m.module[1].weight is tied), (before, True, True))
        self.assertEqual(m.module.cache.tolist(), [1.0, 1.0])

    def test_threads_that_disagree(self):
        m = self.model()
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            for _ in range(10):
                for done in [threads.submit(m.sleep if i % 2 else m.wake) for i in range(40)]:
                    done.result()
        m.wake()
        self.lives(m, 1.0)

    def test_the_newest_version_is_there_after_the_sleep(self):
        m = self.model()
        before, graph = addresses(m.module), Graph(m.module)
        for value in (2.0, 3.0, 4.0):
            m.sleep()
            self.newer(m, value)
            self.assertEqual(m.wake(), int(value))
            self.lives(m, value, graph)
        self.assertEqual(addresses(m.module), before)
        common.wait_for(lambda: (self.holders(), self.old()) == (1, {}), "the end of the old leases")

    def test_the_lease_keeps_the_version_for_a_sleeper(self):
        m = self.model()
        m.sleep()
        self.newer(m, 2.0)
        self.assertEqual(self.old(), {1: 1})
        self.assertEqual(m.wake(newest=False), 1)
        self.lives(m, 1.0)
        m.sleep()
        common.wait_for(lambda: m.superseded, "the news, which follow the lease")
        self.assertEqual(m.wake(), 2)
        self.lives(m, 2.0)

    def test_another_layout_lets_it_sleep_on(self):
        m = self.model()
        state = {name: t.clone() for name, t in reversed(model(2.0).state_dict().items())}
        m.sleep()
        gpufd.torch.put("m", state, socket=self.socket)
        common.wait_for(lambda: m.superseded, "the news")
        with common.raises(self, gpufd.MismatchError, "layout", "tensor '0.weight' is at byte"):
            m.wake()
        self.assertTrue(m.asleep)
        with self.assertRaises(gpufd.ClosedError):
            m(torch.ones(1, 4))
        self.assertEqual(m.wake(newest=False), 1)
        self.lives(m, 1.0)
        m.sleep()
        self.newer(m, 3.0)
        self.assertEqual(m.wake(), 3)
        self.lives(m, 3.0)

    def test_a_writer_lies_about_the_layout(self):
        """The tensors of the model would be behind the end of the memory."""
        weights, kept = {"weight": torch.ones(1, 3 << 20), "bias": torch.ones(1)}, gpufd.Client.ask
        gpufd.torch.put("large", weights, socket=self.socket)
        m = self.model(torch.nn.utils.skip_init(torch.nn.Linear, 3 << 20, 1), "large")
        layout = m._version.data.layout

        def ask(client, message, fds=()):
            return kept(client, {**message, "layout": layout} if message["op"] == "deliver" else message, fds)

        with mock.patch.object(gpufd.Client, "ask", ask):
            gpufd.torch.put("large", {"weight": torch.ones(1, 4), "bias": torch.ones(1)}, socket=self.socket)
        common.wait_for(lambda: m.superseded, "the news")
        for newer in (m.swap, lambda: m.sleep() and m.wake()):
            with common.raises(self, gpufd.MismatchError, "layout", "tensor '(bias|weight)' (is at|has the shape)"):
                newer()
        self.assertEqual((m.asleep, m.wake(newest=False)), (True, 1))

    def test_swap(self):
        m = self.model()
        before, graph, seen = addresses(m.module), Graph(m.module), []
        self.assertEqual(m.swap(), 1)
        self.newer(m, 2.0)
        self.assertEqual(m.swap(lambda version: seen.append((version.version, version["scale"].tolist(), self.values(m.module)))), 2)
        self.assertEqual(seen, [(2, [2.0, 2.0], {1.0})])
        self.lives(m, 2.0, graph)
        self.assertEqual(addresses(m.module), before)
        m.sleep()
        with common.raises(self, gpufd.ClosedError, "detached"):
            m.swap()
        self.newer(m, 3.0)
        m.wake()
        self.lives(m, 3.0, graph)

    def test_a_version_that_a_check_refuses(self):
        m = self.model()
        self.newer(m, 2.0)
        seen = []

        def check(version):
            seen.append(version)
            raise ValueError("it has NaN")

        with self.assertRaisesRegex(ValueError, "NaN"):
            m.swap(check)
        self.assertIn("refused", repr(seen[0]))
        self.assertTrue(seen[0].attachment.memory.closed)
        self.lives(m, 1.0)
        self.assertEqual(m.swap(check), 1, "it is not tried again")
        self.newer(m, 3.0)
        self.assertEqual(m.swap(), 3)
        self.lives(m, 3.0)

    def test_what_is_not_the_versions_fault(self):
        """The keeper does not hear of it, and the next call tries the version again."""
        m = self.model()
        self.newer(m, 2.0)
        told, left, report = [], [], gpufd.Attachment.report
        patched = mock.patch.object(gpufd.Attachment, "report", lambda attachment, fault="": told.append(fault) or report(attachment, fault))
        patched.start()
        self.addCleanup(patched.stop)

        def interrupt(version):
            raise KeyboardInterrupt

        with common.raises(self, gpufd.InUseError, "in-use", "tensor"):
            m.swap(lambda version: left.append(version["scale"]))
        self.lives(m, 1.0)
        left.clear()
        self.assertRaises(KeyboardInterrupt, m.swap, interrupt)
        with mock.patch.object(gpufd.memory.base.Memory, "move", side_effect=gpufd.DriverError("cuMemMap", 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")):
            self.assertRaises(gpufd.DriverError, m.swap)
        self.lives(m, 1.0)
        self.assertEqual(told, [])
        self.assertEqual(m.swap(), 2)
        self.lives(m, 2.0)
        self.newer(m, 3.0)
        self.assertRaises(ZeroDivisionError, m.swap, lambda version: 1 / 0)
        self.assertEqual((told, m.swap()), (["division by zero"], 2))

    def test_a_swap_that_is_interrupted(self):
        """When the new version is mapped, the model has it."""
        m = self.model()
        before, graph = addresses(m.module), Graph(m.module)
        for value, where in ((2.0, (gpufd.torch.Loaded, "apply")), (3.0, (gpufd.torch.address, "_keep_for_views"))):
            with self.subTest(where[1]):
                self.newer(m, value)
                with mock.patch.object(*where, side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                    m.swap()
                self.assertEqual(m.version, int(value))
                self.assertEqual(m.swap(), int(value))
                self.lives(m, value, graph)
                m.sleep()
                self.assertEqual(m.wake(), int(value))
                self.lives(m, value, graph)
        self.assertEqual(addresses(m.module), before)
        common.wait_for(lambda: (self.holders(), self.old()) == (1, {}), "the end of the old leases")

    def test_a_swap_that_is_interrupted_when_the_old_version_has_moved(self):
        m = self.model()
        before, graph, move = addresses(m.module), Graph(m.module), gpufd.memory.base.Memory.move
        self.newer(m, 2.0)

        def once(memory, *args, **options):
            patched.stop()
            move(memory, *args, **options)
            raise KeyboardInterrupt

        patched = mock.patch.object(gpufd.memory.base.Memory, "move", once)
        patched.start()
        self.assertRaises(KeyboardInterrupt, m.swap)
        self.lives(m, 1.0, graph)
        self.assertEqual(m.swap(), 2)
        self.lives(m, 2.0, graph)
        self.assertEqual(addresses(m.module), before)

    def test_a_wake_that_is_interrupted(self):
        m = self.model()
        handle = torch.utils.hooks.RemovableHandle
        for value, where in ((2.0, (handle, "remove")), (3.0, (gpufd.torch.Model, "_of"))):
            with self.subTest(where[1]):
                m.sleep()
                self.newer(m, value)
                with mock.patch.object(*where, side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                    m.wake()
                self.assertEqual(m.wake(), int(value))
                self.lives(m, value)
        self.newer(m, 4.0)
        self.assertEqual(m.swap(), 4)
        self.lives(m, 4.0)

    def test_a_sleep_that_is_interrupted(self):
        m = self.model()
        with mock.patch.object(torch.nn.Linear, "register_forward_pre_hook", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            m.sleep()
        self.assertFalse(m.asleep)
        self.lives(m, 1.0)

    def test_the_name_is_removed(self):
        """The memory is good: nothing is newer."""
        m = self.model()
        with gpufd.Client(self.socket) as client:
            client.remove("m")
        common.wait_for(lambda: m.superseded or m._version.attachment.done, "the news")
        self.assertEqual(m.swap(), 1)
        self.lives(m, 1.0)
        self.assertEqual(self.put(2.0), 2)
        self.assertEqual(m.swap(), 2)
        self.lives(m, 2.0)

    def test_the_name_is_drained(self):
        m = self.model()
        m.sleep()
        with gpufd.Client(self.socket) as client:
            client.drain("m")
            for newest in (True, False):
                with common.raises(self, gpufd.KeeperError, "draining", "m, version 1, is draining"):
                    m.wake(newest=newest)
            self.assertTrue(m.asleep)
            client.drain("m", on=False)
        self.assertEqual(m.wake(), 1)
        self.lives(m, 1.0)

    def test_chunks_that_are_larger_than_the_weights(self):
        m = self.model()
        before = addresses(m.module)
        m.sleep()
        self.newer(m, 2.0, chunk=8 << 20)
        self.assertEqual(m.wake(), 2)
        self.lives(m, 2.0)
        self.newer(m, 3.0, chunk=16 << 20)
        self.assertEqual(m.swap(), 3)
        self.lives(m, 3.0)
        self.assertEqual(addresses(m.module), before)

    def test_in_a_forked_child(self):
        m = self.model()
        m.sleep()
        pid = os.fork()
        if not pid:
            try:
                for call in (m.wake, lambda: m.wake(newest=False), m.sleep, lambda: m.superseded):
                    common.error_of(self, gpufd.ClosedError, "forked", call)
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual((os.waitpid(pid, 0)[1], m.wake()), (0, 1))
        self.lives(m, 1.0)

    def test_what_does_not_fit_the_module(self):
        with common.raises(self, gpufd.MismatchError, "tensors"):
            self.model(torch.nn.Linear(2, 2))
        gc.collect()
        common.wait_for(lambda: self.holders() == 0, "the end of the lease")
        with self.assertRaises(gpufd.NotFoundError):
            self.model(name="nobody")
        with self.assertRaises(gpufd.UsageError):
            self.model("no module")

    def test_close(self):
        for asleep in (False, True):
            with self.subTest(asleep=asleep), self.model() as m:
                here = mapped.imports_of(os.getpid())
                if asleep:
                    m.sleep()
                m.close()
                m.close()
                self.assertTrue(all(t.is_meta for t in m.module.state_dict().values()))
                self.assertIs(m.module[0].weight, m.module[1].weight)
                self.assertEqual((m.module.cache.tolist(), mapped.imports_of(os.getpid())), ([1.0, 1.0], here - 1))
                for call in (lambda: m(torch.ones(1, 4)), m.sleep, m.wake, m.swap, lambda: m.version):
                    with common.raises(self, gpufd.ClosedError, "closed"):
                        call()
        common.wait_for(lambda: self.holders() == 0, "the end of the leases")

    def test_a_view_outlives_the_model(self):
        m = self.model()
        view = m.module[1].bias[1:3]
        common.wait_for(lambda: self.holders() == 1, "the lease")
        m.close()
        self.assertEqual((view.tolist(), self.holders()), ([1.0, 1.0], 1))
        del view
        common.wait_for(lambda: self.holders() == 0, "the end of the lease")

    def test_an_option_for_the_version(self):
        self.put(2.0, labels={"step": "2"})
        m = self.model(labels={"step": "2"})
        m.sleep()
        self.newer(m, 3.0, labels={"step": "3"})
        with common.raises(self, gpufd.MismatchError, "labels"):
            m.wake()
        self.assertTrue(m.asleep)
        self.assertEqual(m.wake(newest=False), 2)
        common.wait_for(lambda: m.superseded, "the news, which follow the lease")
        with common.raises(self, gpufd.MismatchError, "labels"):
            m.swap()
        self.lives(m, 2.0)

    def test_a_part(self):
        for part, value in enumerate((4.0, 5.0)):
            gpufd.torch.put("parts", model(value).state_dict(), socket=self.socket, part=part, parts=2, transaction="t")
        with common.raises(self, gpufd.UsageError, "usage", "has 2 parts: say which"):
            self.model(name="parts")
        m = self.model(name="parts", part=1)
        m.sleep()
        self.assertEqual(m.wake(), 1)
        self.lives(m, 5.0)

    def test_the_keeper_restarts_while_it_sleeps(self):
        m = self.model()
        m.sleep()
        self.kept.kill()
        again = self.keeper()
        common.wait_for(lambda: m.superseded or self.holders() == 1, "another lease")
        self.newer(m, 2.0)
        self.assertEqual(self.old(), {1: 1})
        self.assertEqual(m.wake(newest=False), 1)
        self.lives(m, 1.0)
        del again

    def test_there_is_no_keeper(self):
        m = self.model(timeout=0.5)
        m.sleep()
        self.kept.close()
        with self.assertRaises(gpufd.LostError):
            m.wake()
        self.assertTrue(m.asleep)

    def test_a_guard_sees_what_no_hook_does(self):
        m = self.model()
        bias, view = m.module[1].bias, m.module[1].bias[1:]
        m.sleep()
        with gpufd.torch.WriteGuard():
            for use in (lambda: bias + 1, lambda: view.sum(), lambda: torch.cat([torch.ones(1), view]), lambda: torch.add(bias, 1, out=torch.ones(4)),
                        lambda: torch.ones(4).copy_(bias), lambda: m.module[1].weight @ torch.ones(4)):  # fmt: skip
                with common.raises(self, gpufd.ClosedError, "detached", "would use .*(bias|weight), which is detached: wake or reattach first"):
                    use()
            self.assertEqual((list(m.module.state_dict()), bias[2:].shape, (torch.ones(2) + 1).tolist()), (list(model().state_dict()), (2,), [2.0, 2.0]))
            m.wake()
            self.assertEqual((bias + 1).tolist(), [2.0] * 4)

    def test_training_is_the_modules_own(self):
        """What is not kept is trained beside kept weights, over a sleep."""
        m = self.model()
        head = torch.nn.Linear(4, 1)
        optimiser = torch.optim.Adam(head.parameters())
        for _ in range(2):
            optimiser.zero_grad()
            head(m.module.train()(torch.ones(1, 4))).sum().backward()
            optimiser.step()
            m.sleep()
            m.wake()
        self.assertFalse(m.module[0].weight.requires_grad)
        self.assertTrue(m.module.training)

    def test_nothing_grows(self):
        m = self.model()

        def once():
            m.sleep()
            self.newer(m, 2.0)
            m.wake()
            self.newer(m, 3.0)
            m.swap()

        for _ in range(3):
            once()
        before = mappings(), len(common.settled_fds()), mapped.imports_of(os.getpid())
        for _ in range(10):
            once()
        self.assertEqual((mappings(), len(common.settled_fds()), mapped.imports_of(os.getpid())), before)


if __name__ == "__main__":
    unittest.main()
