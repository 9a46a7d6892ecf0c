"""One rank's side of a broadcast: docs/howto-broadcast.md."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from ..errors import Error, LostError, MismatchError, NotFoundError, TimedOutError, UnavailableError, UsageError, WireError
from ..keeper.client import Client
from ..keeper.deposit import Deposit
from ..keeper.get import get
from ..keeper.tables import compact
from ..memory.drivers import driver_kind
from ..share.kept import check_labels
from ..wire.records import CUDA, driver_name
from . import transport as _transport
from .plan import Part, Plan, Rank, Result, mover
from .watch import Watch, first_line

PIECES = {"nccl": 1 << 30, "gloo": 16 << 20}  # bytes of a piece; each costs NCCL a start, beside which a GiB over NVLink is long
GIVE_UP = 1.0  # seconds
MAX_SAID = 64 << 20  # bytes that a rank tells others at once


class Broadcast:
    """One rank's side."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.o = name, options
        self.rank, self.world = number("RANK"), number("WORLD_SIZE")
        self.kind = driver_kind(None)
        self.backend = options.backend or ("nccl" if self.kind == CUDA else "gloo")
        if self.backend == "nccl" and self.kind != CUDA:
            raise UsageError("NCCL moves memory of GPUs alone: with the software driver it is Gloo")
        if self.backend == "gloo" and self.kind == CUDA:
            raise UsageError("Gloo moves memory of CPUs alone here: for GPUs it is NCCL")
        self.time = datetime.timedelta(seconds=options.timeout)
        self.result = Result(name)
        self.deposits: list[Deposit] = []
        self.watch: Watch | None = None

    def meet(self, failed: Callable[[str], None]) -> Watch:
        """Meet the other ranks, and begin to watch them. failed is told, in a thread of the
        watch, why this rank has to end."""
        at_step("start")
        self.join()
        self.watch = Watch(self.store(), self.rank, self.world, self.o.timeout, failed)
        self.watch.start()
        return self.watch

    def connect(self) -> None:
        """Connect to the other ranks, which are watched by now."""
        at_step("joined")
        dist.init_process_group("gloo", store=dist.PrefixStore("gpufd", self.store()), rank=self.rank, world_size=self.world, timeout=self.time)
        at_step("met")

    def store(self, serve: bool = False) -> Any:
        """A connection to the store of the rendezvous, which torchrun's agent has, or rank 0."""
        store = dist.TCPStore(
            os.environ.get("MASTER_ADDR", ""), number("MASTER_PORT"), self.world, is_master=serve, timeout=self.time, wait_for_workers=False
        )  # fmt: skip
        return dist.PrefixStore(f"gpufd/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)

    def join(self) -> None:
        """Wait until all ranks have come."""
        deadline = time.monotonic() + self.o.timeout
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            self.kept_store = self.store(serve=self.rank == 0 and not agent)
        except RuntimeError as e:
            raise TimedOutError(f"rank 0 has not come within {self.o.timeout:g} s: {first_line(e)}") from None
        try:
            self.await_all(self.kept_store, deadline)
        except RuntimeError as e:
            raise LostError(f"rank 0, or torchrun's agent, was lost while the ranks met: {first_line(e)}") from None

    def await_all(self, store: Any, deadline: float) -> None:
        """Wait until all have said that they are here; TimedOutError names those that have not."""
        store.add(f"here/{self.rank}", 1)
        store.add("here", 1)
        while store.add("here", 0) < self.world:
            if store.add("given up", 0):
                raise TimedOutError(store.get("missing").decode())
            if time.monotonic() > deadline:
                missing = [str(r) for r in range(self.world) if not store.add(f"here/{r}", 0)]
                text = f"rank {', '.join(missing)} has not come within {self.o.timeout:g} s"
                store.set("missing", text)
                store.add("given up", 1)
                if self.rank == 0:
                    time.sleep(GIVE_UP)  # the store goes with this process: let the others read that
                raise TimedOutError(text)
            time.sleep(0.02)

    # Messages between ranks.

    def gather(self, value: Any) -> list[Any]:
        """A value of each rank, as JSON: nobody's pickles are read."""
        mine = compact(value)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(mine)]))
        most = max(checked(int(n)) for n in sizes)
        raw = [bytearray(most) for _ in range(self.world)]
        dist.all_gather([buffer(r) for r in raw], buffer(bytearray(mine.ljust(most))))
        return [json.loads(r[: int(n)]) for r, n in zip(raw, sizes)]

    def from_rank(self, source: int, value: bytes, group: Any = None) -> bytes:
        """Bytes of one rank, at all."""
        size = torch.tensor([len(value)])
        dist.broadcast(size, source, group=group)
        raw = bytearray(value or bytes(checked(int(size))))
        if raw:
            dist.broadcast(buffer(raw), source, group=group)
        return bytes(raw)

    # The steps.

    def run(self, client: Client) -> Result:
        plan = self.plan(client)
        ranks = self.ranks(client, plan)
        source, needing = ranks[0].keeper, []
        for r in ranks:
            if not r.has and r.keeper != source and r.keeper not in needing:
                needing.append(r.keeper)
        me = ranks[self.rank]
        self.result.ranks = len(needing)
        self.result.skipped, self.result.version = me.keeper not in needing, me.version
        if needing:
            for part in plan.parts:
                self.move(client, plan, part, ranks, [source, *needing])
            self.commit(client, plan, me)
        return self.result

    def plan(self, client: Client) -> Plan:
        """Return rank 0's plan, at all ranks."""
        plan = Plan(self.name, 0, {}, (), "")
        if self.rank == 0:
            try:
                info = client.stat(self.name)
                check_labels(self.name, info.labels, self.o.labels)
                plan = Plan.of(info)
            except (Error, OSError) as e:
                plan = Plan(self.name, 0, {}, (), "", str(e), getattr(e, "reason", "failed"))
        said = json.loads(self.from_rank(0, compact(asdict(plan)) if self.rank == 0 else b""))
        if said["error"]:
            kind = {"labels": MismatchError, "not-found": NotFoundError}.get(said["reason"], Error)
            raise kind(f"rank 0: {said['error']}", reason=said["reason"])
        said["parts"] = tuple(Part(**p) for p in said["parts"])
        return Plan(**said)

    def ranks(self, client: Client, plan: Plan) -> list[Rank]:
        """All ranks' descriptions of themselves; an error if one of them has no keeper."""
        host, me = socket.gethostname(), None
        try:
            status, info = client.status(), client.find(self.name)
            keeper = f"{boot_id()} {status.pid} {status.since}"
            me = Rank(self.rank, host, keeper, plan.is_served(info), info.version if info else 0)
        except (Error, OSError) as e:
            me = Rank(self.rank, host, "", False, 0, str(e))
        ranks = [Rank(**r) for r in self.gather(asdict(me))]
        for r in ranks:
            if r.error:
                raise Error(f"rank {r.rank} on {r.host}: {r.error}")
        at_step("known")
        return ranks

    def move(self, client: Client, plan: Plan, part: Part, ranks: list[Rank], keepers: list[str]) -> None:
        """Move one part from the first of the keepers to the others."""
        movers = [mover(ranks, keeper, part.part) for keeper in keepers]
        control, data = dist.new_group(sorted(movers), timeout=self.time, backend="gloo"), None
        if self.backend == "nccl":
            data = dist.new_group(sorted(movers), timeout=self.time, backend="nccl")
        if self.rank not in movers:
            return
        source = movers[0]
        if self.rank == source:
            self.send(plan, part, source, control, data or control)
        else:
            self.take(client, plan, part, ranks, source, control, data or control)

    def send(self, plan: Plan, part: Part, source: int, control: Any, data: Any) -> None:
        with get(self.name, socket=self.o.socket, part=part.part, timeout=self.o.timeout) as version:
            attached = version[0]
            if (attached.data.version, attached.data.digest) != (plan.version, part.digest):
                raise Error(f"another version of {self.name} was committed to rank 0's keeper: broadcast that")
            about = {"device": attached.memory.ordinal, "driver": self.kind, "layout": attached.data.layout}
            self.from_rank(source, compact(about), control)
            self.from_rank(source, compact(attached.data.table) if attached.data.table is not None else b"", control)
            dist.barrier(group=control)  # all have memory
            _, seconds = _transport.transfer(attached.memory, part.bytes, source, data, self.piece, self.o.timeout)
            self.result.sent += part.bytes
            self.result.seconds += seconds

    def take(self, client: Client, plan: Plan, part: Part, ranks: list[Rank], source: int, control: Any, data: Any) -> None:
        about = json.loads(self.from_rank(source, b"", control))
        table = self.from_rank(source, b"", control)
        if about["driver"] != self.kind:
            raise UnavailableError(f"rank {source} uses the {driver_name(about['driver'])} driver, and this one {driver_name(self.kind)}")
        device = about["device"] if self.o.device is None else self.o.device
        deposit = Deposit(
            client, plan.name, part.bytes, device=device, driver=self.kind, labels=plan.labels, part=part.part, parts=len(plan.parts),
            transaction=plan.transaction, expect=ranks[self.rank].version, chunk=part.bytes,
        )  # fmt: skip
        self.deposits.append(deposit)
        at_step("booked")
        memory = deposit.grow(part.bytes)
        dist.barrier(group=control)
        got, seconds = _transport.transfer(memory, part.bytes, source, data, self.piece, self.o.timeout)
        if got != part.digest:
            raise Error(f"part {part.part} has come with the digest {got}, and has {part.digest} at rank {source}: bytes were changed on the way")
        self.result.received += part.bytes
        self.result.seconds += seconds
        deposit.prepare(table, got, str(about.get("layout") or ""))

    @property
    def piece(self) -> int:
        return int(self.o.piece or PIECES[self.backend])

    def commit(self, client: Client, plan: Plan, me: Rank) -> None:
        """Deliver what has come, when all ranks have all of it. A commit is one small request
        to a keeper of the same machine."""
        at_step("received")
        self.gather(len(self.deposits))
        at_step("commit")
        for deposit in self.deposits:
            deposit.deliver()
        at_step("committed")
        self.gather(len(self.deposits))
        if not self.result.skipped:
            info = client.stat(self.name)
            if not plan.is_served(info):
                raise Error(f"{self.name} is not served by {client.socket} as rank 0's keeper has it: another version was committed")
            self.result.version = info.version

    def close(self) -> None:
        """Give back what this rank has of memory."""
        for deposit in self.deposits:
            deposit.close()


def checked(n: int) -> int:
    """The length of what a rank says, if that can be."""
    if not 0 <= n <= MAX_SAID:
        raise WireError(f"a rank says {n} bytes, and {MAX_SAID} are taken")
    return n


def buffer(raw: bytearray) -> Any:
    """A tensor over bytes."""
    return torch.frombuffer(raw, dtype=torch.uint8)


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as f:
        return f.read().strip()


def number(name: str) -> int:
    """A number of the environment that torchrun makes."""
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        raise UsageError(f"{name} is {os.environ.get(name, 'not set')}: start the ranks by torchrun, which sets it") from None


def at_step(step: str) -> None:
    """A rank has come to a step. Tests stop a rank here."""
