"""Handles of CUDA tensors, where PyTorch's own fail: expandable segments, and no right to ptrace.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_handles.py -v

It needs a GPU, PyTorch, and gpufd's programs (GPUFD_BIN, or Go to build them). The sender, this
process, cannot be ptraced, its receivers have no CAP_SYS_PTRACE, and PyTorch's memory is in
expandable segments. What torch's own queues do then is shown beside. In the end it prints a table.
"""

import ctypes
import gc
import io
import json
import multiprocessing
import os
import pickle
import shutil
import statistics
import sys
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # before PyTorch is imported

import gpu  # first: it says where the package is
import test_handles
from keepers import Keeper, wait_for

import common
import gpufd
from gpufd.torch import lending

PR_SET_DUMPABLE, SYS_PTRACE = 4, 19


def forbid_ptrace():
    """Give up this thread's right to ptrace others, which pidfd_getfd asks for."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    for i in range(3):  # effective, permitted, inheritable: of the first 32
        data[i] &= ~(1 << SYS_PTRACE) & 0xFFFFFFFF
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


RECEIVER = "import gpu_handles; gpu_handles.forbid_ptrace()\n" + test_handles.RECEIVER


def read_queue(queue, back, times):
    """Take tensors out of a queue, in a process of its own."""
    forbid_ptrace()
    back.put("ready")
    for _ in range(times):
        try:
            t = queue.get(timeout=60)
            back.put((t.device.type, t.flatten()[:3].tolist(), type(t).__name__, t.requires_grad))
        except BaseException as e:
            back.put(f"{type(e).__name__}: {' '.join(str(e).split())[:160]}")
            return
        del t
    gc.collect()
    back.put("let go")
    queue.get()


class Handles(gpu.OnGPU):
    def setUp(self):
        super().setUp()
        self.torch = gpu.Torch().lib
        self.environ(GPUFD_HANDLE_DIR=self.dir)
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        lending._lender = lending.Lender()
        self.addCleanup(self.end_lender)

    def end_lender(self):
        gpufd.torch.release()
        if lending._lender._server is not None:
            lending._lender._server.close(timeout=5)
        gc.collect()
        self.torch.cuda.empty_cache()

    def receiver(self, *before):
        return self.run_program([*before, sys.executable, "-B", "-u", "-c", self.head() + RECEIVER], "ready")

    def warm_receiver(self):
        """A receiver that has a context."""
        p = self.receiver()
        self.take(p, gpufd.torch.reduce_tensor(self.torch.ones(1, device="cuda")))
        self.says(p, "drop")
        self.ended()
        return p

    def head(self):
        return f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); import common, gpufd\n"

    def says(self, p, line):
        p.stdin.write(line + "\n")
        p.stdin.flush()
        return p.stdout.readline().strip()

    def take(self, p, reduced):
        return self.says(p, "take " + pickle.dumps(reduced).hex())

    def free(self):
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()
        return gpu.vitals()[2]

    def ended(self):
        wait_for(lambda: not lending.lender().loans, "the end of the loans")

    # Queues.

    def by_queue(self, tensors):
        """Send tensors to another process by a queue, and return what it says of them, and the seconds of each."""
        context = multiprocessing.get_context("spawn")
        queue, back = context.Queue(), context.Queue()
        p = context.Process(target=read_queue, args=(queue, back, len(tensors)), daemon=True)
        p.start()
        self.addCleanup(p.join)
        self.addCleanup(p.kill)
        self.assertEqual(back.get(timeout=120), "ready")
        said, took = [], []
        for t in tensors:
            began = time.monotonic()
            queue.put(t)
            said.append(back.get(timeout=90))
            took.append(time.monotonic() - began)
            if isinstance(said[-1], str):
                return said, took
        said.append(back.get(timeout=60))
        return said, took

    def test_torchs_own_queue(self):
        """Not ours to pass or fail: what PyTorch's reducer does under the same conditions."""
        said, _ = self.by_queue([self.torch.full((8 << 20,), 3, dtype=self.torch.uint8, device="cuda")])
        gpu.seen("torch's own", "a queue, expandable segments, no ptrace", str(said[0]))

    def test_a_queue_of_a_hundred_tensors(self):
        torch = self.torch
        self.addCleanup(gpufd.torch.register_reducer())
        some = [torch.full((1000 * (i + 1),), float(i), device="cuda") for i in range(99)] + [torch.nn.Parameter(torch.ones(3, device="cuda"))]
        said, took = self.by_queue(some)
        self.assertEqual(said[:99], [("cuda", [float(i)] * 3, "Tensor", False) for i in range(99)])
        self.assertEqual(said[99:], [("cuda", [1.0] * 3, "Parameter", True), "let go"])
        self.ended()
        gpu.seen("gpufd", "the same queue, 100 tensors", f"all arrived; {statistics.median(took) * 1e3:.2f} ms each (median), most {max(took) * 1e3:.1f}")

    def test_a_queue_of_large_tensors(self):
        self.addCleanup(gpufd.torch.register_reducer())
        t = self.torch.zeros(64 << 20, dtype=self.torch.uint8, device="cuda")
        said, took = self.by_queue([t] * 30)
        self.assertEqual(said[-1], "let go")
        self.ended()
        gpu.seen("gpufd", "the same queue, 64 MiB 30 times", f"{statistics.median(took[5:]) * 1e3:.2f} ms each (median)")
        self.assertEqual(said[0], ("cuda", [0, 0, 0], "Tensor", False))

    # Handles that are patched.

    def test_a_patched_handle_and_a_list_of_one_name(self):
        t = self.torch.arange(6.0, device="cuda").view(2, 3)
        reduced = gpufd.torch.reduce_tensor(t)
        func, args = test_handles.AllowList(io.BytesIO(pickle.dumps(reduced))).load()
        args = list(args)
        args[6] = 0  # as engines do
        p = self.receiver()
        self.assertIn("took torch.float32 [2, 3] [3, 1] [0.0, 1.0, 2.0, 3.0]", self.take(p, (func, tuple(args))))
        args[6] = str(self.torch.cuda.get_device_properties(0).uuid)
        self.assertIn("took", self.take(p, (func, tuple(args))))
        args[6] = "GPU-00000000-0000-0000-0000-000000000000"
        self.assertIn("failed MismatchError device", self.take(p, (func, tuple(args))))

    def test_a_receiver_may_write(self):
        t = self.torch.zeros(4, device="cuda")
        p = self.receiver()
        self.take(p, gpufd.torch.reduce_tensor(t))
        self.assertEqual(self.says(p, "write 0"), "wrote")
        self.assertIn("took", self.take(p, gpufd.torch.reduce_tensor(t + 1)))
        self.assertEqual(t.sum().item(), 0)

    def test_views_attach_once(self):
        whole = self.torch.arange(100_000.0, device="cuda")
        p = self.receiver()
        for i in range(100):
            self.assertIn(f"[{1000.0 * i}, ", self.take(p, gpufd.torch.reduce_tensor(whole[1000 * i : 1000 * i + 1000])))
        self.assertEqual(self.says(p, "storages"), "storages 1 1")
        self.says(p, "drop")
        self.ended()

    def test_work_of_the_stream_is_waited_for(self):
        torch = self.torch
        p = self.receiver()
        big = torch.randn(4096, 4096, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            t = torch.zeros(4, device="cuda")
            for _ in range(50):
                big = big @ big * 1e-3
            t += 5
            reduced = gpufd.torch.reduce_tensor(t)
        self.assertIn("[5.0, 5.0, 5.0, 5.0]", self.take(p, reduced))

    # Memory.

    def test_a_killed_receiver_leaves_no_memory(self):
        t = self.torch.ones(256 << 20, dtype=self.torch.uint8, device="cuda")
        p = self.warm_receiver()
        before = self.free()
        self.assertIn("took", self.take(p, gpufd.torch.reduce_tensor(t)))
        during = before - self.free()
        p.kill()
        p.wait()
        self.ended()
        wait_for(lambda: self.free() >= before - (4 << 20), "the device's memory")
        gpu.seen("gpufd", "256 MiB by a handle, receiver killed", f"{during >> 20} MiB more while it had it, none afterwards")
        self.assertLess(during, 272 << 20)

    def test_kept_memory_is_not_copied(self):
        keeper = Keeper(self.dir)
        self.addCleanup(keeper.close)
        gpufd.torch.put("w", {"w": self.torch.ones(64 << 20, device="cuda")}, socket=keeper.socket)
        loaded = gpufd.torch.load("w", socket=keeper.socket)
        p = self.warm_receiver()
        before = self.free()
        self.assertIn("[1.0, 1.0", self.take(p, gpufd.torch.reduce_tensor(loaded["w"])))
        self.assertEqual(lending.lender().loans, {})
        self.assertLess(before - self.free(), 16 << 20, "a copy of 256 MiB")
        self.says(p, "drop")
        del loaded
        gc.collect()

    def test_another_pid_namespace(self):
        unshare = shutil.which("unshare")
        if not unshare or os.system(f"{unshare} --pid --fork --mount-proc true 2>/dev/null"):
            gpu.seen("gpufd", "another PID namespace", "not run: unshare is not allowed here")
            self.skipTest("unshare --pid is not allowed here")
        p = self.receiver(unshare, "--pid", "--fork", "--mount-proc", "--kill-child")
        self.assertIn("[2.0, 2.0", self.take(p, gpufd.torch.reduce_tensor(self.torch.full((4,), 2.0, device="cuda"))))
        self.says(p, "drop")
        self.ended()
        gpu.seen("gpufd", "another PID namespace", "rebuilt")

    def test_json_of_the_handle_names_the_device(self):
        _, args = gpufd.torch.reduce_tensor(self.torch.ones(1, device="cuda"))
        self.assertIn(str(self.torch.cuda.get_device_properties(0).uuid), json.loads(args[7])["device"])


if __name__ == "__main__":
    sys.exit(gpu.main())
