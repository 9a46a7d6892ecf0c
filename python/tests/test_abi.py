"""Every structure, prototype and number of libcuda that the package writes down, against the
driver's ABI as data: abi/cuda-13.0.json."""

import ctypes
import json
import unittest

import common
from gpufd.share import counter as _counter
from gpufd.memory import cuda as _cuda
from gpufd.keeper import deposit as _deposit
from gpufd.memory import devicedigest as _devicedigest
from gpufd.memory import libcuda as _driver

LAYOUTS = {
    "CUmemLocation": _driver.MemLocation,
    "CUmemAllocationProp": _driver.AllocationProp,
    "CUmemAccessDesc": _driver.AccessDesc,
    "CUipcMemHandle": _driver.IpcHandle,
    "CUipcEventHandle": _driver.IpcHandle,
    "CUuuid": _driver.Uuid,
    "CUcheckpointLockArgs": _driver.LockArgs,
    "CUcheckpointGpuPair": _driver.GpuPair,
    "CUcheckpointRestoreArgs": _driver.RestoreArgs,
}
NUMBERS = {
    "CUDA_ERROR_NOT_READY": _driver.NOT_READY,
    "CUDA_ERROR_NO_DEVICE": _driver.NO_DEVICE,
    "CUDA_ERROR_OUT_OF_MEMORY": _deposit.OUT_OF_MEMORY,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": _driver.COMPUTE_MAJOR,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": _driver.COMPUTE_MINOR,
    "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": _driver.HANDLE_TYPE_FD_SUPPORTED,
    "CU_DEVICE_ATTRIBUTE_MPS_ENABLED": _driver.MPS_ENABLED,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": _devicedigest._MULTIPROCESSORS,
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": _driver.HANDLE_TYPE_FD,
    "CU_MEM_LOCATION_TYPE_DEVICE": _driver.LOCATION_DEVICE,
    "CU_MEM_ALLOCATION_TYPE_PINNED": _driver.ALLOCATION_PINNED,
    "CU_MEM_ACCESS_FLAGS_PROT_READ": _driver.PROT_READ,
    "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": _driver.PROT_READWRITE,
    "CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS": _cuda._IPC_LAZY_PEER_ACCESS,
    "CU_EVENT_DISABLE_TIMING": _cuda.EVENT_DISABLE_TIMING,
    "CU_EVENT_INTERPROCESS": _counter.EVENT_INTERPROCESS,
    "CU_STREAM_NON_BLOCKING": _counter.STREAM_NON_BLOCKING,
    "CU_STREAM_WAIT_VALUE_GEQ": _counter.WAIT_GEQ,
    "CU_STREAM_MEM_OP_WAIT_VALUE_64": _driver.WAIT_64,
    "CU_STREAM_MEM_OP_WRITE_VALUE_64": _driver.WRITE_64,
    **{f"CU_PROCESS_STATE_{state.upper()}": i for i, state in enumerate(_driver.PROCESS_STATES)},
}
_SIZES = {
    "char": 1, "signed char": 1, "unsigned char": 1, "short": 2, "unsigned short": 2, "int": 4, "unsigned int": 4,
    "long": 8, "unsigned long": 8, "long long": 8, "unsigned long long": 8, "size_t": 8, "uint32_t": 4, "uint64_t": 8,
}  # fmt: skip


class Abi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(common.ROOT / "abi" / "cuda-13.0.json") as f:
            cls.abi = json.load(f)
        cls.constants = {c["name"]: c["value"] for group in cls.abi["enums"].values() for c in group}
        cls.functions = {f["symbol"]: f for f in [*cls.abi["older_functions"], *cls.abi["functions"]]}

    def root(self, name):
        """What a type comes to when its typedefs are followed."""
        name = name.removeprefix("const ").strip()
        while name in self.abi["typedefs"]:
            name = self.abi["typedefs"][name]
        return name

    def size(self, name):
        name = self.root(name)
        if name.endswith("*"):
            return 8
        if name.startswith("enum "):
            return 4
        if name.startswith("struct "):
            return self.abi["structs"][name.removeprefix("struct ")]["size"]
        return _SIZES[name]

    def test_numbers(self):
        for name, value in NUMBERS.items():
            with self.subTest(name):
                self.assertEqual(value, self.constants[name])
        for value in _driver._NOT_HERE:
            self.assertIn(value, self.constants.values())
        self.assertEqual(_driver._NOT_HERE, tuple(self.constants[f"CUDA_ERROR_{name}"] for name in
                         ("NO_DEVICE", "NOT_SUPPORTED", "SYSTEM_DRIVER_MISMATCH", "COMPAT_NOT_SUPPORTED_ON_DEVICE")))  # fmt: skip

    def test_all_structures_are_here(self):
        ours = {x for x in vars(_driver).values() if isinstance(x, type) and issubclass(x, ctypes.Structure)}
        self.assertEqual(ours, {*LAYOUTS.values(), _driver.AllocFlags, _driver.MemOp})

    def test_layouts(self):
        for name, ours in LAYOUTS.items():
            theirs = self.abi["structs"][self.root(name).removeprefix("struct ")]
            with self.subTest(name):
                self.assert_layout(ours, theirs["fields"], 0)
                self.assertEqual((ctypes.sizeof(ours), ctypes.alignment(ours)), (theirs["size"], theirs["align"]))

    def assert_layout(self, ours, fields, base):
        """Field for field, by place and size: names may differ."""
        self.assertEqual(len(ours._fields_), len(fields))
        for (name, kind, *_), theirs in zip(ours._fields_, fields):
            at = getattr(ours, name)
            self.assertEqual((base + at.offset, at.size), (theirs["offset"], theirs["size"]), name)
            if theirs.get("fields"):
                self.assert_layout(kind, theirs["fields"], theirs["offset"])

    def test_operations_of_a_batch(self):
        """One structure has the members of the union that wait and write, and the room of all."""
        union = self.abi["structs"]["CUstreamBatchMemOpParams_union"]
        self.assertEqual((ctypes.sizeof(_driver.MemOp), ctypes.alignment(_driver.MemOp)), (union["size"], union["align"]))
        ours = [(getattr(_driver.MemOp, name).offset, getattr(_driver.MemOp, name).size) for name, _ in _driver.MemOp._fields_]
        for name in ("CUstreamMemOpWaitValueParams_st", "CUstreamMemOpWriteValueParams_st"):
            theirs = self.abi["structs"][name]["fields"]
            self.assertEqual(ours[:5], [(f["offset"], f["size"]) for f in theirs], name)

    def test_prototypes(self):
        """As many arguments, each as large as the driver takes it: no handle is cut."""
        for symbol, ours in _driver._PROTOTYPES.items():
            theirs = self.functions[symbol]["params"]
            with self.subTest(symbol):
                self.assertEqual(len(ours), len(theirs))
                for kind, parameter in zip(ours, theirs):
                    self.assertEqual(ctypes.sizeof(kind), self.size(parameter["type"]), parameter["name"])
                    integer = issubclass(kind, ctypes._SimpleCData) and kind._type_ not in "PzZ"
                    self.assertEqual(integer, not self.root(parameter["type"]).endswith("*") and not issubclass(kind, ctypes.Structure), parameter["name"])

    def test_every_call_has_a_prototype(self):
        """A call by a name that is not in the table would fail only where it is made."""
        import re

        for path in (common.PACKAGE / "gpufd").glob("*.py"):
            for name in re.findall(r"\"(cu[A-Z][A-Za-z0-9]*(?:_v\d)?)\"", path.read_text()):
                if name not in _driver._PROBES:
                    self.assertIn(name, _driver._PROTOTYPES, path.name)


if __name__ == "__main__":
    unittest.main()
