"""Engines with gpufd.vllm at work: memory that they ask for, sleep, and updates from a trainer, on the software driver."""

import os
import sys
import threading
import types
import unittest
from unittest import mock

from test_vllm import Engines, setUpModule  # first: it says where the package is  # noqa: F401

import common
import gpufd
from vllm_engines import addresses, engine, tiny, torch

TOTAL = 100_000  # bytes of a GPU
OLD = os.environ.get("GPUFD_SOFT_VERSION")  # an old driver is wanted, and memory of NUMA nodes came with CUDA 12.2
POOL = () if OLD else ("--park-pool", "64MiB")


def snapshot(used):
    return types.SimpleNamespace(total_memory=TOTAL, free_memory=TOTAL - used)


class Resident(Engines):
    """vLLM's check of free memory, and what it gives the KV cache, with weights that are there already."""

    def requested(self, used, *args, **others):
        """Return the bytes that an engine asks for if so many are in use."""
        from vllm.v1.worker.gpu_worker import Worker

        worker = Worker(self.config(*args, **others))
        found = snapshot(used)
        worker.init_device(found)
        self.assertEqual((worker.init_snapshot, found.free_memory), (found, TOTAL - used), "vLLM's own snapshot is as it was")
        return worker.requested_memory

    def test_the_flags_of_the_first_start_do_for_the_next(self):
        share = {"cache_config": {"gpu_memory_utilization": 0.99}}
        self.assertEqual(self.requested(0, **share), 99_000, "there is nothing yet, and weights come out of that")
        model, _ = self.load(**share)
        weights = self.kept()[0].bytes
        self.assertGreater(weights, 1000)
        self.assertEqual(self.requested(weights, **share), 99_000 - weights)
        self.assertSaid("INFO", "4.2 KiB of the weights are on the GPU already, and count as this engine's")
        with self.assertRaisesRegex(ValueError, "less than desired GPU memory utilization"):
            self.requested(weights + 1001, **share)

    def test_weights_that_the_engine_does_not_take(self):
        """Those of other labels, those that it copies, and those that are parked count as others'."""
        model, _ = self.load()
        weights = self.kept()[0].bytes
        for options in ({"extra": {"copy": True}}, {"dtype": torch.float64}, {"load_format": "auto", "extra": {}}, {"extra": {"socket": self.dir + "/nobody"}}):
            with self.subTest(options):
                self.assertEqual(self.requested(weights, **options), 90_000)

    def test_another_vllm(self):
        """More arguments of request_memory go through, and an engine starts where the wrapper finds nothing."""
        from gpufd.vllm.resident import counting

        counted = counting(lambda found, cache, more=0: more, "gpufd")
        with mock.patch.dict(sys.modules, {"vllm.config": types.ModuleType("vllm.config")}):
            self.assertEqual((counted(None, None), counted(None, None, 7), counted(None, cache=None, more=8)), (0, 7, 8))
        self.assertSaid("INFO", "no kept weights count as this engine's: ImportError")

    keeper_flags = POOL

    @unittest.skipIf(OLD, "a driver that has nowhere to park")
    def test_parked_weights(self):
        from gpufd.vllm.kept import kept_of

        model, _ = self.load()
        weights = self.kept()[0].bytes
        kept_of(model).sleep()
        self.assertEqual(self.requested(0), 90_000)
        kept_of(model).wake()
        self.assertEqual(self.requested(weights), 90_000 - weights)


@unittest.skipIf(OLD, "a driver that has nowhere to park")
class Sleep(Engines):
    keeper_flags = POOL

    def setUp(self):
        super().setUp()
        from vllm.device_allocator import get_mem_allocator_instance
        from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

        self.allocator = get_mem_allocator_instance()
        self.allocator.said.clear()
        self.backend = SleepModeBackendFactory.create_backend(self.config(sleep_mode_backend="gpufd").model_config)

    def parked(self):
        return self.kept()[0].parts[0].parked

    def test_weights_are_parked_and_come_back_to_their_addresses(self):
        """Both those of the engine that has put them, and those of one that has taken them."""
        first, _ = self.load()
        second, _ = self.load()
        for level in (1, 2):
            before = addresses(first), addresses(second), tiny.answer(first), tiny.answer(second)
            self.backend.suspend(level)
            self.assertEqual((self.backend.state(), self.parked()), ("SUSPENDED", True))
            self.assertEqual(self.allocator.said.pop(), ("sleep", ("weights",)))
            with gpufd.torch.WriteGuard():
                with common.raises(self, gpufd.ClosedError, "detached"):
                    tiny.answer(first)
            self.backend.resume()
            self.assertEqual((self.backend.state(), self.parked()), ("RUNNING", False))
            self.assertEqual(self.allocator.said.pop(), ("wake_up", None))
            self.assertEqual((addresses(first), addresses(second), tiny.answer(first), tiny.answer(second)), before)
        self.assertSaid("INFO", "^parked vllm/.*, version 1: 4.2 KiB in ")

    def test_the_keeper_hears_of_it_late(self):
        """Then it is asked again."""
        model, _ = self.load()
        answers = [gpufd.KeeperError("conflict", "it is mapped"), None]
        really = gpufd.Client.park

        def park(client, name, version):
            if answers and (e := answers.pop(0)):
                raise e
            return really(client, name, version)

        with mock.patch.object(gpufd.Client, "park", park):
            self.backend.suspend()
        self.assertTrue(self.parked())
        self.backend.resume()
        self.assertEqual(tiny.answer(model), self.reference())

    def test_the_cache_comes_back_later(self):
        """By tags, as a trainer does."""
        model, _ = self.load()
        self.backend.suspend()
        self.backend.resume(["kv_cache"])
        self.assertEqual((self.backend.state(), self.parked()), ("SUSPENDED", True))
        self.backend.resume(["weights"])
        self.assertEqual((self.backend.state(), self.parked(), tiny.answer(model)), ("RUNNING", False, self.reference()))
        self.backend.discard(("kv_cache",))
        self.assertEqual(self.allocator.said[-3:], [("wake_up", ["kv_cache"]), ("wake_up", ["weights"]), ("discard", ("kv_cache",))])

    def test_another_engine_is_awake(self):
        """Then the weights stay on the GPU for it, and are parked when it is gone."""
        model, _ = self.load()
        other = self.other_engine()
        common.wait_for(lambda: len(self.kept()[0].holders) == 2, "the leases of both")
        self.backend.suspend()
        self.assertFalse(self.parked())
        self.assertSaid("INFO", "version 1, stays on the GPU: .*conflict")
        self.backend.resume()
        self.assertEqual(tiny.answer(model), self.reference())
        other.kill()
        other.wait()
        self.backend.suspend()
        self.assertTrue(self.parked())
        self.backend.resume()

    def test_no_pool_and_no_keeper(self):
        """The weights stay on the GPU, and the engine sleeps and wakes."""
        model, _ = self.load()
        with mock.patch("gpufd.vllm.kept.Client", side_effect=gpufd.LostError("nobody")):
            self.backend.suspend()
        self.assertSaid("INFO", "stays on the GPU: nobody")
        self.backend.resume()
        self.assertEqual(tiny.answer(model), self.reference())

    def test_what_cannot_sleep(self):
        """After an error the engine is awake, whichever part of it has failed."""
        from gpufd.vllm.kept import all_kept

        model, _ = self.load()
        with mock.patch.object(self.allocator, "sleep", side_effect=RuntimeError("busy")):
            self.assertRaises(RuntimeError, self.backend.suspend)
        self.assertEqual((self.backend.state(), tiny.answer(model)), ("RUNNING", self.reference()))
        other, _ = self.load()
        for interrupted, error in (("park", KeyboardInterrupt), ("reattach", gpufd.LostError("gone"))):  # both weights come back, or all that can
            with self.subTest(interrupted), mock.patch.object(self.allocator, "sleep", side_effect=RuntimeError("busy")):
                kind = gpufd.Client if interrupted == "park" else gpufd.keeper.version.Version
                really, calls = getattr(kind, interrupted), []

                def once(*args, **named):
                    calls.append(args)
                    if len(calls) == 1:
                        raise error
                    return really(*args, **named)

                with mock.patch.object(kind, interrupted, once), self.assertRaises(BaseException):
                    self.backend.suspend()
                asleep = [kept for kept in all_kept() if kept.asleep]
                self.assertEqual(len(asleep), interrupted == "reattach")
                for kept in asleep:
                    kept.wake()
        self.assertEqual((tiny.answer(model), tiny.answer(other)), (self.reference(),) * 2)

    def test_the_version_is_gone_meanwhile(self):
        """Then the newest that agrees is taken."""
        model, _ = self.load()
        name = self.kept()[0].name
        self.backend.suspend()
        with gpufd.Client(self.socket) as client:
            client.remove(name)
        with mock.patch("gpufd.vllm.kept.all_kept", return_value=[]):
            other, disk = self.load()
        self.assertEqual(disk, 1)
        self.backend.resume()
        self.assertEqual(tiny.answer(model), self.reference())

    def test_nothing_is_kept(self):
        """It is vLLM's own backend then."""
        model = engine(tiny.config(self.files, {}, load_format="auto"))
        for level in (1, 2):
            self.backend.suspend(level)
            self.backend.resume()
        self.assertEqual(self.allocator.said, [("sleep", ("weights",)), ("wake_up", None), ("sleep", ()), ("wake_up", None)])
        self.assertTrue(self.backend.preserves_communicators() and self.backend.preserves_compiled_artifacts())
        self.assertEqual(tiny.answer(model), self.reference())


class Client:
    """Calls the engine of one worker, as vLLM does."""

    def __init__(self, worker):
        self.worker, self.said, self.active = worker, [], False

    def init_weight_transfer_engine(self, init_info):
        self.said.append(init_info)
        self.worker.init_transfer_engine(self.worker.parse_init_info(init_info))

    def start_weight_update(self):
        if self.active:
            raise RuntimeError("start_weight_update called while a weight update is already active")
        self.worker.start_weight_update()
        self.active = True

    def update_weights(self, update_info):
        self.said.append(update_info)
        self.worker.update_weights(update_info)

    def finish_weight_update(self):
        self.worker.finish_weight_update()
        self.active = False


class Policy(torch.nn.Module if torch is not None else object):
    """A trainer's model, whose tensors have the names of the files."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(tiny.WORDS, tiny.WIDTH)

    def set(self, value):
        with torch.no_grad():
            self.embed.weight.fill_(value)


class Transfer(Engines):
    def setUp(self):
        super().setUp()
        self.environ(XDG_RUNTIME_DIR=self.dir)
        from vllm.config import WeightTransferConfig
        from vllm.distributed.weight_transfer.base import ModuleSource
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

        from gpufd.vllm.transfer import GpufdTrainerInitInfo

        self.wire = WeightTransferConfig("gpufd")
        self.model, _ = self.load(weight_transfer_config=self.wire)
        config = self.config(weight_transfer_config=self.wire)
        self.worker = WeightTransferEngineFactory.create_engine(self.wire, config, torch.device("cpu"), self.model)
        self.addCleanup(self.worker.shutdown)
        self.client, self.policy = Client(self.worker), Policy()
        self.make = lambda **options: WeightTransferTrainerFactory.trainer_init(
            "gpufd", self.wire, GpufdTrainerInitInfo("policy", **{"wait": 30.0, "rank": 0} | options), client=self.client, source=ModuleSource(self.policy)
        )

    def trainer(self, **options):
        made = self.make(**options)
        self.addCleanup(made.shutdown)
        return made

    def test_three_updates(self):
        trainer = self.trainer()
        for step in (1, 2, 3):
            self.policy.set(step)
            trainer.send_weights()
            self.assertEqual(self.model.embed.weight.unique().tolist(), [step])
            self.assertIs(self.model.lm_head.weight, self.model.embed.weight)
            self.assertFalse(self.model.reloading)
        self.assertEqual(self.client.said, [{"name": "policy", "wait": 30.0}, {"step": 1}, {"step": 2}, {"step": 3}])

    def test_the_next_trainer(self):
        trainer = self.trainer()
        self.policy.set(1)
        trainer.send_weights()
        trainer.shutdown()
        self.policy.set(5)
        self.trainer().send_weights()
        self.assertEqual(self.model.embed.weight.unique().tolist(), [5])

    def test_a_rank_that_does_not_talk_to_vllm(self):
        """It publishes on its own GPU, and the request comes from elsewhere."""
        trainer = self.trainer(rank=1)
        self.assertEqual(self.client.said, [])
        self.client.init_weight_transfer_engine({"name": "policy"})
        self.policy.set(4)
        self.worker.start_weight_update()
        loads = threading.Thread(target=self.worker.update_weights, args=({"step": 1},))
        loads.start()
        trainer.send_weights()
        loads.join()
        self.worker.finish_weight_update()
        self.assertEqual(self.model.embed.weight.unique().tolist(), [4])

    def test_vllm_refuses(self):
        """The trainer gets vLLM's error, and the next update is whole."""
        trainer = self.trainer()
        self.policy.set(1)
        trainer.send_weights()
        self.policy.set(2)
        with mock.patch.object(self.worker, "update_weights", side_effect=RuntimeError("the worker is busy")):
            with self.assertRaisesRegex(RuntimeError, "the worker is busy"):
                trainer.send_weights()
        self.policy.set(3)
        trainer.send_weights()
        self.assertEqual(self.model.embed.weight.unique().tolist(), [3])

    def test_the_model_does_not_take_them(self):
        trainer = self.trainer()
        with mock.patch.object(self.model, "load_weights", side_effect=ValueError("shapes")):
            with self.assertRaisesRegex(ValueError, "shapes"):
                trainer.send_weights()
        self.policy.set(3)
        trainer.send_weights()
        self.assertEqual(self.model.embed.weight.unique().tolist(), [3])

    def test_a_source_that_fails(self):
        """Before the first tensor, and behind it. vLLM's request fails with it, and the next update is whole."""
        from vllm.distributed.weight_transfer.base import ModuleSource

        trainer = self.trainer(wait=600.0)
        whole = trainer.source

        class Fails(ModuleSource):
            def __iter__(self):
                yield from list(super().__iter__())[:sent]
                raise KeyboardInterrupt

        for sent, value in ((0, 2), (1, 3)):
            trainer.source = Fails(self.policy)
            with self.assertRaises(KeyboardInterrupt):
                trainer.send_weights()
            trainer.source = whole
            self.policy.set(value)
            trainer.send_weights()
            self.assertEqual(self.model.embed.weight.unique().tolist(), [value])

    def test_without_an_engine_of_vllms_for_the_trainer(self):
        """The static way: the caller has a publisher."""
        with gpufd.weights.Publisher("policy", self.policy.state_dict()) as publisher:
            self.client.init_weight_transfer_engine({"name": "policy"})
            self.policy.set(6)
            self.worker.start_weight_update()
            loads = threading.Thread(target=self.worker.update_weights, args=({"step": 10},))
            loads.start()
            type(self.worker).trainer_send_weights(self.policy.named_parameters(), {"publisher": publisher, "step": 10})
            loads.join()
            self.assertEqual(self.model.embed.weight.unique().tolist(), [6])

    def test_wrong_calls(self):
        with self.assertRaisesRegex(ValueError, "Invalid init_info for GpufdWeightTransferEngine"):
            self.client.init_weight_transfer_engine({"nam": "policy"})
        with common.raises(self, gpufd.UsageError, "usage", "was not initialised: call init_weight_transfer_engine first"):
            self.worker.update_weights({"step": 1})
        self.client.init_weight_transfer_engine({"name": "policy", "wait": 0.05})
        with common.raises(self, gpufd.TimedOutError, "timed-out", "no publisher of 'policy'"):
            self.worker.update_weights({"step": 1})


if __name__ == "__main__":
    unittest.main()
