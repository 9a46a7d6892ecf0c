"""gpufd.torch: models into a keeper and out of it, as views, on the software driver."""

import contextlib
import gc
import json
import os
import subprocess
import sys
import unittest
from unittest import mock

from keepers import DEADLINE, KeeperTest, program, wait_for  # first: it says where the package is

import common

try:
    import torch
except ImportError:
    torch = None

import gpufd
from gpufd.keeper import deposit as _deposit

if torch is not None:
    import gpufd.torch
    from gpufd.torch import weights


def setUpModule():
    if torch is None:
        common.missing("python", f"{sys.executable} has no PyTorch")


def model():
    """A model with tied weights, a transposed buffer, views of one storage, an empty one."""
    m = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32), torch.nn.Linear(4, 2).to(torch.bfloat16))
    m[1].weight = m[0].weight
    m.register_buffer("transposed", torch.randn(8, 4).t())
    m.register_buffer("empty", torch.zeros(0, 3))
    m.register_buffer("scalar", torch.tensor(7))
    fused = torch.randn(6, 5)
    m.register_buffer("fused", fused)
    m.register_buffer("q", fused[:2])
    m.register_buffer("kv", fused[2:, 1:])
    m.register_buffer("temporary", torch.ones(3), persistent=False)
    return m


class Models(KeeperTest):
    def setUp(self):
        super().setUp()
        self.socket = self.keeper().socket

    def test_a_module_goes_on_where_its_tensors_have_gone(self):
        m = model()
        x = torch.randn(3, 32)
        before, copies = m[1](m[0](x)), {k: v.clone() for k, v in m.state_dict().items()}
        strides = {k: v.stride() for k, v in m.state_dict().items()}
        parameter = m[0].weight
        done = gpufd.torch.put("model", m, socket=self.socket, labels={"revision": "main"}, chunk=2 << 20)
        self.assertEqual(done.version, 1)
        self.assertTrue(torch.equal(m[1](m[0](x)), before))
        self.assertIs(m[0].weight, parameter)
        self.assertIs(m[1].weight, parameter)
        self.assertEqual(m.fused.data_ptr(), m.q.data_ptr())
        for state in (m.state_dict(), gpufd.torch.load("model", socket=self.socket)):
            self.assertEqual(set(state), set(copies))
            for name, was in copies.items():
                self.assertTrue(torch.equal(state[name], was), name)
                self.assertEqual((state[name].stride(), state[name].dtype), (strides[name], was.dtype), name)
            self.assertEqual(state["0.weight"].data_ptr(), state["1.weight"].data_ptr())
            self.assertEqual(state["fused"][2:, 1:].data_ptr(), state["kv"].data_ptr())
        self.assertIn("as its writer said", self.gpufd("get", "model", "--verify", "--socket", self.socket))

    def test_the_go_program_writes_it_as_safetensors(self):
        gpufd.torch.put("model", model(), socket=self.socket, metadata={"format": "pt"})
        out = os.path.join(self.directory, "out.safetensors")
        self.gpufd("get", "model", "-o", out, "--socket", self.socket)
        with open(out, "rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        self.assertEqual(header["__metadata__"], {"format": "pt"})
        self.assertEqual(header["2.weight"]["dtype"], "BF16")
        self.assertNotIn("transposed", header)  # safetensors has no words for it

    def put_twice(self, one, other):
        first, second = (gpufd.torch.put("model", state, socket=self.socket) for state in (one, other))
        self.assertEqual((first.digest, first.bytes), (second.digest, second.bytes))
        return gpufd.torch.load("model", socket=self.socket)

    def test_the_same_model_has_the_same_offsets_and_digest(self):
        """Wherever its storages lie, and whether it was put before."""
        m = model()
        state = {name: t.clone() for name, t in reversed(m.state_dict().items())}  # storages of other addresses
        again = {name: state[name] for name in m.state_dict()}
        plain = {name: t.clone() for name, t in again.items()}
        self.put_twice(plain, again)
        self.put_twice(m, m)
        with gpufd.get("model", socket=self.socket) as version:
            table = version[0].table
        gpufd.torch.put("model", m, socket=self.socket)
        with gpufd.get("model", socket=self.socket) as version:
            self.assertEqual(version[0].table, table)

    def test_a_bare_state_dict_leaves_the_modules_own_memory(self):
        """As docs/python.md says: its tensors move, and the module's stay."""
        m = torch.nn.Linear(4, 4)
        before, state = m.weight.data_ptr(), m.state_dict()
        gpufd.torch.put("model", state, socket=self.socket)
        self.assertEqual(m.weight.data_ptr(), before)
        self.assertNotEqual(state["weight"].data_ptr(), before)
        with torch.no_grad():
            m.weight.add_(1)  # it can be written
        self.assertFalse(torch.equal(m.weight, state["weight"]))

    def test_load_returns_the_order_of_the_state(self):
        a, b = torch.arange(8.0), torch.arange(3)
        state = {"z": a[:2], "whole": a, "b": b, "turned": torch.ones(2, 3).t(), "a": a[4:], "same": b, "empty": torch.zeros(0)}
        loaded = self.put_twice(state, {name: t.clone() if name == "turned" else t for name, t in state.items()})
        self.assertEqual(list(loaded), list(state))
        for name, t in state.items():
            self.assertTrue(torch.equal(loaded[name], t), name)
        m = model()
        gpufd.torch.put("model", m, socket=self.socket)
        self.assertEqual(list(gpufd.torch.load("model", socket=self.socket)), list(m.state_dict()))

    def test_only_tensors_of_a_type_that_torch_lacks_raise(self):
        path = os.path.join(self.directory, "small.safetensors")
        types = {"F32": 32, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
        entries, at = {}, 0
        for name, bits in types.items():
            entries[name] = {"dtype": name, "shape": [2, 4], "data_offsets": [at, at + bits]}
            at += bits
        header = json.dumps(entries).encode()
        with open(path, "wb") as f:
            f.write(len(header).to_bytes(8, "little") + header + bytes(range(at)))
        gpufd.put("small", path, socket=self.socket)
        state = gpufd.torch.load("small", socket=self.socket)
        self.assertEqual(set(state), set(types) & set(gpufd.torch.DTYPES))
        self.assertEqual(set(state.lacking), set(types) - set(state))
        self.assertEqual(state["F32"].view(torch.uint8).flatten().tolist(), list(range(32)))
        for name in state.lacking:
            with self.assertRaisesRegex(gpufd.UnavailableError, f"tensor '{name}' is of type {name}, which PyTorch"):
                state[name]
            self.assertRaises(gpufd.UnavailableError, state.get, name)
        for name in set(state) - {"F32"}:
            self.assertEqual((state[name].dtype, state[name].numel()), (gpufd.torch.DTYPES[name], 4 if name == "F4" else 8))
        self.assertRaises(KeyError, lambda: state["x"])
        self.assertEqual(state.get("x", 1), 1)
        gpufd.put("small", path, socket=self.socket)
        with gpufd.get("small", socket=self.socket) as version:
            version.save(self.directory)
        with open(os.path.join(self.directory, "part-0.safetensors"), "rb") as f:
            back = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        self.assertEqual({n: (e["dtype"], e["shape"]) for n, e in back.items()}, {n: (n, [2, 4]) for n in types})

    def test_shapes_that_torch_cannot_have(self):
        path = os.path.join(self.directory, "odd.safetensors")
        header = b'{"a":{"dtype":"U8","shape":[0,9223372036854775808],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
        with open(path, "wb") as f:
            f.write(len(header).to_bytes(8, "little") + header + b"x")
        gpufd.put("odd", path, socket=self.socket)
        self.assertRaisesRegex(gpufd.FormatError, r"tensor 'a' of U8 \[0, 9223372036854775808\]", gpufd.torch.load, "odd", socket=self.socket)

    def test_many_that_share_their_bytes(self):
        t = torch.arange(4)
        state = {f"t{i}": t for i in range(20_000)}
        gpufd.torch.put("tied", state, socket=self.socket)
        loaded = gpufd.torch.load("tied", socket=self.socket)
        self.assertEqual((list(loaded), loaded["t19999"].tolist()), (list(state), [0, 1, 2, 3]))

    def test_pairs_of_f4(self):
        """A byte of PyTorch's type is two of safetensors'. Its stand-in here is int8."""
        small = torch.arange(24, dtype=torch.int8)
        state = {"w": small.view(4, 6), "turned": (small + 1).view(4, 6).t(), "column": (small + 2).view(24, 1), "empty": small[:0].view(0, 5)}
        copies = {name: t.clone() for name, t in state.items()}
        with mock.patch.dict(gpufd.torch.DTYPES, {"F4": torch.int8}), mock.patch.dict(weights._OF_TYPE, {torch.int8: "F4"}):
            gpufd.torch.put("small", state, socket=self.socket)
            loaded = gpufd.torch.load("small", socket=self.socket)
            for name, t in copies.items():
                self.assertTrue(torch.equal(loaded[name], t), name)
            self.assertEqual(loaded["turned"].stride(), (1, 6))
            with self.assertRaisesRegex(gpufd.UsageError, "'scalar'"):
                gpufd.torch.put("small", {"w": small, "scalar": small[0]}, socket=self.socket)
            out = os.path.join(self.directory, "out.safetensors")
            self.gpufd("get", "small", "-o", out, "--socket", self.socket)
            with open(out, "rb") as f:
                header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            self.assertEqual({n: (e["dtype"], e["shape"]) for n, e in header.items()}, {"w": ("F4", [4, 12]), "column": ("F4", [24, 2]), "empty": ("F4", [0, 10])})
            gpufd.put("odd", out, socket=self.socket)  # and what PyTorch has no pairs for
            with mock.patch.object(weights, "_halved", lambda t: None):
                self.assertEqual(set(gpufd.torch.load("odd", socket=self.socket).lacking), set(header))

    def test_devices(self):
        gpufd.torch.put("model", {"w": torch.ones(3)}, socket=self.socket, device="cuda:1")
        with gpufd.Client(self.socket) as client:
            uuid = client.stat("model").parts[0].device
        for device in (None, 1, "cuda:1", torch.device("cuda", 1), uuid, uuid.lower().replace("gpu-", "GPU-"), "cpu", torch.device("cpu")):
            self.assertEqual(gpufd.torch.load("model", socket=self.socket, device=device)["w"].tolist(), [1, 1, 1])
        for device in (0, "cuda:0", "cuda", torch.device("cuda"), torch.device("cuda:0"), "GPU-" + "0" * 8 + "-0000" * 3 + "-" + "0" * 12):
            common.error_of(self, gpufd.MismatchError, "device", gpufd.torch.load, "model", socket=self.socket, device=device)
        for device in (-1, True, 1.5, "gpu0", "cuda:", "cuda:-1", "GPU-1", torch.device("meta"), [0]):
            with self.assertRaisesRegex(gpufd.UsageError, "a torch.device or a UUID", msg=device):
                gpufd.torch.load("model", socket=self.socket, device=device)

    def test_check_finds_what_is_not_kept(self):
        gpufd.torch.put("model", {"weight": torch.ones(2, 2)}, socket=self.socket)
        state = gpufd.torch.load("model", socket=self.socket)
        m = torch.nn.Linear(2, 2)
        m.register_buffer("cache", torch.empty(2, device="meta"), persistent=False)
        with self.assertRaisesRegex(gpufd.UsageError, "does not have: 'bias'.*copies.*: 'weight'; buffers without memory.*'cache'"):
            state.check(m)
        m.weight.data, m.bias, m.cache = state["weight"], None, torch.zeros(2)
        state.check(m)

    def test_errors_name_the_tensor(self):
        t = torch.randn(3)
        for bad in (1, torch.randn(2).to_sparse(), torch.zeros(1, dtype=torch.complex128), torch.empty(2, device="meta")):
            with self.assertRaisesRegex(gpufd.UsageError, "'bad'"):
                gpufd.torch.put("model", {"good": t, "bad": bad}, socket=self.socket)
        with mock.patch.object(weights, "_over", mock.Mock(side_effect=RuntimeError("out of memory"))), self.assertRaises(RuntimeError) as caught:
            gpufd.torch.put("model", {"good": t}, socket=self.socket)
        self.assertIn("'good'", "".join(caught.exception.__notes__))

    def test_tensors_keep_the_lease(self):
        gpufd.torch.put("model", {"a": torch.arange(5.0), "b": torch.ones(2, 2, dtype=torch.int8)}, socket=self.socket)
        state = gpufd.torch.load("model", socket=self.socket)
        with gpufd.Client(self.socket) as client:
            holders = lambda: [h.pid for h in client.stat("model").holders]  # noqa: E731
            wait_for(lambda: holders() == [os.getpid()], "the lease")
            a = state["a"][1:3]
            del state  # without a collection: nothing of it is in a cycle
            self.assertEqual((holders(), a.tolist()), ([os.getpid()], [1.0, 2.0]))
            del a
            gc.disable()
            self.addCleanup(gc.enable)
            wait_for(lambda: holders() == [], "the end of the lease")

    def test_close_with_tensors_alive_names_them(self):
        gpufd.torch.put("model", {"weight": torch.arange(5.0)}, socket=self.socket)
        (part,) = gpufd.get("model", socket=self.socket).take()
        state = gpufd.torch.tensors(part)
        with self.assertRaisesRegex(gpufd.InUseError, "tensor 'weight'"):
            part.close()
        del state
        part.close()

    def test_labels_parts_and_what_holds_no_tensors(self):
        for i in range(2):
            gpufd.torch.put("two", {"w": torch.full((3,), float(i))}, socket=self.socket, part=i, parts=2, transaction="t", labels={"a": "1"})
        self.assertEqual(gpufd.torch.load("two", socket=self.socket, part=1, labels={"a": "1"})["w"].tolist(), [1, 1, 1])
        self.assertRaises(gpufd.UsageError, gpufd.torch.load, "two", socket=self.socket)
        common.error_of(self, gpufd.MismatchError, "labels", gpufd.torch.load, "two", socket=self.socket, part=0, labels={"a": "2"})
        gpufd.put("bytes", b"x", socket=self.socket)
        self.assertRaises(gpufd.FormatError, gpufd.torch.load, "bytes", socket=self.socket)

    def test_what_cannot_be_kept_is_refused_and_unchanged(self):
        t = torch.randn(3)
        there = t.data_ptr()
        for wrong in ({"labels": {"step": 3}}, {"metadata": {"step": 3}}, {"transaction": 5}, {"expect_version": "1"}, {"timeout": -1}, {"part": "0"}):
            with self.assertRaises(gpufd.UsageError, msg=wrong):
                gpufd.torch.put("x", {"a": t}, socket=self.socket, **wrong)
            self.assertEqual(t.data_ptr(), there)
        for bad in ({"a": t, "b": 1}, {"a": t, "b": torch.randn(2).to_sparse()}, {"a": t, "b": torch.zeros(1, dtype=torch.complex128)}, [t], {}):
            with self.assertRaises(gpufd.UsageError, msg=bad):
                gpufd.torch.put("model", bad, socket=self.socket)
        with gpufd.Client(self.socket) as client:
            self.assertIsNone(client.find("model"))

    def test_a_put_that_fails_leaves_the_model_as_it_was(self):
        gpufd.torch.put("model", {"w": torch.ones(3)}, socket=self.socket)
        m = model()
        x = torch.randn(3, 32)
        before = m[1](m[0](x))
        with self.assertRaises(gpufd.KeeperError):
            gpufd.torch.put("model", m, socket=self.socket, expect_version=7)
        original = _deposit.Deposit.deliver

        def refuse(deposit):  # which is read-only by then
            raise gpufd.KeeperError("conflict", "another was quicker")

        _deposit.Deposit.deliver = refuse
        try:
            with self.assertRaises(gpufd.KeeperError):
                gpufd.torch.put("model", m, socket=self.socket)
        finally:
            _deposit.Deposit.deliver = original
        self.assertTrue(torch.equal(m[1](m[0](x)), before))
        with torch.no_grad():
            m[0].bias.add_(1)  # it can be written
        with gpufd.Client(self.socket) as client:
            self.assertEqual((client.stat("model").version, client.stat("model").reserved_bytes), (1, 0))

    def test_all_devices_are_waited_for(self):
        """Also that of tensors which move to another. A device is not needed to see it."""
        blocks, waited = [mock.Mock(device=torch.device("cuda", 1)), mock.Mock(device=torch.device("cpu"))], set()
        with contextlib.ExitStack() as patches:
            for where, name, what in (
                (weights, "_blocks", lambda state: blocks), (weights, "_plan", mock.Mock()), (weights, "_where", lambda *args: (gpufd.CUDA, 0)),
                (weights, "_move", lambda *args: self.assertEqual(waited, {0, 1})), (_deposit, "Deposit", mock.Mock(return_value=mock.Mock(device=0, kind=gpufd.CUDA))),
                (torch.cuda, "synchronize", waited.add),
            ):  # fmt: skip
                patches.enter_context(mock.patch.object(where, name, what))
            gpufd.torch.put("model", {}, socket=self.socket)
        self.assertEqual(waited, {0, 1})

    def test_types(self):
        state = {name: torch.zeros(16, dtype=torch.uint8).view(dtype) for name, dtype in gpufd.torch.DTYPES.items()}
        gpufd.torch.put("types", state, socket=self.socket)
        back = gpufd.torch.load("types", socket=self.socket)
        self.assertEqual({n: t.dtype for n, t in back.items()}, gpufd.torch.DTYPES)

    def test_assign(self):
        if "assign" not in torch.nn.Module.load_state_dict.__code__.co_varnames:
            self.skipTest(f"PyTorch {torch.__version__} has no load_state_dict(assign=True)")
        m, other = model(), model()
        gpufd.torch.put("model", m, socket=self.socket)
        other.load_state_dict(gpufd.torch.load("model", socket=self.socket), assign=True)
        for name, t in other.state_dict().items():
            self.assertTrue(torch.equal(t, m.state_dict()[name]), name)

    def test_a_process_ends_in_order_with_tensors(self):
        gpufd.torch.put("model", {"w": torch.arange(5.0)}, socket=self.socket)
        text = f"import sys; sys.path[:0] = {sys.path!r}; import gpufd.torch; w = gpufd.torch.load('model', socket={self.socket!r})['w']; print(w.sum().item())"
        done = subprocess.run([sys.executable, "-B", "-c", text], capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "10.0\n", ""))
        self.assertTrue(program())


if __name__ == "__main__":
    unittest.main()
