#!/usr/bin/env python3
"""Tries gpufd's plug-in inside a real vLLM, and prints a table. It takes a GPU, vLLM, gpufd installed beside it, and a keeper.

    gpufd keeper --park-pool 16GiB &
    python3 examples/vllm/verify.py [--model Qwen/Qwen2.5-0.5B-Instruct] [STEP...]

Each step is an engine in a process of its own. The names that it puts begin with verify/, and are removed at the end. The exit code is 1 if a
step failed, and 3 if there is no vLLM.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time", "1 2 3 4 5"]
NAME = "verify/model"
LIMIT = 1800  # seconds for a step; an engine beside another one gets half of it


class Failed(Exception):
    """A step has found something wrong."""


def need(true, text):
    if not true:
        raise Failed(text)


# Engines.


@contextlib.contextmanager
def engine(model, extra=None, load_format="gpufd", share=0.9, **others):
    """An engine of vLLM in this process."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # before vLLM is imported
    import vllm

    if load_format == "gpufd":
        others["model_loader_extra_config"] = {"name": NAME, **(extra or {})}
    made = vllm.LLM(model, load_format=load_format, gpu_memory_utilization=share, max_model_len=1024, seed=0, **others)
    yield made


def answer(llm):
    """Tokens and their probabilities, which are to be the same bit by bit."""
    import vllm

    outputs = llm.generate(PROMPTS, vllm.SamplingParams(temperature=0, max_tokens=32, logprobs=1), use_tqdm=False)
    return [[list(o.outputs[0].token_ids), [next(iter(p.values())).logprob for p in o.outputs[0].logprobs]] for o in outputs]


def free():
    import torch

    return torch.cuda.mem_get_info()[0]


def kept():
    import gpufd

    with gpufd.Client() as client:
        return [name for name in client.list() if name.name.startswith("verify/")]


def remove_kept():
    import gpufd

    with gpufd.Client() as client:
        for name in client.list():
            if name.name.startswith("verify/"):
                client.remove(name.name)


# Steps. Each returns what the table says of it; values that later steps compare with are in the file of results.


def agrees(known, there):
    """Report whether the installed signatures match those that were read. There may be more, if they are not abstract."""
    new = [said for name, said in there.get("methods", {}).items() if name not in known.get("methods", {})]
    return (
        ("parameters" not in known or all(known.get(of) == there.get(of) for of in ("parameters", "async")))
        and all(there.get(of, {}).get(name) == said for of in ("methods", "fields") for name, said in known.get(of, {}).items())
        and not any(said.get("abstractmethod") for said in new)
    )


def signatures(a, results):
    """The installed vLLM has the signatures that the plug-in was written for."""
    root = pathlib.Path(importlib.util.find_spec("vllm").origin).parent.parent
    spec = importlib.util.spec_from_file_location("vllm_signatures", ROOT / "scripts/vllm_signatures.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    known = json.loads((ROOT / "python/tests/vllm-signatures.json").read_text())
    differ = []
    for module, names in script.USED.items():
        for name in names:
            _, node = script.Package(root).find(module, name)
            if node is None or not agrees(known[f"{module}.{name}"], script.described(node)):
                differ.append(f"{module}.{name}" + (" is missing" if node is None else ""))
    need(not differ, f"these differ: {', '.join(differ)}")
    return f"{len(known)} names are as they were read"


def plugin(a, results):
    """vLLM finds the plug-in, and each registry has it."""
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    load_general_plugins()
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.config.load import LoadConfig
    from vllm.v1.worker import gpu_worker

    names = [type(get_model_loader(LoadConfig(load_format="gpufd"))).__name__, SleepModeBackendFactory.get_backend_class("gpufd").__name__]
    names += [f._registry["gpufd"]().__name__ for f in (WeightTransferEngineFactory, WeightTransferTrainerFactory)]
    need(hasattr(gpu_worker.request_memory, "__wrapped__"), "request_memory is vLLM's own")
    return ", ".join(names)


def disk(a, results):
    """The answer of vLLM alone."""
    with engine(a.model, load_format="auto") as llm:
        results["answer"] = answer(llm)
    return f"{sum(len(tokens) for tokens, _ in results['answer'])} tokens"


def cold(a, results):
    """The first engine loads from disk, and puts."""
    remove_kept()
    began = time.monotonic()
    with engine(a.model) as llm:
        took = time.monotonic() - began
        need(answer(llm) == results["answer"], "the answer is another one")
        (name,) = kept()
        return f"{name.bytes >> 20} MiB as {name.name}, ready in {took:.1f} s"


def warm(a, results):
    """The next one, with the same flags, takes them: that the engine starts shows that its check of free memory holds."""
    (before,) = kept()
    began = time.monotonic()
    with engine(a.model, {"fallback": False}) as llm:
        took = time.monotonic() - began
        need(answer(llm) == results["answer"], "the answer is another one")
        (name,) = kept()
        need(name.version == before.version and name.holders, f"version {name.version} has {len(name.holders)} holders")
        import torch

        return f"ready in {took:.1f} s; PyTorch has {torch.cuda.memory_allocated() >> 20} MiB with the KV cache"


def twice(a, results):
    """Two engines at once: the weights are on the GPU once."""
    (name,) = kept()
    with engine(a.model, {"fallback": False}, share=0.3) as llm:
        left = free()
        command = [sys.executable, __file__, "--model", a.model, "--results", a.results, "--run", "second"]
        try:
            other = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT / 2)
        except subprocess.TimeoutExpired as e:
            raise Failed(f"the second engine has not ended within {e.timeout:.0f} s") from None
        need(other.returncode == 0, f"the second engine has failed: {other.stdout[-300:]}")
        need(answer(llm) == results["answer"], "the answer is another one")
    return f"{name.bytes >> 20} MiB for both; {left >> 20} MiB were free beside the first. {other.stdout.splitlines()[-1]}"


def second(a, results):
    """The engine beside the first, for the step twice."""
    with engine(a.model, {"fallback": False}, share=0.3) as llm:
        need(answer(llm) == results["answer"], "the answer is another one")
        return "the second answers the same"


def refuses(words, model, extra=None, **others):
    """Start an engine that gpufd must refuse, in its own words: vLLM has errors of its own for such engines."""
    try:
        with engine(model, extra, **others):
            pass
    except Exception as e:
        need(re.search(words, f"{e}; {e.__cause__}"), f"this is not gpufd's error: {e}")
    else:
        raise Failed("it was taken")


def mismatch(a, results):
    """Another dtype is refused, by its name."""
    refuses("was put by another engine: .*dtype is", a.model, {"fallback": False}, dtype="float32")
    return "dtype is named"


def refused(a, results):
    """A quantisation that is not known to work is refused. vLLM quantises to fp8 with any loader, and to others only with theirs."""
    refuses("weights with quantisation .* not known to be the same", a.model, quantization="fp8")
    return "the quantisation is named"


def sleep(a, results):
    """Kept weights are parked while the engine sleeps, at both levels, and captured graphs go on over them."""
    said = []
    with engine(a.model, {"fallback": False}, share=0.5, enable_sleep_mode=True, sleep_mode_backend="gpufd") as llm:
        for level in (1, 2):
            before = free()
            llm.sleep(level=level)
            (name,) = kept()
            need(name.parts[0].parked, f"level {level}: the weights are on the GPU still")
            said.append(f"level {level} frees {free() - before >> 20} MiB")
            llm.wake_up()
            need(answer(llm) == results["answer"], f"level {level}: the answer is another one")
    return ", ".join(said)


def sleep_cold(a, results):
    """An engine with sleep mode may be the one that puts, too."""
    remove_kept()
    with engine(a.model, share=0.5, enable_sleep_mode=True, sleep_mode_backend="gpufd") as llm:
        llm.sleep(level=1)
        (name,) = kept()
        need(name.parts[0].parked, "the weights are on the GPU still")
        llm.wake_up()
        need(answer(llm) == results["answer"], "the answer is another one")
    return "put, parked and back"


class Local:
    """vLLM's control of updates, for an engine in this process."""

    def __init__(self, llm):
        self.llm = llm

    def init_weight_transfer_engine(self, init_info):
        self.llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self):
        self.llm.start_weight_update()

    def update_weights(self, update_info):
        self.llm.update_weights({"update_info": update_info})

    def finish_weight_update(self):
        self.llm.finish_weight_update()


def transfer(a, results):
    """Three updates from a trainer: the weights as they are, scaled ones, and the first again."""
    import torch
    from transformers import AutoModelForCausalLM
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer.base import ModuleSource
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    from gpufd.vllm.transfer import GpufdTrainerInitInfo

    wire = WeightTransferConfig(backend="gpufd")
    policy = AutoModelForCausalLM.from_pretrained(a.model, torch_dtype="auto").cuda()
    with engine(a.model, {"fallback": False}, share=0.4, weight_transfer_config=wire) as llm:
        trainer = WeightTransferTrainerFactory.trainer_init("gpufd", wire, GpufdTrainerInitInfo("verify", rank=0), client=Local(llm), source=ModuleSource(policy))
        took = []
        for factor in (1, 2, 0.5):
            with torch.no_grad():
                for p in policy.parameters():
                    p.mul_(factor)
            began = time.monotonic()
            trainer.send_weights()
            took.append(time.monotonic() - began)
            same = answer(llm) == results["answer"]
            need(same == (factor != 2), f"the answer after the factor {factor} is {'the same' if same else 'another one'}")
        trainer.shutdown()
    return "updates took " + ", ".join(f"{t:.2f} s" for t in took)


STEPS = [signatures, plugin, disk, cold, warm, twice, mismatch, refused, sleep, sleep_cold, transfer]


# The table.


@dataclasses.dataclass
class Row:
    step: str
    state: str
    text: str


def run(a, step):
    """Run one step in a process of its own."""
    command = [sys.executable, __file__, "--model", a.model, "--results", a.results, "--run", step.__name__]
    try:
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=LIMIT)
        last = (p.stdout.decode(errors="replace").splitlines() or [""])[-1]
        if p.returncode == 0:
            return Row(step.__name__, "ok", last)
        why, said = last if p.returncode == 1 else "", p.stdout + p.stderr
    except subprocess.TimeoutExpired as e:
        why, said = f"it has not ended within {e.timeout} s", (e.stdout or b"") + (e.stderr or b"")
    pathlib.Path(f"verify-{step.__name__}.log").write_bytes(said)
    return Row(step.__name__, "FAILED", f"{why} (verify-{step.__name__}.log)")


def one(a):
    """Run a step here. Its last line is what the table says."""
    results = json.loads(pathlib.Path(a.results).read_text())
    try:
        text = {step.__name__: step for step in (*STEPS, second)}[a.run](a, results)
    except Failed as e:
        print(e)
        return 1
    pathlib.Path(a.results).write_text(json.dumps(results))
    print(text)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [step.__name__ for step in STEPS]
    parser.add_argument("steps", nargs="*", metavar="STEP", help=", ".join(names))
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--results", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if unknown := [name for name in a.steps if name not in names]:
        parser.error(f"no step {', '.join(unknown)}: there are {', '.join(names)}")
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here", file=sys.stderr)
        return 3
    if a.run:
        return one(a)
    with tempfile.TemporaryDirectory() as directory:
        a.results = os.path.join(directory, "results.json")
        pathlib.Path(a.results).write_text("{}")
        rows = []
        for step in STEPS:
            if not a.steps or step.__name__ in a.steps:
                rows.append(run(a, step))
                print(f"{rows[-1].step:12} {rows[-1].state:7} {rows[-1].text}", flush=True)
    if {row.step for row in rows} - {"signatures", "plugin"}:
        remove_kept()
    return 1 if any(row.state != "ok" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
