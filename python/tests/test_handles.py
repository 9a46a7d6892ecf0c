"""gpufd.torch.reduce_tensor: handles that existing code pickles, on the software driver."""

import gc
import inspect
import io
import json
import os
import pickle
import subprocess
import sys
import threading
import unittest

from keepers import KeeperTest, wait_for  # first: it says where the package is

import common
import forks

try:
    import torch
except ImportError:
    torch = None

import gpufd

if torch is not None:
    import gpufd.torch
    from gpufd.torch import lending

RECEIVER = """
import pickle, gpufd.torch, torch
print("ready", flush=True)
held = {}
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "take":
        func, args = pickle.loads(bytes.fromhex(rest))
        try:
            held[len(held)] = t = func(*args)
            print("took", t.dtype, list(t.shape), list(t.stride()), t.flatten()[:4].tolist(), t.requires_grad, type(t).__name__, flush=True)
        except gpufd.Error as e:
            print("failed", type(e).__name__, e.reason, e, flush=True)
    elif word == "write":
        with torch.no_grad():
            held[int(rest)].fill_(9)
        print("wrote", flush=True)
    elif word == "drop":
        held.clear(); t = None
        print("dropped", flush=True)
    elif word == "storages":
        print("storages", len({t.data_ptr() - t.storage_offset() * t.element_size() for t in held.values()}), len(gpufd.share.attachment._all), flush=True)
"""


QUEUE = """
import multiprocessing, time
import gpufd.torch, torch, test_handles
from gpufd.torch import lending
gpufd.torch.register_reducer(driver="soft")
context = multiprocessing.get_context("spawn")
queue, back = context.Queue(), context.Queue()
p = context.Process(target=test_handles.queue_reader, args=(queue, back), daemon=True)
p.start()
queue.put(torch.nn.Parameter(torch.arange(4.0)))
print(back.get(timeout=60))
print(back.get(timeout=60))
until = time.monotonic() + 60
while lending.lender().loans and time.monotonic() < until:
    time.sleep(0.01)
print(len(lending.lender().loans), "loans")
p.join()
"""


def setUpModule():
    if torch is None:
        common.missing("python", f"{sys.executable} has no PyTorch")
    forks.begin("gpufd.torch")


def queue_reader(queue, back):
    """Read a tensor, in a spawned process."""
    t = queue.get()
    back.put((type(t).__name__, t.tolist(), t.requires_grad))
    del t
    gc.collect()
    back.put("let go")


class AllowList(pickle.Unpickler):
    """As engines have it: names that are allowed, one by one."""

    def find_class(self, module, name):
        if f"{module}.{name}" != "gpufd.torch.rebuild_tensor":
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        return super().find_class(module, name)


class Handles(KeeperTest):
    def setUp(self):
        super().setUp()
        self.environ(GPUFD_HANDLE_DIR=self.dir)
        lending._lender = lending.Lender()
        self.addCleanup(self.end_lender)

    def end_lender(self):
        gpufd.torch.release()
        if lending._lender._server is not None:
            lending._lender._server.close(timeout=5)
        gc.collect()

    def loans(self):
        return list(lending.lender().loans.values())

    def receiver(self):
        return self.python(RECEIVER, waits_for="ready")

    def says(self, p, line):
        p.stdin.write(line + "\n")
        p.stdin.flush()
        return p.stdout.readline().strip()

    def take(self, p, reduced):
        return self.says(p, "take " + pickle.dumps(reduced).hex())

    def soft(self, t, **options):
        return gpufd.torch.reduce_tensor(t, driver="soft", **options)

    # As existing code sees it.

    def test_the_arguments_have_torchs_order(self):
        theirs = list(inspect.signature(torch.multiprocessing.reductions.rebuild_cuda_tensor).parameters)
        ours = list(inspect.signature(gpufd.torch.rebuild_tensor).parameters)
        self.assertEqual(ours, theirs)
        func, args = self.soft(torch.arange(6.0))
        self.assertEqual(len(args), len(ours))
        self.assertEqual(ours.index("storage_device"), 6)

    def test_the_arguments_are_plain_data_and_one_name(self):
        reduced = self.soft(torch.arange(6.0).view(2, 3))

        def plain(value):
            return isinstance(value, (int, str, bytes, bool)) or isinstance(value, tuple) and all(map(plain, value))

        self.assertTrue(plain(reduced[1]), reduced[1])
        func, args = AllowList(io.BytesIO(pickle.dumps(reduced))).load()
        self.assertTrue(torch.equal(func(*args), torch.arange(6.0).view(2, 3)))

    def test_another_process_rebuilds_what_was_reduced(self):
        p = self.receiver()
        t = torch.arange(12, dtype=torch.bfloat16).view(3, 4).t()
        self.assertEqual(self.take(p, self.soft(t)), "took torch.bfloat16 [4, 3] [1, 4] [0.0, 4.0, 8.0, 1.0] False Tensor")
        w = torch.nn.Parameter(torch.ones(2))
        self.assertEqual(self.take(p, self.soft(w)), "took torch.float32 [2] [1] [1.0, 1.0] True Parameter")
        n = torch.nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False)
        self.assertIn("False Parameter", self.take(p, self.soft(n)))
        self.assertIn("took torch.float32 [0, 3]", self.take(p, self.soft(torch.zeros(0, 3))))
        self.assertIn("took torch.float32 [] [] [7.0]", self.take(p, self.soft(torch.tensor(7.0))))

    def test_a_queue_of_multiprocessing_takes_them(self):
        self.assertEqual(self.ends(self.python(QUEUE), 0).split("\n")[:3], ["('Parameter', [0.0, 1.0, 2.0, 3.0], True)", "let go", "0 loans"])

    def test_the_reducer_can_be_put_back(self):
        from multiprocessing.reduction import ForkingPickler

        before = dict(ForkingPickler._extra_reducers)
        undo = gpufd.torch.register_reducer()
        self.assertNotEqual(ForkingPickler._extra_reducers, before)
        undo()
        self.assertEqual(ForkingPickler._extra_reducers, before)

    def test_other_tensors_go_torchs_own_way(self):
        func, _ = gpufd.torch.reduce_tensor(torch.ones(3))
        self.assertIs(func, torch.multiprocessing.reductions.rebuild_tensor)
        grown = torch.nn.Parameter(torch.ones(2)) * 2
        with self.assertRaisesRegex(gpufd.UsageError, "detach"):
            gpufd.torch.reduce_tensor(grown)

    # Memory.

    def test_views_of_a_storage_share_one_offer_and_one_attachment(self):
        whole = torch.arange(4000.0)
        p = self.receiver()
        for i in range(100):
            said = self.take(p, self.soft(whole[40 * i : 40 * i + 40]))
            self.assertIn(f"[{40.0 * i}, {40.0 * i + 1}", said)
        self.assertEqual(len(self.loans()), 1)
        self.assertEqual(len(self.loans()[0].copies), 1)
        self.assertEqual(self.says(p, "storages"), "storages 1 1")
        self.says(p, "drop")
        wait_for(lambda: not self.loans(), "the end of the loan")

    def test_small_storages_share_an_offer(self):
        p = self.receiver()
        for i in range(100):
            self.assertIn(f"[{float(i)}, ", self.take(p, self.soft(torch.full((10,), float(i)))))
        self.assertEqual(len(self.loans()), 1)
        self.says(p, "drop")
        wait_for(lambda: not self.loans(), "the end of the loan")

    def test_a_handle_stands_for_the_bytes_of_its_time(self):
        p, t = self.receiver(), torch.zeros(4)
        first = self.soft(t)
        t.add_(1)
        second = self.soft(t)
        self.assertIn("[0.0, 0.0", self.take(p, first))
        self.assertIn("[1.0, 1.0", self.take(p, second))

    def test_a_small_view_of_a_large_storage_is_copied_alone(self):
        t = torch.zeros(8 << 20)
        self.soft(t[1 << 20 : (1 << 20) + 8])
        self.assertLess(self.loans()[0].used, 1 << 20)

    def test_memory_of_this_package_is_not_copied(self):
        with gpufd.allocate(4096, driver="soft") as memory:
            t = lending.bytes_over(memory, 0, 4096, "a test").view(torch.int32)
            p = self.receiver()
            self.assertIn("[0, 0, 0, 0]", self.take(p, gpufd.torch.reduce_tensor(t[16:])))
            self.assertEqual(self.says(p, "write 0"), "wrote")
            self.assertEqual((t[15].item(), t[16].item()), (0, 9))
            self.assertFalse(self.loans()[0].copied)
            self.says(p, "drop")
            wait_for(lambda: not self.loans(), "the end of the loan")
            del t

    def test_kept_memory_is_attached_to_at_the_keeper(self):
        socket = self.keeper().socket
        gpufd.torch.put("model", {"w": torch.arange(8.0), "b": torch.ones(3)}, socket=socket)
        loaded = gpufd.torch.load("model", socket=socket)
        p = self.receiver()
        self.assertIn("[0.0, 1.0, 2.0, 3.0]", self.take(p, gpufd.torch.reduce_tensor(loaded["w"])))
        self.assertIn("[1.0, 1.0, 1.0]", self.take(p, gpufd.torch.reduce_tensor(loaded["b"])))
        self.assertEqual(self.loans(), [])
        old = gpufd.torch.reduce_tensor(loaded["w"])
        gpufd.torch.put("model", {"w": torch.zeros(8)}, socket=socket)
        self.assertIn("failed MismatchError stale", self.take(self.receiver(), old))
        self.assertIn("took", self.take(p, old))  # which has it already
        self.assertIn("[0.0, 1.0, 2.0, 3.0]", self.take(self.receiver(), gpufd.torch.reduce_tensor(loaded["w"])))
        self.assertTrue(self.loans()[0].copied)  # of what is superseded

    def test_a_receiver_in_another_pid_namespace(self):
        if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode:
            common.missing("namespaces", "unshare --pid is not allowed here")
        head = f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); import common, gpufd\n"
        p = self.run_program(["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-B", "-u", "-c", head + RECEIVER], "ready")
        self.assertIn("[1.0, 1.0", self.take(p, self.soft(torch.ones(4))))
        self.says(p, "drop")
        wait_for(lambda: not self.loans(), "the end of the loan")

    def test_threads_that_send_and_receive(self):
        wrong = []

        def work(value):
            for i in range(60):
                t = torch.full((1 + i * 100,), value + i)
                func, args = pickle.loads(pickle.dumps(self.soft(t)))
                got = func(*args)
                if not torch.equal(got, t):
                    wrong.append((value, i))
                del t, got

        threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(common.PATIENCE)
        self.assertEqual(wrong, [])
        gc.collect()
        wait_for(lambda: not self.loans(), "the end of the loans")

    # The end.

    def test_a_copy_goes_when_its_receiver_lets_go(self):
        p = self.receiver()
        reduced = self.soft(torch.ones(4))
        memory = self.loans()[0].memory
        self.take(p, reduced)
        self.assertFalse(memory.closed)
        self.says(p, "drop")
        wait_for(lambda: memory.closed, "the end of the memory")
        self.assertEqual(self.loans(), [])
        self.assertIn("failed NotFoundError", self.take(p, reduced))

    def test_a_handle_that_waits_keeps_what_others_have_let_go(self):
        p, t = self.receiver(), torch.ones(4)
        first, second = self.soft(t[:2]), self.soft(t[2:])
        self.take(p, first)
        self.says(p, "drop")
        self.assertIn("took", self.take(p, second))
        self.says(p, "drop")
        wait_for(lambda: not self.loans(), "the end of the loan")

    def test_several_receivers_one_after_the_other(self):
        reduced = self.soft(torch.ones(4), receivers=2)
        for _ in range(2):
            p = self.receiver()
            self.assertIn("took", self.take(p, reduced))
            self.says(p, "drop")
        wait_for(lambda: not self.loans(), "the end of the loan")

    def test_a_killed_receiver_leaves_no_memory(self):
        p = self.receiver()
        reduced = [self.soft(torch.ones(n)) for n in (4, 3 << 20)]
        memories = [loan.memory for loan in self.loans()]
        for r in reduced:
            self.assertIn("took", self.take(p, r))
        p.kill()
        wait_for(lambda: all(m.closed for m in memories), "the end of the memory")

    def test_nobody_comes(self):
        self.soft(torch.ones(4), timeout=0.2)
        memory = self.loans()[0].memory
        wait_for(lambda: memory.closed, "the end of the memory")

    def test_the_limit_does_not_end_what_a_receiver_has(self):
        p = self.receiver()
        self.assertIn("took", self.take(p, self.soft(torch.ones(4), receivers=2, timeout=60)))
        (loan,) = self.loans()
        memory, loan.limit = loan.memory, 0.2  # only now: a receiver may take seconds to start
        loan.touch()
        with self.assertRaises(AssertionError):
            wait_for(lambda: memory.closed, "the end of the memory", within=1.5)
        p.kill()
        wait_for(lambda: memory.closed, "the end of the memory")

    def test_release_leaves_what_receivers_have(self):
        p = self.receiver()
        one, other = self.soft(torch.ones(4)), self.soft(torch.ones(3 << 20))
        self.take(p, one)
        self.assertEqual(gpufd.torch.release(one), 1)
        self.assertEqual(self.says(p, "write 0"), "wrote")
        self.assertIn("released", self.take(self.receiver(), one))
        self.assertIn("took", self.take(p, other))
        self.assertEqual(gpufd.torch.release(), 1)
        self.assertEqual(gpufd.torch.release(), 0)

    def test_a_sender_that_has_ended(self):
        text = "import gpufd.torch, torch, pickle; print(pickle.dumps(gpufd.torch.reduce_tensor(torch.ones(4), driver='soft')).hex())"
        out, _ = self.python(text).communicate(timeout=common.PATIENCE)
        func, args = pickle.loads(bytes.fromhex(out))
        with self.assertRaisesRegex(gpufd.LostError, "the sender at .* has ended"):
            func(*args)

    # Devices.

    def test_a_patched_device_has_to_be_the_right_one(self):
        func, args = self.soft(torch.ones(4))
        args = list(args)
        self.assertEqual(args[6], 0)
        uuid = json.loads(args[7])["device"]
        for bad in (1, "GPU-00000000-0000-0000-0000-000000000000"):
            args[6] = bad
            with self.assertRaises(gpufd.MismatchError):
                func(*args)
        held = []
        for good in (uuid, uuid.removeprefix("GPU-"), 0):
            args[6] = good
            held.append(func(*args))
            self.assertTrue(torch.equal(held[-1], torch.ones(4)))
        for bad in (1, "GPU-00000000-0000-0000-0000-000000000000"):  # also of what is attached to already
            args[6] = bad
            with self.assertRaises(gpufd.MismatchError):
                func(*args)

    def test_handles_that_make_no_sense(self):
        func, args = self.soft(torch.ones(4))
        wrong = [(7, b"{}", gpufd.WireError), (8, 1 << 40, gpufd.WireError), (9, -1, gpufd.WireError), (5, "nonsense", gpufd.UsageError)]
        for place, value, error in [*wrong, (1, (1 << 30,), gpufd.WireError), (3, 1 << 30, gpufd.WireError), (2, (-1,), gpufd.WireError)]:
            with self.assertRaises(error, msg=place):
                func(*[value if i == place else a for i, a in enumerate(args)])

    def test_arguments_are_checked_at_once(self):
        for bad in ({"receivers": 0}, {"timeout": 0}, {"receivers": "2"}):
            with self.assertRaises(gpufd.UsageError):
                gpufd.torch.register_reducer(**bad)
        with self.assertRaises(TypeError):
            gpufd.torch.register_reducer(receiver=2)
        with self.assertRaisesRegex(gpufd.UsageError, "a tensor of PyTorch's"):
            gpufd.torch.reduce_tensor(5)
        self.assertEqual(gpufd.torch.release((print, ())), 0)

    # Small parts.

    def test_tickets(self):
        for some in ([], [1], [1, 2, 3], [1, 3, 4, 9], list(range(1, 2000)), list(range(1, 100, 2))):
            self.assertEqual([n for begin, end in lending.ranges_of(lending.tickets_said(some)) for n in range(begin, end + 1)], some)
        many = lending.tickets_said(range(1, 9000, 2))
        self.assertLessEqual(len(many), 4096)
        self.assertTrue(any(begin <= 8999 <= end for begin, end in lending.ranges_of(many)))

    def test_sockets_of_dead_senders_are_removed(self):
        text = "import os, signal, gpufd.torch, torch; gpufd.torch.reduce_tensor(torch.ones(4), driver='soft'); os.kill(os.getpid(), signal.SIGKILL)"
        self.python(text).wait()
        left = [n for n in os.listdir(self.dir) if lending._SOCKET.fullmatch(n)]
        self.assertEqual(len(left), 1)
        self.soft(torch.ones(4))
        self.assertFalse(os.path.exists(os.path.join(self.dir, left[0])))


if __name__ == "__main__":
    unittest.main()
