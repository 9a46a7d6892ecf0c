"""The scripts of examples/python on a GPU, as users start them, and what they print.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_scripts.py -v

It needs a GPU, gpufd's programs (GPUFD_BIN, or Go to build them), PyTorch, transformers and
accelerate: without them it is skipped, and says so; with GPUFD_REQUIRE=gpu that is a failure. Models
are Llamas of random weights, some 1.3 GB each. The network is not used. Times are printed, and not judged.
"""

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import gpu  # first: it says where the package is
from keepers import ROOT, Keeper, program, wait_for

SCRIPTS = ROOT / "examples" / "python"
sys.path.insert(0, str(SCRIPTS))

from test_scripts import Running  # noqa: E402

PROMPT, TOKENS, FRAMES = "1 7 300 42 5 99", 24, 800
TIMEOUT = 150  # seconds that any script may take


class Scripts(gpu.OnGPU):
    """Adapters, compile and handles begin first, side by side. Later tests have the device for themselves."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.torch = gpu.Torch().lib
        directory = tempfile.TemporaryDirectory(prefix="gpufd-scripts-")
        cls.addClassCleanup(directory.cleanup)
        cls.home = directory.name
        cls.torch.zeros(1, device="cuda")
        cls.addClassCleanup(cls.memory_is_back, cls.free())
        keeper = Keeper(cls.home)
        cls.addClassCleanup(keeper.close)
        os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
        cls.env = {**os.environ, "GPUFD_DRIVER": "cuda", "GPUFD_SOCKET": keeper.socket, "GPUFD_HANDLE_DIR": cls.home}
        pool = ThreadPoolExecutor(4)
        cls.addClassCleanup(pool.shutdown)
        cls.small = pool.submit(cls.script, "small.py")
        cls.compiled = pool.submit(lambda: cls.small.result() and cls.script("compile_export.py"))
        cls.handles = pool.submit(cls.script, "handles_queue.py")
        cls.own = pool.submit(cls.script, "handles_queue.py", "--own", "--count", "3")
        cls.make_models()

    @classmethod
    def make_models(cls):
        """Two directories of one configuration, and the tokens that each model generates."""
        transformers, accelerate = gpu.module("transformers"), gpu.module("accelerate")
        import restart

        config = transformers.LlamaConfig(
            vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=4,
            max_position_embeddings=1024, tie_word_embeddings=False, dtype="bfloat16",
        )  # fmt: skip
        with accelerate.init_empty_weights(include_buffers=False):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=cls.torch.bfloat16)
        for module in model.modules():
            for name, t in list(module._parameters.items()):
                if t is not None:
                    module._parameters[name] = cls.torch.nn.Parameter(cls.torch.ones_like(t, device="cuda"), requires_grad=False)
        model.to("cuda").eval()  # moves the buffers
        cls.size = sum(p.numel() * p.element_size() for p in model.parameters())
        cls.models, cls.tokens = [], []
        for seed in (1, 2):
            random = cls.torch.Generator("cuda").manual_seed(seed)
            for p in model.parameters():
                if p.dim() > 1:
                    p.normal_(0, 0.05, generator=random)
            cls.models.append(os.path.join(cls.home, f"model{seed}"))
            model.save_pretrained(cls.models[-1])
            transformers.GenerationConfig(do_sample=False, eos_token_id=[31998, 31999], pad_token_id=0).save_pretrained(cls.models[-1])
            model.generation_config = transformers.GenerationConfig.from_pretrained(cls.models[-1])
            cls.tokens.append(restart.generate(model, [int(n) for n in PROMPT.split()], TOKENS))
        del model, module, t, p
        cls.clear()

    # Processes.

    @classmethod
    def run_to_the_end(cls, *command):
        """Run a command, which may start more processes, and return its exit code and what it said."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=cls.env, text=True, start_new_session=True, **pipes) as p:
            try:
                out, errors = p.communicate(timeout=TIMEOUT)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(p.pid, signal.SIGKILL)
        return p.returncode, out, errors

    @classmethod
    def script(cls, name, *flags):
        return cls.run_to_the_end(sys.executable, "-B", str(SCRIPTS / name), *flags)

    def lines(self, done):
        """Return the lines of a script, which must have ended well."""
        code, out, errors = done
        self.assertEqual(code, 0, out + errors)
        return out.splitlines()

    def cli_put(self, name, directory):
        self.lines(self.run_to_the_end(program(), "put", name, directory))

    def running(self, name, *flags):
        r = Running(sys.executable, "-B", "-u", str(SCRIPTS / name), *flags, env=self.env)
        self.addCleanup(lambda: r.process.stdin.closed or r.end(signal.SIGKILL))
        return r

    # Memory.

    @classmethod
    def clear(cls):
        gc.collect()
        cls.torch.cuda.synchronize()
        cls.torch.cuda.empty_cache()

    @classmethod
    def free(cls):
        cls.clear()
        return cls.torch.cuda.mem_get_info()[0]

    @classmethod
    def memory_is_back(cls, before):
        wait_for(lambda: cls.free() >= before - (600 << 20), "the device's memory")

    # The scripts.

    def test_adapters(self):
        """LoRA adapters are added, replaced and removed while a server answers."""
        self.lines(self.small.result())
        serve = self.running("lora.py", "serve")
        with ThreadPoolExecutor(2) as pool:
            self.assertEqual([len(self.lines(done)) for done in pool.map(lambda a: self.script("lora.py", "add", *a), (
                ("formal", "--rank", "4", "--seed", "1"), ("rude", "--rank", "16", "--seed", "2")))], [1, 1])  # fmt: skip
            plain, formal, rude = (serve.ask(f"{name} 1 7 300")["tokens"] for name in ("-", "formal", "rude"))
            self.assertEqual(len({tuple(t) for t in (plain, formal, rude)}), 3)
            listed = self.lines(self.script("lora.py", "list"))
            self.assertEqual(listed, ["formal version 1 alpha=2 base=1 rank=4", "rude version 1 alpha=2 base=1 rank=16"])
            for done in pool.map(lambda a: self.script("lora.py", *a), (("add", "formal", "--rank", "16", "--seed", "2"), ("remove", "rude"))):
                self.lines(done)
        wait_for(lambda: serve.ask("formal 1 7 300") == {"adapter": "formal", "version": 2, "tokens": rude}, "the new adapter")
        wait_for(lambda: serve.ask("rude 1 7 300") == {"adapter": "rude", "error": "not-found"}, "the removal")
        self.assertEqual(serve.ask("- 1 7 300")["tokens"], plain, "an adapter has changed the base")
        serve.process.stdin.close()
        self.assertEqual(serve.process.wait(60), 0, serve.errors)
        serve.end()
        gpu.seen("lora.py", "two adapters by name and label, one replaced, one removed", "each request got its own; the base stayed")

    def test_compile_and_export(self):
        said = self.lines(self.compiled.result())
        self.assertEqual(len(said), 4, said)
        self.assertEqual([line for line in said if ": equal, 6 inputs" not in line], [])
        gpu.seen("compile_export.py", "kept against private weights", "; ".join(said))

    def test_engines(self):
        """Two engines, a new version under load, kill −9 of one, one more version."""
        for job in (self.small, self.compiled, self.handles, self.own):
            job.exception()  # the device is ours alone from here on
        want = {1: self.tokens[0], 2: self.tokens[1], 3: self.tokens[0]}
        self.assertNotEqual(*self.tokens)
        self.cli_put("llama", self.models[0])
        alone = self.free()
        engines = [self.running("engine.py", self.models[0], "--prompt", PROMPT, "--tokens", str(TOKENS)) for _ in range(2)]
        for e in engines:
            e.until(lambda e=e: len(e.said()) >= 3, "three generations")
        both = self.free()
        self.cli_put("llama", self.models[1])
        began = time.monotonic()
        for e in engines:
            e.until(lambda e=e: e.said()[-1]["version"] == 2, "version 2")
        swapped = time.monotonic() - began
        self.assertEqual(engines[0].end(signal.SIGKILL)[0], -signal.SIGKILL)
        wait_for(lambda: self.free() >= both - (128 << 20), "the memory of version 1")
        self.cli_put("llama", self.models[0])
        engines[1].until(lambda: engines[1].said()[-1]["version"] == 3, "version 3")
        code, errors = engines[1].end()
        self.assertEqual((code, "Traceback" in errors), (0, False), errors)
        served = [line for e in engines for line in e.said()]
        self.assertEqual([line for line in served if line.get("tokens") != want[line["version"]]], [], "tokens of no version, or of two")
        self.assertEqual({line["version"] for line in engines[1].said()}, {1, 2, 3})
        private = max(line["private_bytes"] for line in served)
        self.assertLess(private, self.size // 8, "an engine has weights of its own")
        self.assertLess(alone - both, 2 * self.size, "an engine has weights of its own")
        took = (alone - both) >> 20
        gpu.seen("engine.py", f"two engines on {self.size >> 20} MiB", f"both took {took} MiB more; at most {private >> 20} MiB of tensors of their own")
        told = f"{len(served)} generations, each of one version; both served the new one {swapped * 1e3:.0f} ms behind gpufd put, with the generation under way"
        gpu.seen("engine.py", "a version put under load, kill −9, one more version", told)

    def test_handles(self):
        (said,) = self.lines(self.handles.result())
        self.assertIn("100 tensors of 4194304 bytes, all right", said)
        gpu.seen("handles_queue.py", "expandable segments, no ptrace", said)
        code, out, errors = self.own.result()
        last = [line for line in (out + errors).splitlines() if line.startswith(("tensor ", "3 tensors")) or "Error: " in line][-1:] or ["no answer came"]
        gpu.seen("handles_queue.py --own", "the same by PyTorch's handles", f"exit {code}: {last[0][:160]}")

    def test_learn(self):
        """A trainer and an engine that has the same logits after each step."""
        import test_learn

        trainer, engine = test_learn.run(self.home, "cuda")
        test_learn.check(self, trainer, engine)
        gpu.seen("learn.py", f"{len(engine)} steps", f"loss from {trainer[0]['loss']:.2f} to {trainer[-1]['loss']:.3f}; the engine's logits are the trainer's after each")

    def test_pipeline(self):
        """1080p at 100 a second, by streams and by torch's queues, one after the other."""
        directory = os.path.join(self.home, "pipeline")
        os.mkdir(directory, 0o700)
        with ThreadPoolExecutor(3) as pool:
            frames = "--frames", str(FRAMES)
            jobs = [pool.submit(self.script, name, "--directory", directory, *more) for name, more in (("camera.py", frames), ("model.py", frames), ("sink.py", ()))]
            said = [self.lines(job.result()) for job in jobs][-1][-1]  # of the sink
        rival = self.lines(self.run_to_the_end(sys.executable, "-B", str(ROOT / "python" / "tests" / "pipeline_mp.py"), *frames))[-1]
        times = []
        for name, line in (("streams", said), ("torch's queues", rival)):
            found = re.match(rf"{FRAMES} frames of (\d+) byte.*: p50 ([0-9.]+) ms, p99 ([0-9.]+) ms", line)
            self.assertTrue(found, line)
            self.assertEqual(int(found[1]), 3 * 1080 * 1920)
            times.append(float(found[2]))
            gpu.seen("pipeline", f"1080p, 100 a second, by {name}", f"p50 {found[2]} ms, p99 {found[3]} ms")
        gpu.seen("pipeline", "streams to torch's queues, p50", f"{times[0] / times[1]:.2f}")

    def test_restart(self):
        """Cold, and from what was put by the command and by Python."""
        for job in (self.small, self.compiled, self.handles, self.own):
            job.exception()
        flags = (self.models[0], "--prompt", PROMPT, "--tokens", str(TOKENS))
        cold, put = map(json.loads, self.lines(self.script("restart.py", *flags, "--cold", "--put", "--name", "by-python")))
        self.cli_put("by-command", self.models[0])
        starts = {"cold": cold}
        for name in ("by-python", "by-command"):
            (starts[name],) = map(json.loads, self.lines(self.script("restart.py", *flags, "--name", name)))
        self.assertEqual({name: line["tokens"] for name, line in {**starts, "put": put}.items()}, {name: self.tokens[0] for name in (*starts, "put")})
        for name, line in starts.items():
            told = f"{line['exec_to_first_token']:.2f} s from exec to the first token: imports {line['imports']:.2f}, model and weights {line['model_and_weights']:.2f}"
            gpu.seen("restart.py", f"{name}, {self.size >> 20} MiB", f"{told}; the tokens of a cold start")


if __name__ == "__main__":
    sys.exit(gpu.main())
