"""Weights that a keeper keeps, too, and what a thousand updates leave behind."""

import gc
import os

import common
import gpufd
from common import PATIENCE
from gpufd.weights import Meta, Publisher, Subscriber
from keepers import KeeperTest
from test_weights import WeightsTest, full, loaded, send_all

np = common.need_numpy()


class Keep(KeeperTest):
    def setUp(self):
        super().setUp()
        os.environ["XDG_RUNTIME_DIR"] = self.directory
        self.addCleanup(os.environ.pop, "XDG_RUNTIME_DIR")
        self.socket = self.keeper().socket

    def kept(self):
        with gpufd.get("policy", socket=self.socket) as version:
            return version.version, dict(version.metadata), {name: np.array(array) for name, array in version.arrays().items()}

    def test_the_next_whole_update_is_kept(self):
        for options in ({"bucket": 4096, "buckets": 8}, {"in_place": True}):
            with self.subTest(options), Publisher("policy", {"a": Meta("I32", (100,)), "b": Meta("F32", (2000,))}, **options) as pub:
                arrays = {"a": np.arange(100, dtype=np.int32), "b": np.arange(2000.0)}
                send_all(pub, 6, {**arrays, "a": full(6, "a")["a"]})
                pub.keep("policy", socket=self.socket, labels={"run": "1"}, metadata={"loss": "0.5"})
                with self.assertRaises(ZeroDivisionError), pub.update(7):
                    1 / 0
                self.assertIsNone(pub.kept)
                send_all(pub, 8, arrays)
                send_all(pub, 9, {**arrays, "a": full(9, "a")["a"]})
                version, metadata, got = self.kept()
                self.assertEqual((version, metadata), (pub.kept.version, {"step": "8", "loss": "0.5"}))
                self.assertEqual({name: array.tolist() for name, array in got.items()}, {name: array.tolist() for name, array in arrays.items()})

    def test_shards_are_parts(self):
        pubs = [Publisher("policy", {f"w{i}": Meta("U8", (3,), of=(6,), begin=(3 * i,))}, bucket=4096, device=i) for i in range(2)]
        for i, pub in enumerate(pubs):
            with pub:
                pub.keep("policy", socket=self.socket, part=i, parts=2, transaction="step 1")
                send_all(pub, 1, {f"w{i}": bytes([i] * 3)})
        self.assertEqual(([pub.kept.missing for pub in pubs], self.kept()[2]["w1"].tolist()), ([1, 0], [1, 1, 1]))

    def test_what_cannot_be_kept(self):
        with Publisher("policy", bucket=4096) as pub, common.raises(self, gpufd.UsageError, "usage", "with metadata"):
            pub.keep("policy", socket=self.socket)
        with Publisher("policy", {"a": Meta("U8", (3,))}, bucket=4096) as pub:
            with common.raises(self, gpufd.LostError, "nobody-listens"):
                pub.keep("policy", socket=self.socket + "x")
            pub.keep("policy", socket=self.socket)
            with common.raises(self, gpufd.UsageError, "usage", "once for each"):
                pub.keep("policy", socket=self.socket)
        with common.raises(self, gpufd.NotFoundError, "not-found"):
            self.kept()


class Flat(WeightsTest):
    def test_a_thousand_updates(self):
        """Neither descriptors, mappings nor memory grow, whatever is kept, assembled, torn and left out."""
        pub, sub = self.publisher(buckets=8), self.subscriber()
        kept = []
        for step in range(1, 1001):
            if step % 10 == 0:
                with self.assertRaises(ZeroDivisionError), pub.update(step) as send:
                    send("large", bytes(9000))
                    1 / 0
                with common.raises(self, gpufd.WeightsError, "torn"):
                    loaded(sub.next(PATIENCE))
            else:
                send_all(pub, step, full(step, "a", "b") | {"large": np.full(3000, step % 256, np.uint8)})
                update = sub.next(PATIENCE)
                if step % 10 == 5:
                    continue
                there = list(update.tensors())
                self.assertEqual(np.asarray(there[2][1])[7], step % 256)
                kept = [there[step % 3]] if step % 3 else []
                del there
            if step == 200:
                before = self.vitals()
        kept.clear()
        after = self.vitals()
        self.assertLessEqual(after[:2], before[:2])
        self.assertLess(after[2] - before[2], 2 << 20, (before, after))

    @staticmethod
    def vitals():
        """Descriptors, mappings, bytes of memory."""
        gc.collect()
        with open("/proc/self/maps") as f:
            maps = len(f.readlines())
        with open("/proc/self/statm") as f:
            resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return len(os.listdir("/proc/self/fd")), maps, resident


if __name__ == "__main__":
    common.unittest.main()
