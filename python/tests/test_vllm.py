"""gpufd.vllm over a real keeper and a stand-in for vLLM: weights are put once, and taken by the next engine, on the software driver."""

import gc
import json
import logging
import os
import re
import subprocess
import sys
import types
import unittest
from unittest import mock

from keepers import KeeperTest  # first: it says where the package is

import common
import gpufd
from vllm_engines import engine, loads, need_torch, registered, tiny, torch


def setUpModule():
    need_torch()


class Engines(KeeperTest):
    """A keeper, a model's files, and what the plug-in says."""

    def setUp(self):
        super().setUp()
        patched = registered()
        patched.start()
        self.addCleanup(patched.stop)
        self.socket = self.keeper("keeper", *self.keeper_flags).socket
        with gpufd.Client(self.socket) as client:
            common.wait_for(lambda: (pool := client.status().pool) is None or pool.bytes == pool.wanted, "the pool for parking")
        self.files = tiny.files(os.path.join(self.dir, "model"))
        self.said = []
        logger = logging.getLogger("vllm.gpufd")
        handler = logging.Handler()
        handler.emit = lambda record: self.said.append((record.levelname, record.getMessage()))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        self.addCleanup(logger.removeHandler, handler)

    keeper_flags = ()

    def config(self, extra=None, **others):
        return tiny.config(others.pop("model", self.files), {"socket": self.socket, **(extra or {})}, **others)

    def load(self, *args, **others):
        """An engine's model, and whether it was read from disk."""
        before = loads()
        model = engine(self.config(*args, **others))
        return model, loads() - before

    def reference(self, **others):
        """Return the answer of the model that vLLM itself loads."""
        return tiny.answer(engine(tiny.config(others.pop("model", self.files), {}, load_format="auto", **others)))

    def other_engine(self):
        """An engine in a process of its own, which has loaded the model and said what it answers."""
        script = os.path.join(os.path.dirname(__file__), "vllm_engines.py")
        other = subprocess.Popen([sys.executable, "-B", script, self.files, self.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for end in (other.wait, other.stdin.close, other.stdout.close):
            self.addCleanup(end)
        other.said = json.loads(other.stdout.readline())
        return other

    def kept(self):
        with gpufd.Client(self.socket) as client:
            return client.list()

    def assertSaid(self, level, pattern):
        self.assertTrue(any(at == level and re.search(pattern, text) for at, text in self.said), f"{level} {pattern}: {self.said}")


class Loader(Engines):
    def test_the_first_engine_puts_and_the_second_takes(self):
        reference = self.reference()
        first, disk = self.load()
        self.assertEqual((disk, tiny.answer(first)), (1, reference))
        self.assertSaid("INFO", "is not kept: loading .* from disk, to keep it")
        self.assertSaid("INFO", "^kept .* as vllm/.*model/Tiny-tp0of1-pp0of1/GPU-.*, version 1, in ")
        (name,) = self.kept()
        second, disk = self.load()
        self.assertEqual((disk, tiny.answer(second)), (0, reference))
        self.assertSaid("INFO", "model is vllm/.*, version 1, taken in ")
        self.assertEqual([(n.name, n.version) for n in self.kept()], [(name.name, 1)])
        self.assertFalse(second.training)

    def test_another_process_takes_them(self):
        first, _ = self.load()
        other = self.other_engine()
        self.assertEqual((other.said["answer"], other.said["loads"]), (tiny.answer(first), 0))
        common.wait_for(lambda: {h.pid for h in self.kept()[0].holders} == {os.getpid(), other.pid}, "the leases of both")

    def test_what_is_kept_memory_and_what_is_the_engines_own(self):
        """Parameters of both engines are one memory; buffers are each engine's."""
        first, _ = self.load()
        second, _ = self.load()
        for model in (first, second):
            with gpufd.torch.WriteGuard():
                for p in model.parameters():
                    self.assertRaises(gpufd.ReadOnlyError, p.add_, 1)
                for b in model.buffers():
                    b.add_(0)
        first.layers[0].k_scale.fill_(7)
        self.assertEqual(second.layers[0].k_scale.item(), 1)
        self.assertNotEqual(tiny.answer(first), tiny.answer(second))

    def test_tied_weights_and_processed_ones(self):
        """A tie is one object again; what processing took away is away; attributes of parameters stay where they fit."""
        self.load()
        model, disk = self.load()
        self.assertEqual(disk, 0)
        self.assertIs(model.lm_head.weight, model.embed.weight)
        self.assertEqual([name for name, _ in model.named_parameters()], ["embed.weight", *(f"layers.{i}.{name}" for i in range(2) for name in ("weight", "gate_bias"))])
        self.assertFalse(hasattr(model.layers[0], "weight_scale"))
        self.assertIsNone(model.layers[0].bias)
        self.assertIsNone(model.layers[0].zero_point)
        self.assertEqual(model.layers[0].weight.loads_by, "rows")
        self.assertEqual(sorted(model.state_dict()), sorted(engine(tiny.config(self.files, {}, load_format="auto")).state_dict()))

    def test_tensors_that_no_module_lists(self):
        self.load()
        model, disk = self.load()
        self.assertEqual(disk, 0)
        layer = model.layers[1]
        self.assertEqual(layer.limits.tolist(), [5, 5])
        self.assertEqual(layer.kernel.factor.tolist(), [2, 2, 2])
        self.assertTrue(torch.equal(layer.kernel.scratch, layer.weight + 1))
        self.assertIs(layer.runner.routers[0].bias, layer.gate_bias)
        self.assertIs(layer.rotary, model.layers[0].rotary)

    def test_the_engine_updates_its_weights(self):
        """Then it has parameters of its own, whether it puts or takes."""
        from vllm.config import WeightTransferConfig

        for options in ({"weight_transfer_config": WeightTransferConfig("gpufd")}, {"parallel_config": {"enable_eplb": True}}, {"extra": {"copy": True}}):
            with self.subTest(options):
                first, disk = self.load(**{"extra": {"name": str(len(options))}} | options)
                second, again = self.load(**{"extra": {"name": str(len(options))}} | options)
                self.assertEqual(again, 0)
                for model in (first, second):
                    with gpufd.torch.WriteGuard():
                        for p in model.parameters():
                            p.mul_(2)
                self.assertNotEqual(tiny.answer(second), self.reference())
                third, _ = self.load(**{"extra": {"name": str(len(options))}} | options)
                self.assertEqual(tiny.answer(third), self.reference())

    def test_files_are_loaded_into_a_model_that_is_there(self):
        from vllm.model_executor.model_loader import get_model_loader

        kept, _ = self.load()
        config = self.config()
        with common.raises(self, gpufd.UsageError, "usage", "version 1, which is read-only: start the engine with the option copy"):
            get_model_loader(config.load_config).load_weights(kept, config.model_config)
        own, _ = self.load({"copy": True})
        with torch.no_grad():
            own.embed.weight.zero_()
            for layer in own.layers:
                layer.weight_scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        get_model_loader(config.load_config).load_weights(own, config.model_config)
        self.assertTrue(torch.equal(own.embed.weight, kept.embed.weight))

    def test_the_keeper_is_lost_behind_the_put(self):
        """The parameters are kept memory without a lease: the engine answers, and files that it should load again do not kill it."""
        from vllm.model_executor.model_loader import get_model_loader

        with mock.patch("gpufd.vllm.loader.get", side_effect=gpufd.LostError("killed")), mock.patch("gpufd.vllm.loader.check_kept", side_effect=gpufd.NotFoundError("no")):
            model, _ = self.load()
        self.assertSaid("WARNING", "is not kept: LostError: killed")
        config = self.config()
        with common.raises(self, gpufd.ReadOnlyError, "read-only", "would write embed.weight, which is kept memory"):
            get_model_loader(config.load_config).load_weights(model, config.model_config)
        self.assertEqual(tiny.answer(model), self.reference())

    def test_engines_that_start_at_once(self):
        """Each loads from disk, one puts, and the other takes what that has put. So does one that comes to put at the same moment."""
        from gpufd.vllm import loader
        from vllm.model_executor.model_loader import DefaultModelLoader

        others, really = [], DefaultModelLoader.load_weights

        def meanwhile(it, model, model_config):
            if len(others) < 1:
                others.append(None)
                others[0] = self.load()[0]
            really(it, model, model_config)

        with mock.patch.object(DefaultModelLoader, "load_weights", meanwhile):
            model, disk = self.load()
        self.assertEqual((disk, self.kept()[0].version), (2, 1))
        self.assertSaid("INFO", "was put by another engine meanwhile: version 1")
        asked = []

        def late(client, there):
            asked.append(there)
            if len(asked) < 3:
                raise gpufd.NotFoundError("not yet")
            return check(client, there)

        check = loader.check_kept
        with mock.patch.object(loader, "check_kept", late):
            last, disk = self.load()
        self.assertEqual((disk, self.kept()[0].version), (1, 1))
        self.assertSaid("INFO", "was put by another engine at the same time: version 1")
        for m in (others[0], model, last):
            self.assertEqual(tiny.answer(m), self.reference())
            with gpufd.torch.WriteGuard():
                self.assertRaises(gpufd.ReadOnlyError, m.embed.weight.add_, 1)
        common.wait_for(lambda: len(self.kept()[0].holders) == 3, "the leases of all")

    def test_an_engine_that_starts_at_once_and_processes_otherwise(self):
        """Its weights have the same names and shapes, and are not taken."""
        from vllm.model_executor.model_loader import DefaultModelLoader

        reference, others, really, process = self.reference(), [], DefaultModelLoader.load_weights, tiny.Turned.process_weights_after_loading

        def otherwise(method, layer):
            process(method, layer)
            layer.weight.data = layer.weight.data.flip(0)

        def meanwhile(it, model, model_config):
            if not others:
                others.append(None)
                with mock.patch.object(tiny.Turned, "process_weights_after_loading", otherwise):
                    others[0] = self.load()[0]
            really(it, model, model_config)

        with mock.patch.object(DefaultModelLoader, "load_weights", meanwhile):
            model, disk = self.load()
        self.assertEqual((disk, self.kept()[0].version, tiny.answer(model)), (2, 1, reference))
        self.assertSaid("WARNING", "is not kept: MismatchError: version 1 of .* has other tensors than this engine: 'layers.0.weight', 'layers.1.weight'$")

    def test_the_model_is_gone(self):
        """Then so is the lease."""
        first, _ = self.load()
        second, _ = self.load()
        common.wait_for(lambda: len(self.kept()[0].holders) == 2, "the leases")
        del first, second
        gc.collect()
        common.wait_for(lambda: not self.kept()[0].holders, "the end of the leases")

    def test_a_draft_model(self):
        from vllm.model_executor.model_loader import get_model

        reference, config, other = self.reference(), self.config(), self.config()
        for made in (config, other):
            made.speculative_config = types.SimpleNamespace(draft_model_config=other.model_config)
        model = get_model(vllm_config=config, model_config=other.model_config)
        again = get_model(vllm_config=other)
        self.assertEqual((tiny.answer(model), tiny.answer(again), self.kept()), (reference, reference, []))
        self.assertSaid("INFO", "is a draft model: it is loaded from disk, and not kept")


if __name__ == "__main__":
    unittest.main()
