"""gpufd.aio: waits in an event loop, which are cancelled without a trace."""

import asyncio
import contextlib
import inspect
import os
import select
import sys
import threading
import time
import unittest

from keepers import Keeper, KeeperTest  # first: it says where the package is

import common
import gpufd
import gpufd.aio
from common import PATIENCE
from gpufd import channel


class Loop(common.Scene):
    """Coroutines in a loop that has nothing left at their end."""

    def run_(self, coroutine):
        async def main():
            loop = asyncio.get_running_loop()
            before = self.readers(loop)
            try:
                return await asyncio.wait_for(coroutine, PATIENCE)
            finally:
                self.assertEqual(self.readers(loop), before, "readers are left in the loop")

        return asyncio.run(main())

    @staticmethod
    def readers(loop):
        return sorted(loop._selector.get_map())

    async def cancelled(self, coroutine, until=None):
        """Run a coroutine until it waits, and cancel it there."""
        loop = asyncio.get_running_loop()
        before, fds = self.readers(loop), set(os.listdir("/proc/self/fd"))
        task = asyncio.ensure_future(coroutine)
        while not (until() if until else len(self.readers(loop)) > len(before)):
            self.assertFalse(task.done(), task)
            await asyncio.sleep(0.001)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(self.readers(loop), before)
        return fds


class Attachments(Loop):
    def setUp(self):
        super().setUp()
        self.memory = gpufd.allocate(4096)
        self.addCleanup(self.memory.close, True)
        self.server = gpufd.Server(self.path, timeout=PATIENCE)
        self.addCleanup(self.server.close)
        self.offering = self.server.offer("x", self.memory)

    def newer(self):
        memory = gpufd.allocate(4096)
        self.addCleanup(memory.close, True)
        self.server.replace("x", memory, grace=None)
        return memory.generation

    def attach(self):
        att = gpufd.attach("x", socket=self.path)
        self.addCleanup(att.close)
        return att

    def test_wait(self):
        async def main():
            att = self.attach()
            self.assertFalse(await gpufd.aio.wait(att, 0))
            self.assertFalse(await gpufd.aio.wait(att, 0.01))
            both = asyncio.gather(gpufd.aio.wait(att, superseded=True), gpufd.aio.wait_superseded(att))  # two of one descriptor
            end = asyncio.ensure_future(gpufd.aio.wait(att))
            await asyncio.sleep(0.01)
            self.assertFalse(both.done())
            self.newer()
            self.assertEqual(await both, [True, True])
            self.assertFalse(end.done())
            att.close()
            self.assertTrue(await end)
            self.assertEqual(att._lease.bells, {})

        self.run_(main())

    def test_no_thread_waits(self):
        async def main():
            att = self.attach()
            threads = threading.active_count()
            waits = [asyncio.ensure_future(gpufd.aio.wait(att)) for _ in range(20)]
            await asyncio.sleep(0.02)
            self.assertEqual(threading.active_count(), threads)
            self.server.close()
            self.assertEqual(await asyncio.gather(*waits), [True] * 20)

        self.run_(main())

    def test_what_another_thread_reads(self):
        async def main():
            att = self.attach()
            (lease,) = self.offering.leases
            end = threading.Event()

            def looks():
                while not end.is_set():
                    att.done  # it may read what comes before the loop does

            thread = threading.Thread(target=looks)
            thread.start()
            try:
                for i in range(20):
                    waits = asyncio.ensure_future(gpufd.aio.notices(att))
                    await asyncio.sleep(0.001)
                    await asyncio.to_thread(lease.notify, b"%d" % i)
                    self.assertEqual(await waits, [b"%d" % i])
            finally:
                end.set()
                thread.join()
            self.assertEqual(await gpufd.aio.notices(att, 0.01), [])

        self.run_(main())

    def test_a_wait_that_is_cancelled(self):
        async def main():
            att = self.attach()
            for coroutine in (lambda: gpufd.aio.wait(att), lambda: gpufd.aio.notices(att)):
                fds = await self.cancelled(coroutine())
                self.assertEqual((set(os.listdir("/proc/self/fd")), att._lease.bells), (fds, {}))
            self.newer()
            self.assertTrue(await gpufd.aio.wait(att, PATIENCE, superseded=True))

        self.run_(main())

    def test_follow(self):
        async def main():
            seen = []
            async with contextlib.aclosing(gpufd.aio.follow("x", socket=self.path, within=PATIENCE)) as versions:
                async for att in versions:
                    seen.append(att.generation)
                    if len(seen) == 4:
                        break
                    if len(seen) == 2:
                        att.close()  # only newer memory is given
                    asyncio.get_running_loop().call_later(0.01, self.newer)
            self.assertEqual((len(seen), seen), (4, sorted(set(seen))))
            self.assertTrue(att._lease.closed)

        self.run_(main())

    def test_follow_is_cancelled(self):
        async def main():
            seen = []

            async def follows(**options):
                async for att in gpufd.aio.follow(socket=self.path, **options):
                    seen.append(att)

            await self.cancelled(follows(name="x"))  # behind its first body
            self.assertEqual(len(seen), 1)
            self.assertTrue(seen[0]._lease.closed)
            told = []
            await self.cancelled(follows(name="y", on_wait=told.append), lambda: told)  # there is no such name
            self.assertEqual(told[0].reason, "not-found")

        self.run_(main())

    def test_follow_is_cancelled_while_it_attaches(self):
        from gpufd.share import follow as module

        there, go_on, made = threading.Event(), threading.Event(), []

        class Slow(module.Following):
            def attach(self, wait=True, within=0):
                there.set()
                go_on.wait(PATIENCE)
                made.append(super().attach(wait))
                return made[-1]

        async def main():
            def follows():
                following = gpufd.follow("x", socket=self.path).following
                following.__class__ = Slow
                return gpufd.aio._follow(following)

            await self.cancelled(follows().__anext__(), there.is_set)
            go_on.set()
            while not made or not made[0]._lease.closed:
                await asyncio.sleep(0.001)

        self.run_(main())

    def test_arguments(self):
        self.assertEqual(inspect.signature(gpufd.aio.follow), inspect.signature(gpufd.follow))
        self.assertRaises(gpufd.UsageError, gpufd.aio.follow, "x", overlap=7)
        self.assertRaises(TypeError, gpufd.aio.follow, "x", acess=1)


class Keepers(KeeperTest, Loop):
    def test_models_and_a_keeper_that_restarts(self):
        try:
            import torch
        except ImportError:
            common.missing("python", f"{sys.executable} has no PyTorch")
        import gpufd.torch

        kept = self.keeper()

        def put(value):
            gpufd.torch.put("m", {"weight": torch.full((2, 2), value), "bias": torch.full((2,), value)}, socket=kept.socket)

        async def main():
            model, seen = torch.nn.Linear(2, 2), []
            async with contextlib.aclosing(gpufd.aio.follow_model("m", socket=kept.socket, within=PATIENCE)) as versions:
                async for version in versions:
                    if version.version == 2:
                        version.refuse("it is bad")
                        asyncio.get_running_loop().call_later(0.05, put, 3.0)
                        continue
                    version.swap(model)
                    seen.append((version.version, model.bias.tolist()))
                    if version.version == 3:
                        break
                    kept.kill()
                    self.assertFalse(await gpufd.aio.wait_superseded(version, 0.3))
                    again = await asyncio.to_thread(Keeper, self.directory)
                    self.addCleanup(again.close)
                    self.assertFalse(await gpufd.aio.wait_superseded(version, 0.6))
                    self.assertFalse(version.attachment.done)
                    put(2.0)
            self.assertEqual(seen, [(1, [1.0, 1.0]), (3, [3.0, 3.0])])

        async def of_get():
            with gpufd.get("m", socket=kept.socket) as version:
                self.assertFalse(await gpufd.aio.wait_superseded(version, 0.01))

        put(1.0)
        self.run_(of_get())
        self.run_(main())


class Frames(Loop):
    def setUp(self):
        super().setUp()
        self.w = channel.Writer("cam", socket=self.path, slots=3, slot_size=4096)
        self.addCleanup(self.w.close)
        self.r = channel.Reader("cam", socket=self.path)
        self.addCleanup(self.r.close)

    def readable(self, seconds=PATIENCE):
        return bool(select.select([self.r], [], [], seconds)[0])

    def test_fileno(self):
        self.assertNotIn("gpufd-ready", {t.name for t in threading.enumerate()})
        self.assertFalse(self.readable(0.02))
        self.assertEqual(self.r.fileno(), self.r.fileno())
        for i in range(20):
            self.w.send(b"%d" % i)
            self.w.send(b"more")
            self.assertTrue(self.readable())
            self.r.release(self.r.next(0))
            self.assertTrue(self.readable(), "there is another one")
            self.r.release(self.r.next(0))
            with self.assertRaises(gpufd.TimedOutError):
                self.r.next(0)
            self.assertFalse(self.readable(0.001))
        self.w.close()
        for _ in range(2):  # it stays so
            self.assertTrue(self.readable())
            common.error_of(self, gpufd.ChannelError, "ended", self.r.next, 0)
        self.r.close()
        self.assertLessEqual({t.name for t in threading.enumerate()} & {"gpufd-ready", "gpufd-channel"}, set())
        common.error_of(self, gpufd.ClosedError, "closed", self.r.fileno)

    def test_a_frame_that_was_there_before(self):
        self.w.send(b"x")
        self.assertTrue(self.readable())
        self.r.release(self.r.next(0))

    def test_close_while_a_loop_waits(self):
        async def main():
            waits = asyncio.ensure_future(gpufd.aio.next(self.r))
            await asyncio.sleep(0.01)
            await asyncio.to_thread(self.r.close)
            with self.assertRaises(gpufd.ClosedError):
                await waits

        self.run_(main())

    def test_next_and_frames(self):
        async def main():
            with self.assertRaisesRegex(gpufd.TimedOutError, "no frame came within 0.01 s"):
                await gpufd.aio.next(self.r, 0.01)
            await self.cancelled(gpufd.aio.next(self.r))
            threading.Thread(target=self.sends).start()
            with await gpufd.aio.next(self.r, PATIENCE) as frame:
                self.assertEqual(frame.tobytes(), b"0")
            got = [frame.tobytes() async for frame in gpufd.aio.frames(self.r)]
            self.assertEqual(got, [b"%d" % i for i in range(1, 100)])
            self.assertEqual(self.r.stats.received, 100)

        self.run_(main())

    def sends(self):
        for i in range(100):
            self.w.send(b"%d" % i, timeout=PATIENCE)
        self.w.close()

    def test_a_frame_is_given_back_when_the_loop_is_left(self):
        async def main():
            self.w.send(b"x")
            async with contextlib.aclosing(gpufd.aio.frames(self.r)) as frames:
                async for frame in frames:
                    self.assertEqual(len(self.r._position.held), 1)
                    break
            self.assertEqual(len(self.r._position.held), 0)

        self.run_(main())

    def test_the_loop_goes_on_meanwhile(self):
        async def main():
            ticks = 0
            waits = asyncio.ensure_future(gpufd.aio.next(self.r))
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                await asyncio.sleep(0.001)
                ticks += 1
            self.assertGreater(ticks, 10)
            self.w.send(b"x")
            self.r.release(await waits)

        self.run_(main())


if __name__ == "__main__":
    unittest.main()
