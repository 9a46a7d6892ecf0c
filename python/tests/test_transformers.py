"""Models of transformers in a keeper: gpufd.transformers, with a stand-in for transformers, on the software driver."""

import gc
import json
import sys
import unittest
from unittest import mock

from keepers import DEADLINE, KeeperTest  # first: it says where the package is

import common
import forks
import gpufd

try:
    import torch
except ImportError:
    torch = None
else:
    import transformersstandin as standin
    from transformersstandin import made

    import gpufd.transformers

# A process of its own: it loads the model, and says what it finds.
CHILD = """
import json, torch, transformersstandin as standin
import gpufd.transformers
if "hub" in sys.argv: standin.hub()
model = gpufd.transformers.load("m", socket=sys.argv[1])
rotary = model.model.rotary_emb
before = rotary.inv_freq.data_ptr()
with torch.inference_mode(): logits = model(torch.tensor([[1, 7, 30]])).float().tolist()
rotary.inv_freq.mul_(2), rotary.original_inv_freq.mul_(2)          # it is the process's own: kept memory would kill it
print(json.dumps({
    "logits": logits, "training": model.training, "class": type(model).__name__, "dtype": str(model.lm_head.weight.dtype), "config": model.config.to_dict(),
    "tokens": model.generation_config.max_new_tokens, "tied": model.lm_head.weight is model.model.embed_tokens.weight,
    "gradient": any(p.requires_grad for p in model.parameters()), "attention": model.config._attn_implementation,
    "devices": getattr(model, "hf_device_map", None)}))
"""
PUT = """
import transformersstandin as standin
import gpufd.transformers
gpufd.transformers.put("m", standin.made(kind=standin.SmallForMaskedLM), socket=sys.argv[1])
"""
TOKENS = [[1, 7, 30]]


def setUpModule():
    if torch is None:
        common.missing("python", f"{sys.executable} has no PyTorch")
    forks.begin("transformersstandin", "gpufd.transformers")


def logits(model):
    with torch.inference_mode():
        return model(torch.tensor(TOKENS)).float().tolist()


class Transformers(KeeperTest):
    def setUp(self):
        super().setUp()
        self.kept = self.keeper()
        self.socket = self.kept.socket
        gc.disable()  # nothing of this may need it
        self.addCleanup(gc.enable)

    def put(self, model, **options):
        return gpufd.transformers.put("m", model, socket=self.socket, **options)

    def load(self):
        return gpufd.transformers.load("m", socket=self.socket)

    def versions(self):
        with gpufd.Client(self.socket) as client:
            return [(info.name, info.version) for info in client.list()]

    def elsewhere(self, *flags):
        """What another process says of the model."""
        return json.loads(self.ends(self.python(CHILD, self.socket, *flags), 0))

    def newer(self, m, model):
        """Keep a newer version than a Model's, and wait until it has heard of that."""
        self.put(model)
        common.wait_for(lambda: m.superseded, "the news")


class Load(Transformers):
    def same(self, model, *flags):
        """Put the model, load it here and elsewhere: the answers are those of before. Return what the other process says."""
        want, config = logits(model), model.config.to_dict()
        self.put(model)
        self.assertEqual(logits(model), want, "the model that was put")
        self.assertEqual(logits(self.load()), want)
        said = self.elsewhere(*flags)
        self.assertEqual((said.pop("logits"), said.pop("config")), (want, config))
        self.assertEqual((said.pop("training"), said.pop("gradient"), said.pop("class"), said.pop("devices")), (False, False, type(model).__name__, None))
        return said

    def test_another_process(self):
        for tied in (True, False):
            for dtype in ("float32", "bfloat16"):
                with self.subTest(tied=tied, dtype=dtype):
                    model = made(tie_word_embeddings=tied, dtype=dtype, seed=3)
                    said = self.same(model)
                    self.assertEqual(said, {"dtype": f"torch.{dtype}", "tokens": 3, "tied": tied, "attention": "sdpa"})

    def test_no_weight_is_there_twice(self):
        model = made(vocab_size=1000, hidden_size=64, layers=1)
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        self.assertEqual(size, 4 * (1000 * 64 + 64 * 64 + 64))
        self.assertLess(self.put(model).bytes - size, 2048, "tied weights are kept once")
        loaded, kept = self.load(), gpufd.torch.load("m", socket=self.socket)
        place = {name: t.data_ptr() for name, t in loaded.state_dict().items()}
        mapping = kept["steps"].data_ptr() - place["steps"]  # the same part, mapped twice
        self.assertEqual({name: kept[name].data_ptr() - mapping for name in place}, place)

    def test_what_was_put_is_its_own(self):
        """Its buffers can be written, and nobody else sees that."""
        model = made()
        self.put(model)
        rotary, want = model.model.rotary_emb, logits(model)
        rotary.inv_freq.mul_(2)
        rotary.original_inv_freq.mul_(2)
        self.assertNotEqual(logits(model), want)
        self.assertEqual(logits(self.load()), want)

    def test_buffers_as_they_are(self):
        """And not as its configuration would make them."""
        model = made()
        model.model.rotary_emb.inv_freq = torch.tensor([0.5, 0.25, 0.125, 0.0625])
        model.model.rotary_emb.seen = torch.ones(3)  # of a forward: it is not kept
        self.same(model)
        self.assertFalse(hasattr(self.load().model.rotary_emb, "seen"))

    def test_types_that_the_configuration_does_not_say(self):
        model = made(dtype="float32")
        model.bfloat16()
        model.model.layers[1].weight.data = model.model.layers[1].weight.data.double()
        model.model.layers[1].bias.data = model.model.layers[1].bias.data.double()
        self.put(model)
        loaded = self.load()
        self.assertEqual([t.dtype for t in loaded.state_dict().values()], [t.dtype for t in model.state_dict().values()])
        self.assertEqual((loaded.config.dtype, loaded.model.rotary_emb.inv_freq.dtype), ("float32", torch.bfloat16))

    def test_tied_as_it_was(self):
        """Whatever the configuration says."""
        apart = made(tie_word_embeddings=True)
        apart.lm_head.weight = torch.nn.Parameter(torch.ones_like(apart.lm_head.weight))
        self.assertIs(self.same(apart)["tied"], False)
        tied = made(tie_word_embeddings=False)
        tied.lm_head.weight = tied.model.embed_tokens.weight
        self.assertIs(self.same(tied)["tied"], True)

    def test_parts_of_a_configuration(self):
        model = made(kind=standin.PairModel, first={"theta": 7.0}, second={"hidden_size": 16, "tie_word_embeddings": False})
        model.config._attn_implementation = {"": "eager", "second": "flex_attention"}
        kinds, seen = standin.PairModel._from_config, []

        def from_config(config, dtype=None, attn_implementation=None, experts_implementation=None):
            seen.append((attn_implementation, experts_implementation))
            return kinds(config, dtype, attn_implementation, experts_implementation)

        with mock.patch.object(standin.PairModel, "_from_config", from_config):
            self.put(model)
            loaded = self.load()
        attention, experts = {"": "eager", "first": "sdpa", "second": "flex_attention"}, {"": "eager", "first": "eager", "second": "eager"}
        self.assertEqual(seen, [(attention, experts)] * 2)
        self.assertEqual({"": loaded.config._attn_implementation} | {k: p._attn_implementation for k, p in loaded.config.parts().items()}, attention)
        for a, b in ((model.first, loaded.first), (model.second, loaded.second)):
            self.assertEqual(logits(a), logits(b))
        self.assertEqual((loaded.config.first.theta, loaded.config.to_dict()), (7.0, model.config.to_dict()))

    def test_parts_of_parts(self):
        """Each has the type in its configuration that it had, and the model its own kind of generation_config."""
        model = made(kind=standin.OuterModel, dtype="bfloat16", inner={"dtype": "bfloat16", "first": {"dtype": "bfloat16"}, "second": {"dtype": "bfloat16"}})
        model.config.inner.second._attn_implementation = "eager"
        self.put(model)
        loaded = self.load()
        self.assertEqual([loaded.config.inner.parts()[key]._attn_implementation for key in ("first", "second")], ["sdpa", "eager"])
        self.assertEqual((loaded.config.to_dict(), loaded.config.inner.second.dtype), (model.config.to_dict(), "bfloat16"))
        self.assertEqual((type(loaded.generation_config), loaded.generation_config.max_new_tokens), (standin.OuterModel.generation_config_class, 1))
        self.assertEqual(logits(loaded.inner.second), logits(model.inner.second))

    def test_a_model_that_does_not_generate(self):
        """It has no generation_config, and its buffers are of integers."""
        model = made(kind=standin.SmallForMaskedLM)
        want, size = logits(model), sum(p.numel() * p.element_size() for p in model.parameters())
        self.assertLess(self.put(model).bytes - size, 2048, "tied weights are kept once")
        loaded = self.load()
        self.assertEqual((logits(model), logits(loaded)), (want, want))
        self.assertEqual((hasattr(model, "generation_config"), hasattr(loaded, "generation_config")), (False, False))
        self.assertIs(loaded.cls.decoder.weight, loaded.bert.word_embeddings.weight)
        self.assertIs(loaded.cls.decoder.bias, loaded.cls.bias)
        for m in (model, loaded):
            self.assertEqual(m.bert.position_ids.tolist(), [list(range(32))])
            m.bert.position_ids.add_(0), m.bert.token_type_ids.add_(0)  # kept memory would kill the process
        with gpufd.transformers.Model("m", socket=self.socket) as m:
            m.sleep()
            m.wake()
            self.assertEqual(logits(m), want)

    def test_a_generation_config_that_was_taken_away(self):
        model = made()
        model.generation_config = None
        self.put(model)
        self.assertIsNone(self.load().generation_config)

    def test_code_of_the_hub(self):
        """Nothing that a keeper says is imported: the class has to be there."""
        standin.hub()
        self.addCleanup(sys.modules.pop, standin.HUB)
        self.same(made(kind=standin.Hub), "hub")
        said = self.ends(self.python(CHILD, self.socket), 1)
        self.assertIn("needs the class Hub of 'transformers_modules.someone.model', which is not imported here: import it first", said)

    def test_the_default_type_is_one_for_all_threads(self):
        """A thread that builds a model does not change it for one that computes."""
        self.put(made(dtype="bfloat16"))
        seen, build = [], standin.SmallModel.__init__

        def init(*args):
            seen.append(torch.get_default_dtype())
            build(*args)

        with mock.patch.object(standin.SmallModel, "__init__", init):
            self.assertEqual(self.load().config.dtype, "bfloat16")
        self.assertEqual(seen, [torch.float32])

    def test_labels_and_metadata(self):
        self.put(made(), labels={"step": "1"}, metadata={"note": "mine"})
        with gpufd.get("m", socket=self.socket, labels={"step": "1"}) as version:
            self.assertEqual(version.metadata["note"], "mine")
            self.assertEqual(json.loads(version.metadata["config.json"])["model_type"], "small")
            self.assertEqual(json.loads(version.metadata["generation_config.json"]), {"max_new_tokens": 1})
        with common.raises(self, gpufd.MismatchError, "labels"):
            gpufd.transformers.load("m", socket=self.socket, labels={"step": "2"})

    def test_a_pool(self):
        """What was made in a SharedPool is not copied."""
        with gpufd.torch.SharedPool() as pool:
            model = made(vocab_size=1000)
            rotary = model.model.rotary_emb
            rotary.inv_freq = rotary.original_inv_freq = rotary.inv_freq.clone()  # as .to("cuda") makes it
        before, want = model.lm_head.weight.data_ptr(), logits(model)
        self.put(model)
        self.assertEqual((model.lm_head.weight.data_ptr(), logits(model), logits(self.load())), (before, want, want))
        self.assertTrue(pool.sealed)
        rotary.inv_freq.mul_(2)  # it is outside by now


class Devices(Transformers):
    """A model over two devices, a part of the version for each.

    Here the devices are the software driver's, of which all have memory of the host: to PyTorch each tensor is on the CPU, and accelerate
    is a stand-in that notes what it is told. What its hooks do is seen in gpu_transformers.py, on two GPUs.
    """

    MAP = {"steps": 1, "model.layers.1": 1, "model.embed_tokens": 0, "model.layers.0": 0, "model.rotary_emb": 0, "lm_head": 1}  # 1 is the main device: it is first

    def setUp(self):
        self.environ(GPUFD_SOFT_DEVICES="3", CUDA_VISIBLE_DEVICES="0,1,2")
        super().setUp()

    def made(self, **config):
        model = made(tie_word_embeddings=False, **config)
        model.hf_device_map = dict(self.MAP)
        return model

    def parts(self):
        """The tensors of each part, and the device's ordinal."""
        with gpufd.get("m", socket=self.socket) as version:
            return [(part.memory.ordinal, sorted(part)) for part in version]

    def test_another_process(self):
        """It sees the devices in another order, and has them by their UUIDs."""
        model = self.made(seed=3)
        want, config = logits(model), model.config.to_dict()
        self.put(model)
        self.assertEqual(logits(model), want, "the model that was put")
        one = ["lm_head.weight", "model.layers.1.bias", "model.layers.1.weight", "steps"]
        rest = ["model.embed_tokens.weight", "model.layers.0.bias", "model.layers.0.weight", "model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq"]
        self.assertEqual(self.parts(), [(1, one), (0, rest)])
        loaded = self.load()
        self.assertEqual((logits(loaded), list(loaded.hf_device_map.items()), loaded.skip_keys), (want, list(self.MAP.items()), ["past_key_values"]))
        for visible, swapped in (("1,0", {0: 1, 1: 0}), ("2,0,1", {0: 1, 1: 2})):
            with mock.patch.dict("os.environ", CUDA_VISIBLE_DEVICES=visible):
                said = self.elsewhere()
            self.assertEqual((said["logits"], said["config"], said["devices"]), (want, config, {path: swapped[at] for path, at in self.MAP.items()}))
        with mock.patch.dict("os.environ", CUDA_VISIBLE_DEVICES="1"):
            self.assertRegex(self.ends(self.python(CHILD, self.socket), 1), "MismatchError: .*not visible to this process")

    def test_no_weight_is_there_twice(self):
        model = self.made(vocab_size=1000, hidden_size=64)
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        self.assertLess(self.put(model).bytes - size, 2048)
        state = self.load().state_dict()
        for part in range(2):
            kept = gpufd.torch.load("m", socket=self.socket, part=part)
            there = {name: t.data_ptr() - state[name].data_ptr() for name, t in kept.items() if name in state}
            self.assertEqual(len(set(there.values())), 1, "one part, mapped twice")

    def test_tied_on_one_device(self):
        model = made(tie_word_embeddings=True)
        model.hf_device_map = {"lm_head": 0, "model.embed_tokens": 0, "model.layers": 1, "model.rotary_emb": 0, "steps": 0}
        want = logits(model)
        self.put(model)
        loaded = self.load()
        self.assertIs(loaded.lm_head.weight, loaded.model.embed_tokens.weight)
        self.assertEqual((logits(loaded), self.elsewhere()["tied"]), (want, True))

    def test_names_of_one_device(self):
        model = made()
        model.hf_device_map = {"model": 0, "lm_head": "cuda:0", "steps": torch.device("cuda", 0)}
        self.put(model)
        self.assertEqual(self.versions(), [("m", 1)])
        self.assertFalse(hasattr(self.load(), "hf_device_map"))

    def test_all_or_none(self):
        """A part for which a device has no room, and one that the keeper does not take."""
        self.put(first := self.made())
        want, model = logits(first), self.made(seed=2, vocab_size=1 << 16, hidden_size=16)
        model.hf_device_map = {"model.layers": 0, "model.rotary_emb": 0, "steps": 0, "model.embed_tokens": 1, "lm_head": 1}
        before = logits(model)
        deliver = mock.patch.object(gpufd.keeper.deposit.Deposit, "deliver", side_effect=gpufd.KeeperError("conflict", "no"))
        for obstacle, reason in ((mock.patch.dict("os.environ", GPUFD_SOFT_MEMORY="4MiB"), "too-large"), (deliver, "conflict")):
            with self.subTest(reason):
                with obstacle, common.raises(self, gpufd.KeeperError, reason):
                    self.put(model)
                self.assertEqual((self.versions(), logits(self.load())), ([("m", 1)], want))
                with torch.no_grad():
                    for t in model.parameters():
                        t.mul_(1.0)  # it can be written
                self.assertEqual(logits(model), before)
        self.assertEqual((self.put(model).version, logits(self.load())), (2, before))

    def test_a_later_part_is_refused(self):
        """Then the keeper does not keep those before it for somebody who brings the rest."""
        from gpufd.keeper.deposit import Deposit

        deliver = Deposit.deliver

        def refuses(deposit):
            if deposit.part:
                raise gpufd.KeeperError("quota", "no")
            return deliver(deposit)

        with mock.patch.object(Deposit, "deliver", refuses), common.raises(self, gpufd.KeeperError, "quota"):
            self.put(self.made())
        with gpufd.Client(self.socket) as client:
            self.assertEqual([(info.name, info.reserved_bytes) for info in client.list()], [])

    def test_refused(self):
        tied, absent, empty, one, elsewhere, inner, inmost = made(tie_word_embeddings=True), *(self.made() for _ in range(6))
        tied.hf_device_map = self.MAP
        absent.hf_device_map = {"lm_head": 1, "model.embed_tokens": 0, "model.layers": 0, "steps": 0}
        empty.hf_device_map = {**self.MAP, "model.act": 2}
        elsewhere.model.layers[0].to("meta")
        inner.hf_device_map, inmost.hf_device_map = {"model": 0, "model.layers": 1, "lm_head": 0, "steps": 0}, {"": 0, "lm_head": 1, "model": 0}
        for model, text, options in (
            (tied, "has 'model.embed_tokens.weight' and 'lm_head.weight' tied, and its hf_device_map has them on two devices", {}),
            (absent, "is on 2 devices, and its hf_device_map has none for 'model.rotary_emb.inv_freq'", {}),
            (empty, "has modules on a device that has none of its tensors: 'model.act'", {}),
            (one, "is on 2 devices, and device=1 is one", {"device": 1}),
            (elsewhere, "is offloaded in part", {}),
            (inner, "has 'model.layers' on another device than 'model', which it is in", {}),
            (inmost, "has 'lm_head' on another device than '', which it is in", {}),
        ):  # fmt: skip
            with self.subTest(text), common.raises(self, gpufd.UsageError, "usage", text):
                self.put(model, **options)
        self.assertEqual(self.versions(), [])

    def test_what_is_for_one_part(self):
        self.put(self.made())
        with common.raises(self, gpufd.UsageError, "usage", "m has 2 parts: say which, or use gpufd.transformers.load"):
            gpufd.transformers.Model("m", socket=self.socket)
        with common.raises(self, gpufd.UsageError, "usage", "m is on several devices: .* gpufd.transformers.load"):
            next(gpufd.transformers.follow("m", socket=self.socket, within=DEADLINE))
        with common.raises(self, gpufd.MismatchError, "device", "memory of another device"):
            gpufd.transformers.load("m", socket=self.socket, device=0)

    def test_strangers(self):
        """What stands beside the tensors is no map, or there is no accelerate."""
        self.put(self.made())
        with gpufd.get("m", socket=self.socket) as version:
            own, made_of = version.metadata, [{name: t.clone() for name, t in part.tensors().items()} for part in version]
        for text in ("7", "{", '{"model": 2}', '{"model": "cuda"}', None):
            texts = {**own, "hf_device_map.json": text} if text else {k: v for k, v in own.items() if k != "hf_device_map.json"}
            for part in range(2):
                gpufd.torch.put("m", made_of[part], socket=self.socket, device=part, part=part, parts=2, transaction=str(text), metadata=texts)
            with self.subTest(text), common.raises(self, gpufd.FormatError, "format", "has 2 parts, and what is kept of the devices makes no sense"):
                self.load()
        self.put(self.made())
        with mock.patch.dict(sys.modules, accelerate=None), common.raises(self, gpufd.UnavailableError, "unavailable", "is on 2 devices, for which"):
            self.load()


class Refused(Transformers):
    def refused(self, model, *texts, kind=gpufd.UsageError, **options):
        """The put is refused, and has changed nothing: the model can be written."""
        before = [t.data_ptr() for t in model.parameters()] if isinstance(model, torch.nn.Module) else []
        with self.assertRaises(kind) as caught:
            self.put(model, **options)
        for text in texts:
            self.assertIn(text, str(caught.exception))
        if before:
            self.assertEqual([t.data_ptr() for t in model.parameters()], before)
        self.assertEqual(self.versions(), [])

    def test_no_model(self):
        self.refused(torch.nn.Linear(1, 1), "'m', a Linear, is no transformers.PreTrainedModel: gpufd.torch.put")
        self.refused(5, "a int, is no transformers.PreTrainedModel")

    def test_quantised(self):
        by_config, by_flag, by_object = made(), made(), made()
        by_config.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
        self.refused(by_config, "is quantised (bitsandbytes)", "dequantize()")
        by_flag.is_quantized = True
        self.refused(by_flag, "is quantised (a method without a name)")
        by_object.config.quantization_config = mock.Mock(quant_method=mock.Mock(value="gptq"))
        self.refused(by_object, "is quantised (gptq)")

    def test_other_modules(self):
        adapters, replaced, more = made(), made(), made()
        adapters._hf_peft_config_loaded = True
        self.refused(adapters, "has adapters of PEFT")
        replaced.model.layers[1] = torch.nn.Bilinear(8, 8, 8)
        self.refused(replaced, "has a Bilinear at 'model.layers.1' where its configuration makes a Linear at 'model.layers.1'")
        more.model.layers.append(torch.nn.Linear(8, 8))
        self.refused(more, "has a Linear at 'model.layers.2' where its configuration makes a Rotary")

    def test_other_tensors(self):
        resized, more, fewer, hidden = made(), made(), made(), made()
        resized.model.layers[0].weight = torch.nn.Parameter(torch.ones(8, 9))
        self.refused(resized, "is not what its configuration makes", "'model.layers.0.weight': shape [8, 9], and [8, 8] in the model")
        more.model.scale = torch.nn.Parameter(torch.ones(1))
        self.refused(more, "it has tensors that the model lacks: 'model.scale'")
        del fewer.model.rotary_emb.original_inv_freq
        self.refused(fewer, "lacks buffers that its configuration makes: 'model.rotary_emb.original_inv_freq'")
        with mock.patch.object(standin.Rotary, "get_extra_state", lambda rotary: {"scale": 1}, create=True):
            self.refused(made(), "it has tensors that the model lacks: 'model.rotary_emb._extra_state'")
        build = standin.Rotary.__init__

        def init(rotary, config):
            build(rotary, config)
            rotary.tables = [rotary.inv_freq]

        with mock.patch.object(standin.Rotary, "__init__", init):
            self.refused(hidden, "has tensors in lists or dictionaries, which cannot be kept: 'model.rotary_emb.tables'")

    def test_offloaded(self):
        model = made()
        model.hf_device_map = {"model": 0, "lm_head": "disk"}
        model.model.layers[1].to("meta")
        self.refused(model, "is offloaded in part ('model' on 0, 'lm_head' on disk)", "device_map={'': 0}")
        del model.hf_device_map
        self.refused(model, "is offloaded in part", "'model.layers.1.bias' on meta")

    def test_what_no_reader_could_build(self):
        build = standin.Rotary.__init__

        class Local(standin.SmallForCausalLM):
            pass

        def init(rotary, config):
            build(rotary, config)
            rotary.first = rotary.inv_freq[0].item()

        self.refused(made(kind=Local), "which is not imported here", kind=gpufd.UnavailableError)
        with mock.patch.object(standin.Rotary, "__init__", init):
            self.refused(made(), "cannot be built without memory for its weights")
        kernel = made()
        kernel.config._attn_implementation = "someone/attention"
        self.refused(kernel, "wants the kernel 'someone/attention' of the hub, which is code")
        self.refused(made(), "metadata 'config.json' is the model's own", metadata={"config.json": "{}"})

    def test_a_put_that_fails(self):
        model = made()
        want = logits(model)
        with self.assertRaises(gpufd.Error):
            self.put(model, expect_version=7)
        with torch.no_grad():
            model.lm_head.weight.mul_(1.0)
        self.assertEqual(logits(model), want)


class Strangers(Transformers):
    """What others have put."""

    def said(self, **texts):
        """Put the tensors of a model beside other texts than its own."""
        model = made()
        self.put(model)
        with gpufd.get("m", socket=self.socket) as version:
            own = dict(version.metadata)
        state = gpufd.torch.load("m", socket=self.socket)
        gpufd.torch.put("m", {name: t.clone() for name, t in state.items()}, socket=self.socket, metadata=own | texts)

    def classes(self, **other):
        return json.dumps({"model": "transformers.models.small.modeling_small.SmallForCausalLM", "config": "transformers.models.small.modeling_small.SmallConfig",
                           "version": "5.0", "implementations": {}, "beside": {}} | other)  # fmt: skip

    def test_tensors_alone(self):
        gpufd.torch.put("m", {"w": torch.ones(2)}, socket=self.socket)
        with common.raises(self, gpufd.FormatError, "format", "version 1 of m was not put by gpufd.transformers.put: gpufd.torch.load"):
            self.load()

    def test_no_sense(self):
        for texts in ({"transformers": "["}, {"transformers": "[]"}, {"transformers": "{}"}, {"transformers": '{"x": 1}'}, {"config.json": "7"},
                      {"config.json": "{"}, {"transformers": self.classes(model=7)}, {"transformers": self.classes(implementations=[])}, {"transformers": self.classes(beside=[])},
                      {"transformers": self.classes(implementations={"allow_all_kernels": {"": "true"}})}, {"config.json": "[" * 5000 + "]" * 5000}):  # fmt: skip
            with self.subTest(str(texts)[:200]):
                self.said(**texts)
                with common.raises(self, gpufd.FormatError, "format", "makes no sense"):
                    self.load()

    def test_no_code(self):
        """A name is not imported, and neither called; a kernel is not downloaded."""
        for name in ("this.s", "subprocess.Popen", "gpufd.put", "transformers.models.small.modeling_small.Rotary", "transformers.no.such.Thing", "Popen"):
            with self.subTest(name):
                self.said(transformers=self.classes(model=name))
                with common.raises(self, gpufd.UnavailableError, "unavailable"):
                    self.load()
        self.assertNotIn("this", sys.modules)
        for texts in ({"transformers": self.classes(implementations={"attn_implementation": {"": "someone/kernel"}})},
                      {"config.json": '{"first": {"_attn_implementation": {"": "someone/kernel"}}}'},
                      {"transformers": self.classes(implementations={"attn_implementation": "paged|someone/kernel"})},
                      {"config.json": '{"_attn_implementation_internal": "someone/kernel"}'},
                      {"config.json": '{"parts": [{"experts_implementation": "someone/kernel"}]}'}):  # fmt: skip
            with self.subTest(texts):
                self.said(**texts)
                with self.assertRaisesRegex(gpufd.UsageError, "wants the kernel '(paged.)?someone/kernel' of the hub"):
                    self.load()

    def test_what_its_class_does_not_take(self):
        """Whatever the class raises, it is an error of gpufd."""
        for config, kind in ({"layers": "two"}, gpufd.UsageError), ({"layers": -1, "missing": 1}, gpufd.MismatchError):
            with self.subTest(str(config)):
                self.said(**{"config.json": json.dumps(config)})
                with self.assertRaises(kind):
                    self.load()
        with mock.patch.object(standin.SmallForCausalLM, "__init__", side_effect=ImportError("flash_attn is not installed")):
            with common.raises(self, gpufd.UnavailableError, "unavailable", "cannot be built here: flash_attn is not installed"):
                self.load()
        self.said(**{"generation_config.json": "{"})
        with common.raises(self, gpufd.UsageError, "usage", "cannot be built"):
            self.load()

    def test_another_model(self):
        self.said(**{"config.json": '{"layers": 3}'})
        with common.raises(self, gpufd.MismatchError, "tensors", "it lacks tensors of the model: 'model.layers.2.weight'"):
            self.load()


class Sleeping(Transformers):
    def model(self, **options):
        m = gpufd.transformers.Model("m", socket=self.socket, **options)
        self.addCleanup(m.close)
        return m

    def test_sleep_wake_and_swap(self):
        models = [made(seed=seed) for seed in range(4)]
        want = [logits(m) for m in models]
        self.put(models[0])
        with self.model() as m:
            self.assertIsInstance(m, gpufd.torch.Model)
            before = {name: t.data_ptr() for name, t in m.module.state_dict().items()}
            buffer = m.module.model.rotary_emb.inv_freq
            self.assertEqual((logits(m), logits(m.module), m.module.generation_config.max_new_tokens), (want[0], want[0], 0))
            m.sleep()
            with common.raises(self, gpufd.ClosedError, "detached"):
                m.module(torch.tensor(TOKENS))
            self.assertEqual((m.wake(), logits(m)), (1, want[0]))
            for number, asleep in ((1, True), (2, False), (3, True)):
                if asleep:
                    m.sleep()
                self.newer(m, models[number])
                self.assertEqual((m.wake() if asleep else m.swap(), logits(m)), (number + 1, want[number]))
            self.assertEqual({name: t.data_ptr() for name, t in m.module.state_dict().items()}, before)
            self.assertIs(m.module.model.rotary_emb.inv_freq, buffer)
            buffer.mul_(2)  # it is the process's own
        self.assertTrue(all(t.is_meta for t in m.module.state_dict().values()))

    def test_a_model_that_is_another_one(self):
        """Though its tensors lie in the same way. It is refused, awake and asleep, and the next one is taken."""
        want = logits(model := made())
        self.put(model)
        standin.hub()
        self.addCleanup(sys.modules.pop, standin.HUB)
        moved = made()
        moved.model.rotary_emb.inv_freq = moved.model.rotary_emb.original_inv_freq = torch.tensor([0.5, 0.25, 0.125, 0.0625])
        m, version = self.model(), 1
        for other, text in ((made(extra=7), "extra is '7' in its config.json, and was 'None'"), (made(theta=7.0), "have other values: 'model.rotary_emb.inv_freq', 'model.rotary_emb.original_inv_freq'"), (moved, "have other values: "),
                            (made(kind=standin.Hub), "its model is 'transformers_modules.someone.model.Hub'")):  # fmt: skip
            with self.subTest(text):
                self.newer(m, other)
                with common.raises(self, gpufd.MismatchError, "layout", text):
                    m.swap()
                m.sleep()
                with common.raises(self, gpufd.MismatchError, "layout", text):
                    m.wake()
                self.assertEqual((m.wake(newest=False), logits(m)), (version, want))
                want = logits(model := made(seed=version + 10, _name_or_path="elsewhere"))
                self.newer(m, model)
                self.assertEqual((m.swap(), logits(m)), (version + 2, want))
                version += 2

    def test_what_was_loaded_is_put_again(self):
        """It lies as the model lay that it was loaded from."""
        self.put(made())
        m, loaded = self.model(), self.load()
        loaded.lm_head.weight = torch.nn.Parameter(loaded.lm_head.weight * 2)
        loaded.model.embed_tokens.weight = loaded.lm_head.weight
        want = logits(loaded)
        self.newer(m, loaded)
        self.assertEqual((m.swap(), logits(m)), (2, want))

    def test_every_process_puts_it_alike(self):
        """Whatever the order is in which it iterates over a set."""
        layouts = set()
        for seed in range(4):
            with mock.patch.dict("os.environ", PYTHONHASHSEED=str(seed)):
                self.ends(self.python(PUT, self.socket), 0)
            with gpufd.get("m", socket=self.socket) as version:
                layouts.add(tuple(version[0]))
        self.assertEqual(len(layouts), 1, layouts)

    def test_what_is_no_model(self):
        gpufd.torch.put("m", {"w": torch.ones(2)}, socket=self.socket)
        with common.raises(self, gpufd.FormatError, "format", "was not put by gpufd.transformers.put"):
            self.model()


class Follow(Transformers):
    def test_each_version_is_a_model_of_its_own(self):
        models = [made(seed=1), made(seed=2, theta=7.0), made(seed=3, layers=3), made(seed=4, tie_word_embeddings=False)]
        loaded, versions = [], gpufd.transformers.follow("m", socket=self.socket, within=DEADLINE)
        self.addCleanup(versions.close)
        for model in models:
            want = logits(model)
            self.put(model)
            version = next(versions)
            self.assertIs(version.model, version.model)
            self.assertEqual((version.version, logits(version.model), version.model.generation_config.max_new_tokens), (len(loaded) + 1, want, len(loaded) + 1))
            loaded.append((version.model, want))
            del version
        for model, want in loaded:
            self.assertEqual(logits(model), want)

    def test_a_version_that_cannot_be_built(self):
        versions = gpufd.transformers.follow("m", socket=self.socket, within=DEADLINE)
        self.addCleanup(versions.close)
        gpufd.torch.put("m", {"w": torch.ones(2)}, socket=self.socket)
        version = next(versions)
        with common.raises(self, gpufd.FormatError, "format", "was not put by gpufd.transformers.put") as caught:
            version.model
        version.refuse(caught.exception)
        want = logits(model := made())
        self.put(model)
        self.assertEqual(logits(next(versions).model), want)

    def test_a_model_for_a_version_of_gpufd_torch(self):
        self.put(made())
        versions = gpufd.torch.follow("m", socket=self.socket, within=DEADLINE)
        self.addCleanup(versions.close)
        with common.raises(self, gpufd.UsageError, "usage", "has no model of its own"):
            next(versions).model

    def test_arguments(self):
        with common.raises(self, gpufd.UsageError, "usage"):
            gpufd.transformers.follow("", socket=self.socket)


if __name__ == "__main__":
    unittest.main()
