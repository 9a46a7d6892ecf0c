"""The broker, by the tables that Go's has (internal/broker/testdata), and by events that do not belong."""

import ast
import dataclasses
import json
import typing
import unittest
from fractions import Fraction

import common
from gpufd.share.broker import Broker, Options
from gpufd.share.broker import events as e
from gpufd.wire import records as wire
from gpufd.wire.peer import Peer

TABLES = common.ROOT / "internal" / "broker" / "testdata"
EVENTS = {kind.__name__: kind for kind in typing.get_args(e.Event)}
CODES = ("no such offer", "access", "driver", "busy", "version", "bad record", "timed out", "not allowed", "too fast", "not supported", "other memory", "several parts")


# From JSON: Go's names of fields, times in milliseconds, and durations in nanoseconds.


def record_of(said):
    memory = said.pop("Memory", {})
    record = wire.Offer(memory.pop("Kind", 0), said.pop("Access", 0), 1, bytes(16), 1, 1, 1, memory.pop("Generation", 0), 0, 1, said.pop("Name", ""),
                        cursor_size=said.pop("CursorSize", 0))  # fmt: skip
    if said or memory:
        raise ValueError(f"a record with {said} and {memory}")
    return record


def seconds(nanoseconds):
    return Fraction(nanoseconds, 10**9) if nanoseconds else None


FIELDS = {
    "Want": lambda said: wire.Attach(**named({"Driver": 0, "Access": 0, **said})),
    "Peer": lambda said: Peer(said.get("PID", 0), said.get("UID", 0), said.get("GID", 0)),
    "Terms": lambda said: e.Terms(**named(said)),
    "Record": record_of,
    "Fence": e.Fence,
    "Reason": e.Reason,
    "Idle": seconds,
    "Grace": seconds,
}


def snake(name):
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


def named(said):
    return {snake(name): FIELDS.get(name, lambda value: value)(value) for name, value in said.items()}


def event_of(said):
    ((name, fields),) = said.items()
    return EVENTS[name](**named(fields))


# To JSON, without fields that are zero.


def value_of(name, value):
    if isinstance(value, wire.Refuse):
        return {"Code": CODES[value.code - 1], "Text": value.text}
    if isinstance(value, e.Peers):
        return pruned({"List": [pruned({"PID": p.pid, "UID": p.uid, "GID": p.gid}) for p in value.peers], "More": value.more})
    if isinstance(value, e.Reason):
        return value.value
    return int(value * 1000) if name == "at" else value


def pruned(fields):
    return {name: value for name, value in fields.items() if value}


def action_of(action):
    fields = {f.name: value_of(f.name, getattr(action, f.name)) for f in dataclasses.fields(action)}
    return {type(action).__name__: pruned({"".join(part.capitalize() for part in name.split("_")): value for name, value in fields.items()})}


class Tables(unittest.TestCase):
    def test_all(self):
        if not TABLES.is_dir():
            self.skipTest(f"there is no {TABLES}")
        files = sorted(TABLES.glob("*.json"))
        self.assertTrue(files)
        seen = set()
        for file in files:
            for table in json.loads(file.read_text()):
                with self.subTest(f"{file.name}: {table['About']}"):
                    seen |= self.run_table(table)
        self.assertEqual(seen, set(EVENTS), "each event is in a table")

    def run_table(self, table):
        broker, seen = Broker(Options(**named(table["Options"]))), set()
        for number, step in enumerate(table["Steps"], 1):
            event = event_of(step["Event"])
            seen.add(type(event).__name__)
            then = [action_of(a) for a in broker.step(Fraction(step["At"], 1000), event)]
            self.assertEqual(then, step["Then"], f"step {number}, {type(event).__name__}")
        return seen


class Pure(unittest.TestCase):
    def test_imports(self):
        """The broker has what it needs to decide, and nothing to do anything with: no clock, thread or socket."""
        allowed = {"__future__", "collections.abc", "dataclasses", "enum", "json", "math", "typing", "wire"}
        for file in sorted((common.PACKAGE / "gpufd" / "share" / "broker").glob("*.py")):
            tree = ast.parse(file.read_text())
            types = {id(n) for b in ast.walk(tree) if isinstance(b, ast.If) and ast.unparse(b.test) == "TYPE_CHECKING" for n in ast.walk(b)}
            for n in ast.walk(tree):
                if isinstance(n, (ast.Import, ast.ImportFrom)) and id(n) not in types and getattr(n, "level", 0) != 1:
                    names = {a.name for a in n.names} if isinstance(n, ast.Import) else {n.module}
                    self.assertLessEqual(names, allowed, f"{file.name}:{n.lineno}")


ME = Peer(7, 1000, 1000)


def terms(name="data", generation=10, **more):
    return e.Terms(wire.Offer(wire.SOFT, wire.READ_WRITE, 1, bytes(16), 1, 1, 1, generation, 0, 1, name), generation, **more)


def ask(session, name="data", **more):
    return e.Ask(session, ME, wire.Attach(wire.SOFT, wire.READ_ONLY, name, **more))


class Steps(unittest.TestCase):
    def setUp(self):
        self.broker = Broker()

    def steps(self, *events):
        return [a for event in events for a in self.broker.step(0.0, event)]

    def offered(self, **more):
        t = terms(**more)
        return self.steps(e.Claim(1, t), e.Describe(1, t.record, t.memory), e.Publish(1))


class Misplaced(Steps):
    """Events that do not belong: they do nothing, and what was goes on."""

    def test_no_event(self):
        for what in (None, "Claim", e.Wait(1), object()):
            with self.assertRaisesRegex(TypeError, "takes events"):
                self.broker.step(0.0, what)

    def test_unknown_numbers(self):
        nothing = (e.Work("x", 1, 2), e.Describe(9, terms().record, 1), e.AwaitWriters(9), e.Supersede(9, 1), e.Retire(9), e.Withdraw(9), e.GiveUp(9), e.Tick(9),
                   e.Answer(9, 9), e.Map(9, 1), e.Revoke(9), e.Leave(9, e.Reason.LOST), e.Gone(9), e.Die(9), e.Lose(9))  # fmt: skip
        for event in nothing:
            self.assertEqual(self.steps(event), [], event)
        self.assertEqual(self.steps(e.Prepare(9), e.Publish(9)), [e.Taken(9), e.Taken(9)])

    def test_twice(self):
        self.assertEqual(self.offered(), [])
        self.assertEqual(self.steps(e.Publish(1), e.Prepare(1)), [e.Taken(1), e.Taken(1)])
        self.assertEqual(self.steps(ask(2)), [e.Grant(2, 1, 1, False)])
        self.assertEqual(self.steps(e.Gone(2)), [], "before End")
        self.assertEqual(self.steps(e.Map(2, 10), e.Map(2, 10)), [e.Confirm(2), e.End(2, e.Reason.FAILED, True, True)])
        self.assertEqual(self.steps(e.Map(2, 10), e.Leave(2, e.Reason.LOST), e.Revoke(2)), [])
        self.assertEqual(self.steps(e.Gone(2), e.Gone(2), e.Leave(2, e.Reason.LOST)), [])
        self.assertEqual(self.broker.leases(1), [])

    def test_after_the_end(self):
        self.offered()
        self.assertEqual(self.steps(e.Withdraw(1)), [e.Over(1, e.Reason.WITHDRAWN), e.Finished(1)])
        self.assertEqual(self.steps(e.Withdraw(1), e.Tick(1), e.Retire(1), e.GiveUp(1)), [])
        self.steps(e.Close())
        self.assertEqual(self.steps(e.Claim(2, terms())), [e.Taken(2, closed=True)])
        self.assertEqual([type(a) for a in self.steps(ask(3))], [e.Refuse])
        self.assertEqual((self.broker.offers(), self.broker.waiting(), self.broker.there(), self.broker.knows("data")), (0, [], {}, False))

    def test_an_answer_that_nobody_asked_for(self):
        self.broker = Broker(Options(consults=True))
        self.offered()
        self.assertEqual(self.steps(ask(2)), [e.Consult(2, 1)])
        self.assertEqual(self.steps(e.Answer(2, 9)), [])
        self.assertEqual(self.steps(e.Answer(2, 1)), [e.Grant(2, 1, 1, False)])
        self.assertEqual(self.steps(e.Answer(2, 1, denied=True)), [])


class Rules(Steps):
    """Rules that no table has."""

    def test_an_end_leaves_nothing(self):
        """An offer that was prepared or stood beside another is not given to anybody behind its end."""
        self.steps(e.Claim(1, terms()), e.Claim(5, terms()), e.Prepare(1), e.Withdraw(1))
        self.assertEqual(self.steps(e.Prepare(5)), [])
        self.steps(e.Withdraw(5))
        self.assertEqual((self.broker.there(), self.broker.knows("data")), ({}, False))
        self.steps(e.Claim(2, terms()), e.Publish(2), e.Claim(3, terms(generation=5, resumes=True)), e.Publish(3), e.Withdraw(3))
        self.assertEqual([type(a) for a in self.steps(ask(4, resume=5))], [e.Refuse])

    def test_a_place_that_was_not_used(self):
        """A consumer that goes before the data is there leaves its place to another."""
        self.steps(e.Claim(1, terms(leases=1)), e.Prepare(1), ask(2), e.Leave(2, e.Reason.LOST), e.Gone(2))
        self.assertEqual(self.steps(ask(3)), [e.Grant(3, 1, 2, True)])

    def test_cursors(self):
        self.steps(e.Claim(1, e.Terms(dataclasses.replace(terms().record, cursor_size=64), 1)), e.Publish(1))
        self.assertEqual([type(a) for a in self.steps(ask(2), ask(3, capabilities=wire.TAKES_CURSORS))], [e.Refuse, e.Grant])

    def test_unsure_writers_of_the_memory(self):
        """The next offer of memory learns that consumers of the last one may still write it."""
        self.offered(fence=e.Fence.FENCED)
        want = wire.Attach(wire.SOFT, wire.READ_WRITE, "data")
        self.steps(e.Ask(2, ME, want, 5), e.Withdraw(1), e.Gone(2, sent=True), e.Claim(3, terms()), e.AwaitWriters(3, wait=True))
        self.assertTrue(self.broker.awaits(5))
        self.assertEqual(self.steps(e.Lose(5, "lost"))[1:], [e.WritersDone(3, in_use=True, by=1)])
        self.assertFalse(self.broker.awaits(5))

    def test_processes_are_forgotten(self):
        """A process without a session is a new one, should its number come again."""
        self.offered(fence=e.Fence.FENCED)
        want = wire.Attach(wire.SOFT, wire.READ_WRITE, "data")
        self.steps(e.Ask(2, ME, want, 5), e.Die(5), e.Leave(2, e.Reason.LOST), e.Gone(2, sent=True))
        self.steps(e.Ask(3, ME, want, 5), e.Leave(3, e.Reason.LOST), e.Gone(3, sent=True))
        self.assertTrue(self.broker.awaits(5))

    def test_a_grace_of_no_time(self):
        """A grace of 0 seconds has an end, and no grace has none."""
        for grace, timers in ((0.0, [e.Timer(1, 0.0)]), (None, [])):
            self.broker = Broker()
            self.offered(grace=grace)
            self.steps(ask(2), e.Claim(3, terms(generation=30, replaces=True)))
            self.assertEqual(self.steps(e.Publish(3)), [e.Replaced(1), e.Newer(2, 30), *timers])
        self.assertEqual(self.steps(e.Tick(1)), [])

    def test_peers_that_may_write(self):
        """An offer's last word names 64 peers, and counts the others."""
        self.offered(fence=e.Fence.FENCED)
        for n in range(2, 72):
            want = wire.Attach(wire.SOFT, wire.READ_WRITE, "data")
            self.steps(e.Ask(n, Peer(n, 0, 0), want, 0, "nobody knows"), e.Leave(n, e.Reason.LOST), e.Gone(n, sent=True))
        over, finished = self.steps(e.Withdraw(1))
        self.assertEqual((len(finished.unsure.peers), finished.unsure.more, finished.doubt), (64, 6, "nobody knows"))


if __name__ == "__main__":
    unittest.main()
