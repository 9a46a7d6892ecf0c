"""The driver's checkpoint of a process: :func:`checkpoint`. It uses neither PyTorch nor a context of its own."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Mapping
from typing import Any

from .. import arguments, log
from ..errors import DriverError, Error, InUseError, LostError, MismatchError, TimedOutError, UnavailableError, UsageError
from ..memory import libcuda as cu
from ..memory import mapped
from ..memory.device import Device
from ..memory.drivers import device_uuid, place_of
from ..objects import NotCopied
from ..wire.records import CUDA

TIMEOUT = 60.0
_MOST = (1 << 32) - 1  # milliseconds that the driver can be told
_CALLS = ("GetState", "Lock", "Checkpoint", "Restore", "Unlock")


def checkpoint(pid: int, *, timeout: float | None = TIMEOUT) -> Checkpoint:
    """Move a process' device memory and contexts into its host memory, and hold its CUDA calls until they are restored.

        with gpufd.torch.checkpoint(pid):
            ...                                # the process has nothing on a GPU; its Python goes on

    The device has room for others meanwhile. Addresses, streams and captured graphs are as they were after the restore.
    A call of CUDA in the process waits for that.

    timeout     seconds to wait for the work that the process has queued; None for no bound

    A process that has memory of others mapped would be lost. So the call raises InUseError, and changes nothing, if gpufd
    has mapped some there: the process has to detach before (Model.sleep, Attachment.detach). What other libraries
    have imported it cannot see: NCCL's communicators have to be destroyed before.

    If the process is checkpointed already, the call only returns an object that restores it: the earlier caller may have died.
    A process may checkpoint itself. Its calls of CUDA wait then, too, so the thread that restores it makes none before.

    Raises UnavailableError where the process or the driver cannot do this, LostError if there is no such process,
    TimedOutError, and DriverError of the step that failed. After an error, or an interrupt, the process goes on.
    """
    arguments.number("a process", pid, 1, (1 << 31) - 1)
    milliseconds = _milliseconds(timeout)
    _check_cuda(pid)
    made = Checkpoint(pid, _driver())
    state = made.state
    if state == "checkpointed":
        return made
    if state != "running":
        raise UsageError(f"process {pid} is {state}, and only a running one can be checkpointed (cuda-checkpoint --action unlock --pid {pid} frees a locked one)")
    _check_mapped(pid)
    try:
        made._lock(milliseconds)
        made._checkpoint()
    except Error:  # of a step, which was undone
        raise
    except BaseException:
        made._undo()
        raise
    return made


def _milliseconds(timeout: float | None) -> int:
    """Return the driver's word for a timeout. 0 means no bound there."""
    seconds = arguments.step(timeout)
    return 0 if math.isinf(seconds) or seconds * 1000 > _MOST else max(1, int(seconds * 1000))


# Checks before anything is done.


@contextlib.contextmanager
def _looking_at(pid: int) -> Any:
    try:
        yield
    except (ProcessLookupError, FileNotFoundError):
        raise LostError(f"there is no process {pid}") from None
    except PermissionError as e:
        raise UnavailableError(f"this user may not look at process {pid}, let alone checkpoint it: {e}") from None


def _check_mapped(pid: int) -> None:
    """Raise InUseError if gpufd has mapped memory of others in the process."""
    with _looking_at(pid):
        n = mapped.imports_of(pid)
    if n:
        raise InUseError(
            f"process {pid} has memory of other processes mapped ({n} import{'s' if n > 1 else ''}), and a checkpoint would lose it: "
            "have it detach first (gpufd.torch.Model.sleep, Attachment.detach)"
        )


def _check_cuda(pid: int) -> None:
    with _looking_at(pid), open(f"/proc/{pid}/maps") as f:
        if not any("/libcuda.so" in line for line in f):
            raise UnavailableError(f"process {pid} does not use CUDA: it has not loaded libcuda")


def _driver() -> cu.Libcuda:
    """Return the driver, if it has all the functions."""
    lib = cu.load()
    try:
        for name in _CALLS:
            lib.function(f"cuCheckpointProcess{name}")
    except UnavailableError as e:
        raise UnavailableError(f"this driver has no checkpoints of processes, which came with driver 570 (CUDA 12.8): {e}") from None
    return lib


class Checkpoint(NotCopied):
    """A process that is checkpointed. Whoever has it calls restore, or leaves that to ``with``.

    pid         the process. It stays as it is if this object goes, or the process that made it
    """

    def __init__(self, pid: int, lib: cu.Libcuda) -> None:
        self.pid, self._cu = pid, lib
        self._restored = False

    def __repr__(self) -> str:
        return f"<gpufd.torch.Checkpoint of process {self.pid}{', restored' if self._restored else ''}>"

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    @property
    def state(self) -> str:
        """The driver's word for the process: running, locked, checkpointed or failed."""
        out = ctypes.c_int()
        self._call("GetState", "its state is not known", ctypes.byref(out))
        there = cu.PROCESS_STATES
        return there[out.value] if 0 <= out.value < len(there) else f"state {out.value}"

    def restore(self, device: Mapping[Any, Device] | None = None) -> None:
        """Bring everything back onto the device, and let the process go on. A second call does nothing.

        device maps a device that the process had to one that takes its place, of the same kind and with room: {0: 1}, or
        by UUIDs. The device that is given up takes the other one's place, if that is visible here. A process that has
        checkpointed itself cannot say this: its calls of CUDA, which look for devices, wait.

        If the driver cannot restore, the process stays checkpointed: try again, when the device has room.
        """
        if self._restored:
            return
        if device and self.pid == os.getpid():
            raise UsageError("a process cannot restore itself to another device: restore it from another process, or without device")
        args = _pairs(device) if device else None
        try:
            self._call("Restore", "it is checkpointed still: call restore again", None if args is None else ctypes.byref(args))
        except DriverError:
            if self.state != "locked":  # an earlier call has restored it, and could not unlock it
                raise
        self._call("Unlock", "it is restored, but its calls of CUDA wait still: call restore again", None)
        self._restored = True
        log.debug("restored process %d", self.pid)

    def _lock(self, milliseconds: int) -> None:
        try:
            self._call("Lock", "it was not checkpointed, and goes on", ctypes.byref(cu.LockArgs(milliseconds)))
        except DriverError as e:
            if e.number != cu.NOT_READY:
                raise
            raise TimedOutError(f"process {self.pid} was not locked within {milliseconds / 1000:g} s: its queued work takes longer; it goes on") from e
        try:
            _check_mapped(self.pid)  # again: it may have attached meanwhile
        except BaseException:
            self._unlock()
            raise
        log.debug("locked process %d", self.pid)

    def _checkpoint(self) -> None:
        try:
            self._call("Checkpoint", "", None)
        except DriverError as e:
            after = "it was unlocked, and goes on" if self._unlock() else "it is locked still, and could not be unlocked"
            raise _also(e, f"process {self.pid}: {after}") from None
        log.debug("checkpointed process %d", self.pid)

    def _undo(self) -> None:
        """Let the process go on, however far the steps came."""
        with contextlib.suppress(Error):
            state = self.state
            if state == "checkpointed":
                self._call("Restore", "", None)
            if state != "running":
                self._unlock()

    def _unlock(self) -> bool:
        """Unlock after a failure, and return whether that succeeds."""
        return self._cu.code("cuCheckpointProcessUnlock", self.pid, None) == 0

    def _call(self, step: str, after: str, *args: Any) -> None:
        """Make a step. after says of an error how the process is then."""
        try:
            self._cu.call(f"cuCheckpointProcess{step}", self.pid, *args)
        except DriverError as e:
            if not os.path.exists(f"/proc/{self.pid}"):
                raise LostError(f"process {self.pid} has ended: {e}") from None
            raise _also(e, f"process {self.pid}: {after}") if after else e from None


def _also(e: DriverError, text: str) -> DriverError:
    return DriverError(e.function, e.number, e.name, f"{e.text}; {text}", reason=e.reason)


def _pairs(device: Mapping[Any, Device]) -> cu.RestoreArgs:
    """Return the arguments of a restore: the driver wants each device of the process, and each once."""
    wanted = {place_of(old, CUDA): place_of(new, CUDA) for old, new in device.items()}
    if len({*wanted.values()}) < len(wanted):
        raise UsageError(f"two devices cannot both be restored to one: {wanted}")
    here = range(cu.load().device_count())
    for i in (*wanted, *wanted.values()):
        if i not in here:
            raise MismatchError(f"there is no device {i} here, but {len(here)}", reason="device")
    taken = {*wanted.values()}
    given_up = [old for old in wanted if old not in taken]
    for old in here:
        if old not in wanted:
            wanted[old] = given_up.pop() if old in taken else old
    uuids = [(device_uuid(CUDA, old), device_uuid(CUDA, new)) for old, new in sorted(wanted.items())]
    pairs = (cu.GpuPair * len(uuids))(*(cu.GpuPair(cu.Uuid.from_buffer_copy(a), cu.Uuid.from_buffer_copy(b)) for a, b in uuids))
    return cu.RestoreArgs(pairs, len(pairs))
