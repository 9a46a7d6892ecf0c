"""The recipes of docs/python.md, as they stand on the page, with a Llama of random weights.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_transformers.py -v

It needs a GPU, gpufd's programs (GPUFD_BIN, or Go to build them), PyTorch, transformers and
accelerate: without them it is skipped, and says so; with GPUFD_REQUIRE=gpu that is a failure.
The network is not used.
"""

import gc
import os
import re
import unittest

import gpu  # first: it says where the package is
from keepers import ROOT, Keeper

import gpufd

PAGE = ROOT / "docs" / "python.md"
TOKENS = [[1, 7, 300, 42, 5, 99]]


def recipe(word):
    """The lines of the page, of its only block in Python that has this word."""
    if not PAGE.exists():
        raise unittest.SkipTest(f"there is no {PAGE}: the documents are not here")
    (block,) = (b for b in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if word in b)
    return block


class Recipes(gpu.OnGPU):
    def setUp(self):
        super().setUp()
        self.environ(HF_HUB_OFFLINE="1")  # before transformers is imported
        self.torch = gpu.Torch().lib
        self.transformers = gpu.module("transformers")
        gpu.module("accelerate")
        import gpufd.torch

        keeper = Keeper(self.dir)
        self.addCleanup(keeper.close)
        self.addCleanup(gc.collect)
        self.environ(GPUFD_SOCKET=keeper.socket)
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
        gpu.seen("transformers", f"{self._testMethodName}, {put.__name__}", f"{size} bytes of weights; at most {torch.cuda.max_memory_allocated() - before} more were allocated")
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
    raise SystemExit(gpu.main())
