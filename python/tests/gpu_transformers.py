"""gpufd.transformers with the real transformers: models of several kinds, of random weights; and a recipe of docs/python.md.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_transformers.py [GIB] -v [Kinds | Large | TwoGPUs | Recipes]

Of a model of GIB of weights, 1 by default, it prints what starts take, cold from files in /dev/shm and from a keeper. Times are not
judged. What is seen, and the traceback of what fails, is printed at once, and again in the end.

It needs a GPU, gpufd's programs (GPUFD_BIN, or Go to build them), PyTorch, transformers and accelerate: without them it is skipped,
and says so; with GPUFD_REQUIRE=gpu that is a failure. TwoGPUs needs two: GPUFD_REQUIRE=gpu,two. The network is not used.
"""

import gc
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import threading
import unittest
from unittest import mock

import gpu  # first: it says where the package is
import common
import transformers_peer
from common import PACKAGE
from keepers import ROOT, Keeper, wait_for

import gpufd

PAGE = ROOT / "docs" / "python.md"
PEER = pathlib.Path(__file__).resolve().parent / "transformers_peer.py"
SIZES = [arg for arg in sys.argv[1:] if arg.isdigit()]
GIB, STARTS = (SIZES[0], 2) if SIZES else ("1", 1)
sys.argv = [arg for arg in sys.argv if arg not in SIZES]
TOKENS = [[1, 7, 300, 42, 5, 99]]
PATIENCE = 140  # seconds that a process may live


def seen(*row):
    """Print a row of the table at once: a run may be cut off before its end."""
    gpu.seen(*row)
    print("seen:", " | ".join(row), flush=True)


class AtOnce(unittest.TextTestResult):
    """Prints the traceback of what fails when it fails."""

    def addError(self, test, err):  # noqa: N802  # the names of unittest
        super().addError(test, err)
        print(self.errors[-1][1], flush=True)

    def addFailure(self, test, err):  # noqa: N802
        super().addFailure(test, err)
        print(self.failures[-1][1], flush=True)

    def addSubTest(self, test, subtest, err):  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err:
            print((self.failures if issubclass(err[0], test.failureException) else self.errors)[-1][1], flush=True)


def recipe(word):
    """The lines of the page, of its only block in Python that has this word."""
    if not PAGE.exists():
        raise unittest.SkipTest(f"there is no {PAGE}: the documents are not here")
    (block,) = (b for b in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if word in b)
    return block


class Transformers(gpu.OnGPU):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        home = tempfile.TemporaryDirectory(prefix="gpufd-hub-")
        cls.addClassCleanup(home.cleanup)
        os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=home.name)  # before transformers is imported
        cls.torch = gpu.Torch().lib
        cls.transformers = gpu.module("transformers")
        gpu.module("accelerate")
        import gpufd.transformers

    def setUp(self):
        super().setUp()
        keeper = Keeper(self.dir)
        self.addCleanup(keeper.close)
        self.addCleanup(self.clear)
        self.environ(GPUFD_SOCKET=keeper.socket)

    def clear(self):
        gc.collect()
        self.torch.cuda.empty_cache()

    def free(self):
        """The bytes of the device that nobody has."""
        self.clear()
        return self.torch.cuda.mem_get_info()[0]


class Kinds(Transformers):
    """Small models, each as it answers before, kept, and over kept memory."""

    def kinds(self):
        """Models and what they are asked: tied and not, buffers in no file, experts, parts of a configuration, an encoder and a decoder."""
        t, tokens = self.transformers, {"input_ids": self.torch.tensor(TOKENS, device="cuda") % 90}
        small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}
        causal = {**small, "intermediate_size": 128, "num_key_value_heads": 2, "pad_token_id": 0}
        yield t.GPT2LMHeadModel, t.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=96), tokens
        yield t.LlamaForCausalLM, t.LlamaConfig(**causal, dtype="bfloat16"), tokens
        scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
        yield t.LlamaForCausalLM, t.LlamaConfig(**causal, tie_word_embeddings=True, rope_parameters=scaled, dtype="float16"), tokens
        yield t.MixtralForCausalLM, t.MixtralConfig(**causal, num_local_experts=4, dtype="bfloat16"), tokens
        yield t.Gemma3ForCausalLM, t.Gemma3TextConfig(**causal, head_dim=16, sliding_window=4), tokens
        yield t.BertForMaskedLM, t.BertConfig(**small, intermediate_size=128), tokens
        both = {**tokens, "decoder_input_ids": tokens["input_ids"]}
        yield t.T5ForConditionalGeneration, t.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=96), both
        pictures = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
        config = t.CLIPConfig(text_config={**small, "intermediate_size": 128}, vision_config=pictures)
        yield t.CLIPModel, config, {**tokens, "pixel_values": self.torch.ones(1, 3, 32, 32, device="cuda")}

    def made(self, kind, config):
        self.torch.manual_seed(1)
        return kind._from_config(config).to("cuda").eval()

    def answer(self, model, asked):
        with self.torch.inference_mode():
            out = model(**asked)
        return next(out[key] for key in ("logits", "logits_per_image") if key in out).clone()

    def test_kinds(self):
        for i, (kind, config, asked) in enumerate(self.kinds()):
            with self.subTest(kind.__name__, i=i):
                self.once(f"m{i}", self.made(kind, config), asked)
            self.clear()

    def once(self, name, model, asked):
        torch, kind = self.torch, type(model).__name__
        want, ties, beside = self.answer(model, asked), self.tied(model), [n for n, _ in model.named_buffers() if n not in model.state_dict()]
        size = sum(t.untyped_storage().nbytes() for t in {t.untyped_storage().data_ptr(): t for t in model.state_dict().values()}.values())
        done = gpufd.transformers.put(name, model)
        self.assertTrue(torch.equal(self.answer(model, asked), want), "the model that was put")
        loaded, kept = gpufd.transformers.load(name), gpufd.torch.load(name)
        self.assertTrue(torch.equal(self.answer(loaded, asked), want), "the model that was loaded")
        self.assertEqual(self.tied(loaded), ties)
        self.assertEqual([t.dtype for t in loaded.state_dict().values()], [t.dtype for t in model.state_dict().values()])
        self.assertEqual(loaded.config.to_dict(), model.config.to_dict())
        self.assertEqual(loaded.config._attn_implementation, model.config._attn_implementation)
        generation = [str(getattr(m, "generation_config", "it does not generate")) for m in (loaded, model)]
        self.assertEqual(*generation)
        for n in beside:
            self.assertTrue(torch.equal(loaded.get_buffer(n), kept[n]), n)
            loaded.get_buffer(n).add_(0)  # kept memory would lose the context
            model.get_buffer(n).add_(0)
        torch.cuda.synchronize()
        self.assertLess(done.bytes, size + (64 << 10) + sum(kept[n].numel() * 8 for n in beside), "tied weights are kept once")
        with gpufd.transformers.Model(name) as m:
            m.sleep()
            m.wake()
            self.assertTrue(torch.equal(self.answer(m.module, asked), want), "after a sleep")
        seen("kinds", kind, f"{done.bytes} bytes, {len(ties)} names of tied tensors, {len(beside)} buffers beside: the same output, bit by bit")

    def tied(self, model):
        """The names of tensors that have two."""
        first = {}
        return sorted((n, first[id(p)]) for n, p in model.named_parameters(remove_duplicate=False) if first.setdefault(id(p), n) != n)

    def test_a_newer_version(self):
        """A Model takes it at the same addresses, and follow makes a model of its own of it."""
        torch = self.torch
        asked = {"input_ids": torch.tensor(TOKENS, device="cuda") % 90}
        kind, config = self.transformers.LlamaForCausalLM, next(c for k, c, _ in self.kinds() if k is self.transformers.LlamaForCausalLM)
        models = [self.made(kind, config) for _ in range(2)]
        with torch.no_grad():
            models[1].lm_head.weight.neg_()
        want = [self.answer(m, asked) for m in models]
        gpufd.transformers.put("m", models[0])
        versions = gpufd.transformers.follow("m", within=60)
        self.addCleanup(versions.close)
        first = next(versions).model
        with gpufd.transformers.Model("m") as m:
            before = m.module.lm_head.weight.data_ptr()
            self.assertTrue(torch.equal(self.answer(m.module, asked), want[0]))
            gpufd.transformers.put("m", models[1])
            wait_for(lambda: m.superseded, "the news")
            self.assertEqual((m.swap(), m.module.lm_head.weight.data_ptr()), (2, before))
            self.assertTrue(torch.equal(self.answer(m.module, asked), want[1]))
        second = next(versions).model
        self.assertTrue(torch.equal(self.answer(first, asked), want[0]) and torch.equal(self.answer(second, asked), want[1]))

    def test_a_model_of_the_CPU(self):
        """All of it is on the GPU behind a put, where its weights are."""
        model = self.made(self.transformers.LlamaForCausalLM, next(c for k, c, _ in self.kinds() if k is self.transformers.LlamaForCausalLM)).to("cpu")
        gpufd.transformers.put("m", model)
        self.assertEqual({t.device.type for t in (*model.parameters(), *model.buffers())}, {"cuda"})
        asked = {"input_ids": self.torch.tensor(TOKENS, device="cuda") % 90}
        self.assertTrue(self.torch.equal(self.answer(model, asked), self.answer(gpufd.transformers.load("m"), asked)))

    def test_quantised(self):
        """A real one, where this machine can make it, is refused by name."""
        directory = os.path.join(self.dir, "model")
        kind, config = self.transformers.LlamaForCausalLM, self.transformers.LlamaConfig(
            hidden_size=256, intermediate_size=512, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, vocab_size=256, dtype="bfloat16"
        )
        self.made(kind, config).save_pretrained(directory)
        try:
            how = self.transformers.FineGrainedFP8Config()
            model = kind.from_pretrained(directory, quantization_config=how, device_map="cuda")
        except Exception as e:
            seen("quantised", "FineGrainedFP8Config", f"not made here: {type(e).__name__}: {str(e).splitlines()[0][:120]}")
            return
        with self.assertRaisesRegex(gpufd.UsageError, r"is quantised \(fp8\)") as caught:
            gpufd.transformers.put("m", model)
        seen("quantised", "FineGrainedFP8Config", str(caught.exception))

    def test_offloaded(self):
        """accelerate has some of its weights in the host's memory: it is refused by name."""
        kind, config = next((k, c) for k, c, _ in self.kinds() if k is self.transformers.LlamaForCausalLM)
        directory = os.path.join(self.dir, "model")
        self.made(kind, config).save_pretrained(directory)
        model = kind.from_pretrained(directory, dtype="auto", device_map={"model": 0, "lm_head": "cpu"})
        with self.assertRaisesRegex(gpufd.UsageError, "is offloaded in part .*'lm_head' on cpu") as caught:
            gpufd.transformers.put("m", model)
        seen("offloaded", "LlamaForCausalLM", str(caught.exception))

    def test_code_of_the_hub(self):
        """A process that has not imported it gets an error that says so."""
        directory = pathlib.Path(self.dir) / "model"
        config = self.transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=96)
        self.made(self.transformers.LlamaForCausalLM, config).save_pretrained(directory)
        (directory / "modeling_mine.py").write_text(
            "from transformers import LlamaConfig, LlamaForCausalLM\n\n\nclass MineConfig(LlamaConfig):\n    model_type = 'mine'\n\n\n"
            "class MineForCausalLM(LlamaForCausalLM):\n    config_class = MineConfig\n"
        )
        said = json.loads((directory / "config.json").read_text())
        auto = {"AutoConfig": "modeling_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.MineForCausalLM"}
        (directory / "config.json").write_text(json.dumps({**said, "model_type": "mine", "architectures": ["MineForCausalLM"], "auto_map": auto}))
        model = self.transformers.AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True).to("cuda")
        asked = {"input_ids": self.torch.tensor(TOKENS, device="cuda") % 90}
        want = self.answer(model, asked)
        gpufd.transformers.put("m", model)
        self.assertTrue(self.torch.equal(self.answer(gpufd.transformers.load("m"), asked), want))
        del sys.modules[type(model).__module__]
        with self.assertRaisesRegex(gpufd.UnavailableError, "needs the class MineForCausalLM of .*, which is not imported here: import it first"):
            gpufd.transformers.load("m")


class Large(Transformers):
    """GIB of weights, in processes of their own."""

    def setUp(self):
        super().setUp()
        room = shutil.disk_usage("/dev/shm").free > (int(GIB) + 2) << 30
        files = tempfile.TemporaryDirectory(prefix="gpufd-model-", dir="/dev/shm" if room else self.dir)
        self.addCleanup(files.cleanup)
        self.files = files.name
        self.environ(PYTHONPATH=os.pathsep.join([str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]))

    def peer(self, *command):
        p = self.run_program([sys.executable, "-B", "-u", str(PEER), *command], None)
        watchdog = threading.Timer(PATIENCE, p.kill)
        self.addCleanup(watchdog.cancel)
        watchdog.start()
        return p

    def line(self, p):
        """The next line of a peer that is JSON; others are transformers'."""
        said = []
        for line in p.stdout:
            if line.startswith("{"):
                return json.loads(line)
            said.append(line)
        self.fail(f"{' '.join(p.args[4:])} ended, with {p.wait()}, and said:\n{''.join(said[-30:])}")

    def ended(self, *command):
        """What a peer says that runs to its end."""
        p = self.peer(*command)
        said = self.line(p)
        p.stdin.close()
        rest = p.stdout.read()
        self.assertEqual(p.wait(PATIENCE), 0, f"{' '.join(p.args[4:])}, which said {said}\n{rest[-3000:]}")
        return said

    def tell(self, p, word):
        p.stdin.write(word + "\n")
        p.stdin.flush()
        return self.line(p)

    @staticmethod
    def end(p):
        p.stdin.close()
        p.stdout.close()
        try:
            p.wait(60)
        finally:
            p.kill()
            p.wait()

    def same(self, said, want, what):
        self.assertEqual({key: said[key] for key in ("logits", "tokens")}, want, what)

    def started(self, how, name):
        """A server that has started, and what it said."""
        p = self.peer(how, name)
        said = self.line(p)
        parts = ", ".join(f"{part} {s:.2f}" for part, s in said["start"].items())
        seen("start", f"{how}, {self.size / 2**30:.2f} GiB", f"{said['total']:.2f} s from exec to the first token: {parts}; {said['own'] >> 20} MiB of its own")
        return p, said

    def test_servers(self):
        self.size = self.ended("make", self.files, GIB)["bytes"]
        where = "in /dev/shm" if self.files.startswith("/dev/shm") else "on disk: /dev/shm has no room"
        seen("start", "the files", f"{self.size} bytes, {where}")
        want = None
        for i in range(STARTS):
            empty = self.free()
            p, said = self.started("cold", self.files)
            want = want or {key: said[key] for key in ("logits", "tokens")}
            self.same(said, want, "cold, another time")
            if i == STARTS - 1:
                put = self.tell(p, "put large")
            self.end(p)
        self.assertEqual((put["version"], put["before"], put["after"]), (1, want, want), "the model that was put")
        kept = self.free()
        seen("put", f"{put['bytes']} bytes", f"{put['seconds']:.2f} s; {(empty - kept) >> 20} MiB of the device")
        for _ in range(STARTS):
            p, said = self.started("kept", "large")
            self.same(said, want, "loaded")
            self.end(p)
        self.two_servers(want, empty, kept)

    def two_servers(self, want, empty, kept):
        """Their weights are there once. Both take a newer version, one awake and one asleep."""
        servers, free = [], [kept]
        for _ in range(2):
            servers.append(self.started("model", "large"))
            self.same(servers[-1][1], want, "a Model")
            free.append(self.free())
        more = [before - after for before, after in zip(free, free[1:])]
        seen("memory", "free MiB: nothing kept, kept, one server, two", ", ".join(str(n >> 20) for n in (empty, *free)))
        self.assertLess(max(more), self.size // 4 + (1 << 30), f"the weights are there twice: free bytes {empty}, kept and with servers {free}, weights {self.size}")
        (one, _), (two, _) = servers
        for _ in range(5):
            times = [self.tell(two, word)["took"] for word in ("sleep", "wake")]
            seen("server", "sleep, wake", ", ".join(f"{1e3 * s:.1f} ms" for s in times))
        self.same(self.tell(two, "answer"), want, "after a wake")
        self.tell(two, "sleep")
        put = self.ended("put", self.files, "large")
        self.assertNotEqual(put["before"], want, "negated weights")
        self.assertEqual((put["version"], put["after"]), (2, put["before"]), "the newer version that was put")
        self.same(self.tell(one, "answer"), want, "beside a newer version")
        for p, word in ((one, "swap"), (two, "wake")):
            said = self.tell(p, word)
            self.assertEqual(said[word], 2, f"{word}: {said}")
            seen("server", f"{word} to a newer version", f"{1e3 * said['took']:.1f} ms")
            self.same(self.tell(p, "answer"), put["before"], f"after a {word} to a newer version")
        seen("memory", "free MiB: two servers, of the newer version", str(self.free() >> 20))


class TwoGPUs(Large):
    """A model over two GPUs, which another process sees in the other order."""

    test_servers = None  # of one GPU

    def setUp(self):
        super().setUp()
        if self.torch.cuda.device_count() < 2:
            common.missing("two", f"PyTorch sees {self.torch.cuda.device_count()} GPU here")
        for i in range(2):
            self.torch.ones(1, device=i)  # each has a context

    def frees(self):
        self.clear()
        return [self.torch.cuda.mem_get_info(i)[0] for i in range(2)]

    def test_llama(self):
        half = {f"model.layers.{i}": i // 6 for i in range(12)}
        for tied, device_map in (
            (False, {"model.embed_tokens": 0, "model.rotary_emb": 0, **half, "model.norm": 1, "lm_head": 1}),
            (False, {"model.embed_tokens": 1, "model.rotary_emb": 1, **{path: 1 - at for path, at in half.items()}, "model.norm": 0, "lm_head": 0}),
            (True, {"model.embed_tokens": 0, "model.rotary_emb": 0, **half, "model.norm": 1, "lm_head": 0}),
            (False, "balanced"),
        ):
            with self.subTest(tied=tied, device_map=device_map if isinstance(device_map, str) else next(iter(device_map.items()))):
                self.once(tied, device_map)
            self.clear()

    def once(self, tied, device_map):
        """Put in this process, loaded in another: the same logits and tokens, and each weight is there once."""
        t, directory = self.transformers, os.path.join(self.files, f"model-{tied}")
        if not os.path.exists(directory):
            self.torch.manual_seed(1)
            config = t.LlamaConfig(
                vocab_size=32000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=8,
                max_position_embeddings=256, tie_word_embeddings=tied, dtype="bfloat16", bos_token_id=1, eos_token_id=2, pad_token_id=0,
            )  # fmt: skip
            t.LlamaForCausalLM._from_config(config, dtype=self.torch.bfloat16).save_pretrained(directory)
            t.GenerationConfig(do_sample=False, eos_token_id=[2], pad_token_id=0, max_new_tokens=16).save_pretrained(directory)
        model = t.LlamaForCausalLM.from_pretrained(directory, dtype="auto", device_map=device_map, max_memory={0: "100GiB", 1: "100GiB"})
        sizes = [sum(p.numel() * p.element_size() for p in model.parameters() if p.device.index == i) for i in range(2)]
        want, there = transformers_peer.answer(model), transformers_peer.places(model)
        self.assertEqual(set(there["places"].values()), set(there["uuids"][:2]), "the devices of its modules")
        alone = self.frees()
        done = gpufd.transformers.put("spread", model)
        self.assertLess(done.bytes - sum(sizes), 1 << 20, "tied weights are kept once")
        self.assertEqual(transformers_peer.answer(model), want, "the model that was put")
        kept = self.frees()
        swapped = ",".join(f"GPU-{uuid}" for uuid in there["uuids"][1::-1])
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=swapped):
            said = self.ended("spread", "spread")
        self.same(said, want, "loaded, with the GPUs in the other order")
        self.assertEqual((said["uuids"], said["places"]), (there["uuids"][1::-1], there["places"]))
        put, more = ([before - after for before, after in zip(*pair)] for pair in ((alone, kept), (said["before"][::-1], said["after"][::-1])))
        seen("two GPUs", f"{'balanced' if device_map == 'balanced' else next(iter(device_map.items()))}{', tied' if tied else ''}",
             f"bytes of weights on GPU 0 and 1: {sizes}; free bytes that put took: {put}; that the other process took: {more}")  # fmt: skip
        for i in range(2):
            self.assertLess(max(put[i], more[i]), sizes[i] // 4, f"GPU {i} has the weights twice")
        loaded = gpufd.transformers.load("spread")
        self.assertEqual((transformers_peer.answer(loaded), transformers_peer.places(loaded)), (want, there), "loaded in the same process")


class Recipes(Transformers):
    def setUp(self):
        super().setUp()
        self.directory = os.path.join(self.dir, "model")  # what the recipes call directory

    def model(self, tied):
        """A Llama of some 100 MiB; its config.json and generation_config.json are in directory."""
        self.torch.manual_seed(1)
        config = self.transformers.LlamaConfig(
            vocab_size=8192, hidden_size=1024, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
            max_position_embeddings=256, tie_word_embeddings=tied, dtype="bfloat16",
        )  # fmt: skip
        model = self.transformers.AutoModelForCausalLM.from_config(config, dtype=self.torch.bfloat16).to("cuda").eval()
        model.config.save_pretrained(self.directory)
        self.transformers.GenerationConfig(max_new_tokens=7, do_sample=False, eos_token_id=[8190, 8191], pad_token_id=0).save_pretrained(self.directory)
        return model

    def logits(self, model):
        with self.torch.inference_mode():
            return model(self.torch.tensor(TOKENS, device="cuda")).logits

    def follow(self, lines):
        """Follow a recipe: the model and the tensors that were loaded."""
        names = {"directory": self.directory}
        exec(compile(lines, str(PAGE), "exec"), names)
        return names["model"], names["state"]

    def each(self, lines):
        """The recipe, of a model with tied weights and of one without, that were put as modules and as files."""
        for tied in (True, False):
            for put in (self.put_module, self.put_files):
                with self.subTest(tied=tied, put=put.__name__):
                    self.once(lines, tied, put)
                gc.collect()
                self.torch.cuda.empty_cache()

    def put_module(self, model):
        gpufd.torch.put("llama", model)

    def put_files(self, model):
        files = self.directory + ".files"  # not beside config.json: the recipes read no weights
        model.save_pretrained(files)
        gpufd.put("llama", files)

    def once(self, lines, tied, put):
        torch = self.torch
        original = self.model(tied)
        want, rotary = self.logits(original), original.model.rotary_emb.inv_freq.clone()
        size = sum(p.numel() * p.element_size() for p in original.parameters())
        put(original)
        del original
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()

        model, state = self.follow(lines)
        kept = {t.data_ptr() for t in state.values()}
        self.assertEqual([n for n, p in model.named_parameters() if p.data_ptr() not in kept], [], "parameters that are no kept memory")
        self.assertEqual({t.device.type for t in (*model.parameters(), *model.buffers())}, {"cuda"})
        self.assertEqual(model.lm_head.weight is model.model.embed_tokens.weight, tied)
        self.assertTrue(torch.equal(model.model.rotary_emb.inv_freq, rotary))
        self.assertFalse(model.training)
        self.assertEqual(model.generation_config.max_new_tokens, 7)
        got = self.logits(model)
        self.assertTrue(torch.equal(got, want), f"logits differ by {(got.float() - want.float()).abs().max().item()}")
        out = model.generate(torch.tensor(TOKENS, device="cuda"))
        self.assertLessEqual(out.shape[1], len(TOKENS[0]) + 7)
        del got
        seen("transformers", f"{self._testMethodName}, {put.__name__}", f"{size} bytes of weights; at most {torch.cuda.max_memory_allocated() - before} more were allocated")
        gc.collect()
        torch.cuda.empty_cache()
        self.assertLess(torch.cuda.memory_reserved() - before, size / 2, "the weights are there twice")

    def test_without_memory_for_parameters(self):
        self.each(recipe("init_empty_weights"))

    def test_a_model_that_was_built(self):
        lines = recipe("init_empty_weights")
        empty = "with init_empty_weights(include_buffers=False):"
        self.assertIn(empty, lines)
        self.each(lines.replace(empty, "if True:"))

    def test_a_module_of_ones_own(self):
        torch = self.torch

        class Model(torch.nn.Sequential):
            def __init__(self):
                super().__init__(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8))

        original = Model().cuda()
        x = torch.ones(2, 64, device="cuda")
        with torch.inference_mode():
            want = original(x)
        gpufd.torch.put("llama", original, labels={"revision": "main"})
        names = {"Model": Model}
        exec(compile(recipe("model = Model()"), str(PAGE), "exec"), names)
        with torch.inference_mode():
            self.assertTrue(torch.equal(names["model"](x), want))

    def test_what_is_missing_is_named(self):
        """strict=False says nothing of it; check does."""
        model = self.model(tied=False)
        state = dict(model.state_dict())
        del state["model.layers.1.mlp.up_proj.weight"]
        gpufd.torch.put("llama", state)
        del model, state
        with self.assertRaisesRegex(gpufd.UsageError, r"model\.layers\.1\.mlp\.up_proj\.weight"):
            self.follow(recipe("init_empty_weights"))


if __name__ == "__main__":
    unittest.TextTestRunner.resultclass = AtOnce
    raise SystemExit(gpu.main())
