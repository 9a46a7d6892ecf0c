"""A model that learns, with an engine that generates after each step: learn.py on the software driver."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
STEPS, PATIENCE = 30, 120  # seconds


def run(directory, driver, *flags):
    """Run the trainer and the engine to their end, and return the lines of each."""
    env = {**os.environ, "XDG_RUNTIME_DIR": directory, "GPUFD_DRIVER": driver, "GPUFD_SOFT_DIR": os.path.join(directory, "soft"), "OMP_NUM_THREADS": "1"}
    started = {
        role: subprocess.Popen([sys.executable, "-B", str(HERE / "learn.py"), role, *flags], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for role in ("engine", "train")
    }
    try:
        said = {role: p.communicate(timeout=PATIENCE) for role, p in started.items()}
    finally:
        for p in started.values():
            p.kill()
            p.wait()
    for role, p in started.items():
        if p.returncode:
            raise AssertionError(f"{role} ended with {p.returncode}: {said[role]}")
    return [[json.loads(line) for line in said[role][0].splitlines()] for role in ("train", "engine")]


def check(case, trainer, engine, steps=STEPS):
    """The loss falls. After each step the engine has the trainer's weights, and in the end it knows the rule."""
    case.assertEqual([line["step"] for line in trainer], list(range(1, steps + 1)))
    case.assertEqual([(line["step"], line["logits"]) for line in engine], [(line["step"], line["logits"]) for line in trainer])
    case.assertEqual(len({line["logits"] for line in trainer}), steps, "a step has changed nothing")
    case.assertLess(trainer[-1]["loss"], trainer[0]["loss"] / 20)
    case.assertEqual(engine[-1]["tokens"], [9, 28, 23, 8, 25, 14, 12, 6])  # 3 * 13 + 1 is 9, modulo 31
    case.assertNotEqual(engine[0]["tokens"], engine[-1]["tokens"])


class Learn(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("torch"), "there is no PyTorch here")
    def test_the_engine_has_the_weights_of_each_step(self):
        with tempfile.TemporaryDirectory() as directory:
            check(self, *run(directory, "soft", "--steps", str(STEPS), "--device", "cpu"))


if __name__ == "__main__":
    unittest.main()
