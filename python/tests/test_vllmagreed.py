"""Configurations on which engines with gpufd.vllm have to agree, and weights that are refused, on the software driver."""

import os
import sys
import types
import unittest
import weakref
from unittest import mock

from test_vllm import Engines, setUpModule  # first: it says where the package is  # noqa: F401

import common
import gpufd
from vllm_engines import addresses, engine, loads, tiny, torch


class Agreement(Engines):
    """Configurations that have to be the same."""

    def assertDiffers(self, what, extra=None, **others):
        """An engine that differs says in what, loads from disk, and puts a version of its own, without harm to the first."""
        first, _ = self.load()
        before = addresses(first), tiny.answer(first), self.kept()[0].version
        with common.raises(self, gpufd.MismatchError, "labels", f"version {before[2]}, was put by another engine: {what}$"):
            self.load({"fallback": False, **(extra or {})}, **others)
        self.said.clear()
        second, disk = self.load(extra, **others)
        self.assertEqual(disk, 1)
        self.assertSaid("WARNING", f"is loaded from disk: MismatchError: .*{what}")
        self.assertEqual(tiny.answer(second), self.reference(**others))
        self.assertEqual((addresses(first), tiny.answer(first), self.kept()[0].version), (before[0], before[1], before[2] + 1))
        third, disk = self.load(extra, **others)
        self.assertEqual((disk, tiny.answer(third)), (0, tiny.answer(second)))

    def test_dtype(self):
        self.assertDiffers("dtype is 'torch.float32' there, and 'torch.float64' here", dtype=torch.float64)

    def test_revision(self):
        self.assertDiffers("revision is 'none' there, and 'v2' here", revision="v2")

    def test_files(self):
        """Those of another size, time or beginning."""
        self.load()
        for what in ("weights.bin", "config.json"):
            path = os.path.join(self.files, what)
            with self.subTest(what):
                if what == "config.json":
                    with open(path, "a") as f:
                        f.write(" ")
                else:
                    os.utime(path, ns=(1, 1))
                with common.raises(self, gpufd.MismatchError, "labels", "files is 'sha256:.*' there, and 'sha256:.*' here$"):
                    self.load({"fallback": False})
                self.load()

    def test_files_that_change_while_they_are_loaded(self):
        """Their weights are not kept under what the files were before."""
        from vllm.model_executor.model_loader import DefaultModelLoader

        really = DefaultModelLoader.load_weights

        def meanwhile(*args):
            os.utime(os.path.join(self.files, "weights.bin"), ns=(1, 1))
            really(*args)

        with mock.patch.object(DefaultModelLoader, "load_weights", meanwhile):
            self.load()
        self.assertSaid("WARNING", "is not kept: MismatchError: its files have changed while they were loaded")
        self.assertEqual(self.kept(), [])

    def test_files_in_a_directory_inside(self):
        inside = os.path.join(self.files, "shards")
        os.makedirs(inside)
        path = os.path.join(inside, "1.safetensors")
        for content in (b"1", b"2"):
            with open(path, "wb") as f:
                f.write(content)
            os.utime(path, ns=(1, 1))
            self.assertEqual(self.load()[1], 1)

    def test_files_of_the_cache_are_known_by_their_content(self):
        blobs = os.path.join(self.dir, "blobs")
        os.makedirs(blobs)
        path = os.path.join(self.files, "weights.bin")
        for name, disk in (("0123abcd" * 8, 0), ("weights.bin", 1)):  # the other one may be anybody's
            blob = os.path.join(blobs, name)
            os.rename(os.path.realpath(path), blob)
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(blob, path)
            self.load()
            os.utime(blob, ns=(disk + 1, disk + 1))
            self.assertEqual(self.load()[1], disk, name)

    def test_a_repository_is_known_by_its_commit(self):
        def of(name, **others):
            from gpufd.vllm.agreed import agreed

            config = self.config(model=name, **others)
            return agreed(config, config.model_config)

        self.assertEqual(of("org/model", _commit_hash="abc").labels["files"], "commit:abc")
        with common.raises(self, gpufd.UsageError, "usage", "nothing says which files org/model is"):
            of("org/model")
        with common.raises(self, gpufd.UsageError, "usage", "nothing says which files org/model is"):
            of("org/model", _commit_hash="abc", hf_config_path="org/other")
        long = of("org/" + "m" * 300, _commit_hash="abc")
        self.assertLessEqual(len(long.name), 200)
        self.assertRegex(long.labels["model"], "^sha256:")
        self.assertNotEqual(long.name, of("org/" + "m" * 301, _commit_hash="abc").name)

    def test_quantisation(self):
        self.assertDiffers(
            "config is 'sha256:.*' there, and 'sha256:.*' here; quantization is 'none' there, and 'fp8' here",
            quantization="fp8", quantization_config={"weight_block_size": [128, 128]},
        )  # fmt: skip

    def test_versions(self):
        first, _ = self.load()
        for module, name in (("vllm.version", "vllm"), ("torch", "torch")):
            with mock.patch.object(sys.modules[module], "__version__", "9.9"):
                with common.raises(self, gpufd.MismatchError, "labels", f"{name} is '.*' there, and '9.9' here$"):
                    self.load({"fallback": False})

    def test_what_chooses_kernels(self):
        self.environ(VLLM_PORT="1")
        self.load()
        os.environ["VLLM_PORT"] = "2"
        self.assertEqual(self.load()[1], 0)
        for name in ("VLLM_USE_DEEP_GEMM", "VLLM_DISABLED_KERNELS"):
            with self.subTest(name), mock.patch.dict(os.environ, {name: "0"}):
                with common.raises(self, gpufd.MismatchError, "labels", "kernels is 'sha256:.*' there, and 'sha256:.*' here$"):
                    self.load({"fallback": False})

    def test_experts(self):
        there = {"enable_expert_parallel": True, "data_parallel_size": 2, "data_parallel_rank": 1}
        self.assertDiffers("experts is 'data-parallel 0 of 1' there, and 'data-parallel 1 of 2, expert-parallel, linear' here", parallel_config=there)

    def test_ranks_of_data(self):
        """Without expert parallelism, too, each has another part of every expert."""
        self.assertDiffers("experts is 'data-parallel 0 of 1' there, and 'data-parallel 1 of 2' here", parallel_config={"data_parallel_size": 2, "data_parallel_rank": 1})

    def test_what_the_cache_is_of(self):
        """Scales of the cache are processed otherwise then."""
        self.assertDiffers("kv-cache is 'auto' there, and 'fp8' here", cache_config={"cache_dtype": "fp8"})

    def test_a_configuration_that_flags_change(self):
        """Buffers are made of it, and no file shows it."""
        self.assertDiffers("config is 'sha256:.*' there, and 'sha256:.*' here", rope_theta=7)

    def test_ranks(self):
        """Each rank has a name of its own, and other sizes are other names."""
        import vllm.distributed as there

        self.load()
        with mock.patch.object(there._tp, "world_size", 2):
            for rank in (0, 1):
                with mock.patch.object(there._tp, "rank_in_group", rank):
                    self.load()
        with mock.patch.object(there._pp, "world_size", 2):
            self.load()
        names = sorted(n.name.split("/")[-2] for n in self.kept())
        self.assertEqual(names, ["Tiny-tp0of1-pp0of1", "Tiny-tp0of1-pp0of2", "Tiny-tp0of2-pp0of1", "Tiny-tp1of2-pp0of1"])

    def test_another_model_under_the_name(self):
        first, _ = self.load({"name": "shared"})
        other = tiny.files(os.path.join(self.dir, "other"), seed=1)
        with common.raises(self, gpufd.MismatchError, "labels", "model is '.*model' there, and '.*other' here; files is"):
            self.load({"name": "shared", "fallback": False}, model=other)


class Refused(Engines):
    """Weights that are not taken, or not kept."""

    def test_quantisation_that_is_not_known(self):
        for kind, config, text in (
            ("awq", {}, "quantisation 'awq' are not known"),
            ("fp8", {}, "quantisation 'fp8' without weight_block_size are not known .*; known are unquantised, fp8, modelopt_fp4"),
        ):
            with common.raises(self, gpufd.UsageError, "usage", text):
                self.load(quantization=kind, quantization_config=config)
        with common.raises(self, gpufd.UsageError, "usage", "a KV cache of type 'int8' are not known"):
            self.load(cache_config={"cache_dtype": "int8"})
        self.assertEqual(self.kept(), [])
        self.load(quantization="modelopt_fp4", cache_config={"cache_dtype": "fp8_e5m2"})
        self.assertEqual(len(self.kept()), 1)
        inside = types.SimpleNamespace(quantization_config={"weight_block_size": [128, 128]})  # as a model of text and pictures has it
        self.load(quantization="fp8", model_arch_config=inside)

    def test_options(self):
        for extra, text in (({"nam": "x"}, "has no option nam: there are name, socket, copy, fallback"), ({"copy": "yes"}, "copy is True or False"), ({"name": 3}, "name is text")):
            with common.raises(self, gpufd.UsageError, "usage", text):
                self.load(extra)

    def test_no_version(self):
        with common.raises(self, gpufd.NotFoundError, "not-found", "model/Tiny-tp0of1-pp0of1/GPU-.* is not kept"):
            self.load({"fallback": False})

    def test_no_keeper(self):
        """The engine starts as it would without."""
        model, disk = self.load({"socket": os.path.join(self.dir, "nobody")})
        self.assertEqual((disk, tiny.answer(model)), (1, self.reference()))
        self.assertSaid("WARNING", "is loaded from disk: LostError: there is no keeper at")
        self.assertEqual([text for level, text in self.said if "is not kept:" in text], [])
        with self.assertRaises(gpufd.LostError):
            self.load({"socket": os.path.join(self.dir, "nobody"), "fallback": False})

    def test_a_method_that_cannot_go_on_over_processed_weights(self):
        self.load()
        config, before = self.config(), loads()
        with mock.patch.object(tiny.Turned, "supports_pre_processed_weights", False):
            model = engine(config)
        self.assertEqual((loads() - before, tiny.answer(model)), (1, self.reference()))
        lists = config.compilation_config
        self.assertEqual((lists.static_forward_context, lists.static_all_moe_layers), ({f"layers.{i}": model.layers[i] for i in range(2)}, ["layers.0", "layers.1"]))
        self.assertSaid("WARNING", "is loaded from disk: RuntimeError: Turned does not support pre-processed weights")

    def test_a_model_that_was_taken_in_part(self):
        """It is gone when the files are loaded, with its copies of weights."""
        from vllm.model_executor.model_loader import DefaultModelLoader

        self.load()
        made, there, process, really = [], [], tiny.Turned.process_weights_after_loading, DefaultModelLoader.load_weights

        def fails(method, layer):
            process(method, layer)
            if tiny.is_weights_pre_processed():
                layer.itself = [layer]
                made.append(weakref.ref(layer))
                raise RuntimeError("no")

        def loads_weights(*args):
            there.extend(ref() for ref in made)
            really(*args)

        with mock.patch.object(tiny.Turned, "process_weights_after_loading", fails), mock.patch.object(DefaultModelLoader, "load_weights", loads_weights):
            self.load({"copy": True})
        self.assertEqual(there, [None])

    def test_processing_that_writes_kept_weights(self):
        """It is refused before it happens."""
        self.load()
        with mock.patch.object(tiny.Turned, "process_weights_after_loading", lambda method, layer: layer.weight.mul_(2)):
            with common.raises(self, gpufd.ReadOnlyError, "read-only", "mul_.* would write .*layers.0.weight"):
                self.load({"fallback": False})

    def test_processing_that_is_done_twice(self):
        """To copies, and in a way that writes nothing."""
        self.load()
        twice = {True: lambda method, layer: layer.weight.mul_(2), False: lambda method, layer: setattr(layer.weight, "data", layer.weight.data.t())}
        for copy, process in twice.items():
            with self.subTest(copy=copy), mock.patch.object(tiny.Turned, "process_weights_after_loading", process):
                with common.raises(self, gpufd.MismatchError, "tensors", "has others than the kept ones: 'layers.0.weight', 'layers.1.weight'"):
                    self.load({"fallback": False, "copy": copy})

    def test_a_copy_of_a_weight_that_does_not_lie_dense(self):
        process = tiny.Turned.process_weights_after_loading

        def spread(method, layer):
            process(method, layer)
            if not tiny.is_weights_pre_processed():
                layer.weight.data = torch.stack((layer.weight.data,) * 2, -1)[..., 0]

        with mock.patch.object(tiny.Turned, "process_weights_after_loading", spread):
            first, _ = self.load()
            second, disk = self.load({"copy": True, "fallback": False})
            self.assertEqual((disk, tiny.answer(second), first.layers[0].weight.stride()), (0, self.reference(), (16, 2)))

    def test_another_model_comes_out(self):
        """Tensors are named, and the engine loads from disk."""
        self.load()

        def replaced(method, layer):
            layer.weight = torch.nn.Parameter(layer.weight.data.clone(), requires_grad=False)
            layer.more = torch.nn.Parameter(torch.ones(1))

        with mock.patch.object(tiny.Turned, "process_weights_after_loading", replaced):
            with common.raises(
                self, gpufd.MismatchError, "tensors",
                "has more than was kept: 'layers.0.more', 'layers.1.more'; it has others than the kept ones: 'layers.0.weight', .*; it lacks attributes: 'layers.0.kernel.factor', ",
            ):  # fmt: skip
                self.load({"fallback": False})
        self.assertEqual(tiny.answer(self.load()[0]), self.reference())

    def test_tensors_of_other_limits(self):
        """The engine does not get buffers, and tensors that are attributes, which are too small for it."""
        self.load()
        for what, text in (("ANGLES", "buffer 'layers.0.angles' is kept as .4., and this engine's is .9."), ("LIMITS", "has no memory for attributes: 'layers.0.limits'")):
            with mock.patch.object(tiny, what, 9):
                with common.raises(self, gpufd.MismatchError, "tensors", text):
                    self.load({"fallback": False})
                model, disk = self.load()
                self.assertEqual((disk, tiny.answer(model)), (1, self.reference()), "no part of the model without memory is used again")

    def test_a_tensor_without_memory_deep_inside(self):
        self.load()
        process = tiny.Turned.process_weights_after_loading

        def more(method, layer):
            process(method, layer)
            layer.runner.steps = (types.SimpleNamespace(x=torch.empty(2, device="meta")),)

        with mock.patch.object(tiny.Turned, "process_weights_after_loading", more):
            with common.raises(self, gpufd.MismatchError, "tensors", "has no memory for attributes: 'layers.0.runner.steps.0.x', 'layers.1"):
                self.load({"fallback": False})

    def test_a_model_without_the_module(self):
        self.load()
        with mock.patch.object(tiny, "LAYERS", 1):
            with common.raises(self, gpufd.MismatchError, "tensors", "the kept weights have 'layers.1.weight', and the model has no module 'layers.1'"):
                self.load({"fallback": False})

    def test_what_is_no_engines(self):
        """A stranger's tensors under the name, with the labels."""
        from gpufd.vllm.agreed import agreed

        config = self.config()
        there = agreed(config, config.model_config)
        for metadata in ({}, {"gpufd.vllm": "[]"}, {"gpufd.vllm": '{"host": 3}'}, {"gpufd.vllm": '{"what": 3}'}, {"gpufd.vllm": '{"held": [3]}'}):
            gpufd.torch.put(there.name, {"x": torch.ones(2)}, socket=self.socket, labels=there.labels, metadata=metadata)
            with common.raises(self, gpufd.FormatError, "format", "the tensors were not put by an engine of vLLM"):
                self.load({"fallback": False})

    def test_a_parameter_that_the_engine_moves(self):
        """Offloaded weights are not kept, and the engine runs with them."""
        from gpufd.vllm.state import state_of

        with common.raises(self, gpufd.UsageError, "usage", "'embed.weight' is on cpu, and the engine's device is of type cuda: offloaded weights are not kept"):
            state_of(engine(tiny.config(self.files, {}, load_format="auto")), "cuda")

    def test_put_fails(self):
        """The model is as it was."""
        with mock.patch("gpufd.vllm.loader.put", side_effect=gpufd.KeeperError("no-room", "full")):
            model, disk = self.load()
        self.assertEqual((disk, tiny.answer(model), self.kept()), (1, self.reference(), []))
        self.assertSaid("WARNING", "model is not kept: KeeperError: full")


if __name__ == "__main__":
    unittest.main()
