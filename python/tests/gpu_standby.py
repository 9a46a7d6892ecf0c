"""A standby takes over from an engine that is killed: examples/python/standby.py with a large model, on a GPU.

	GPUFD_REQUIRE=gpu python3 python/tests/gpu_standby.py [GIB] -v

GIB of kept weights are random numbers, 16 by default. It needs a GPU, PyTorch 2, and gpufd's programs (GPUFD_BIN, or Go to build
them). Times are printed, and not judged.
"""

import gc
import os
import signal
import sys
import time

import gpu  # first: it says where the package is
from gpu_scripts import SCRIPTS, Running
from keepers import Keeper, wait_for

import gpufd

WIDTH, VOCABULARY = 4096, 32000
GIB = int(sys.argv.pop(1)) if sys.argv[1:] and sys.argv[1].isdigit() else 16
PROMPT = "1 7 300 42 5 99"


class Standby(gpu.OnGPU):
    def setUp(self):
        super().setUp()
        self.torch = gpu.Torch().lib
        keeper = Keeper(self.dir)
        self.addCleanup(keeper.close)
        self.env = {**os.environ, "GPUFD_DRIVER": "cuda", "GPUFD_SOCKET": keeper.socket}
        self.socket = keeper.socket

    def put(self):
        """Have the keeper keep a model of random weights. Return its bytes."""
        import small

        torch = self.torch
        labels = {"width": str(WIDTH), "vocabulary": str(VOCABULARY), "dtype": "bfloat16", "blocks": str(max(1, (GIB << 30) // (24 * WIDTH**2)))}
        model = small.empty_model(labels).to_empty(device="cuda")
        torch.manual_seed(1)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn(p.shape, device="cuda", dtype=p.dtype) * 0.02 + (p.dim() == 1))
        done = gpufd.torch.put("large", model, socket=self.socket, labels=labels)
        del model, p
        gc.collect()
        torch.cuda.empty_cache()
        return done.bytes

    def engine(self, *flags):
        r = Running(sys.executable, "-B", "-u", str(SCRIPTS / "standby.py"), "--name", "large", *flags, env=self.env)
        self.addCleanup(lambda: r.process.stdin.closed or r.end(signal.SIGKILL))
        return r

    def test_the_standby_answers(self):
        size, free = self.put(), lambda: gpu.vitals()[2]
        first = self.engine()
        first.until(lambda: first.lines, "the first engine")
        want = first.ask(PROMPT)
        one, began = free(), time.monotonic()
        standby = self.engine("--after", str(first.process.pid))
        standby.until(lambda: standby.lines, "the standby's sleep")
        ready, two = time.monotonic() - began, free()
        self.assertEqual(standby.said(), [{"asleep": 1, "lease_kept": True}])
        self.assertLess(one - two, min(size, 4 << 30), "the standby has weights of its own")
        standby.process.stdin.write(PROMPT + "\n")
        standby.process.stdin.flush()
        began = time.monotonic()
        first.process.send_signal(signal.SIGKILL)
        standby.until(lambda: len(standby.lines) == 3, "the standby's answer")
        took = time.monotonic() - began
        said = standby.said()
        self.assertEqual((said[1]["awake"], said[2]), (1, want))
        first.end(signal.SIGKILL)
        wait_for(lambda: free() > two, "the memory of the first")
        gpu.seen("standby.py", f"{size / 2**30:.1f} GiB of weights, which both engines share", f"ready {ready:.2f} s after exec; asleep it has {(one - two) >> 20} MiB of the device")
        told = f"{took:.3f} s from kill -9 to {len(want['tokens'])} tokens, those of the first; to map the weights took {said[1]['took']} of that"
        gpu.seen("standby.py", "kill -9 of the first engine", told)
        code, errors = self.ended(standby)
        self.assertEqual((code, "Traceback" in errors), (0, False), errors)

    def ended(self, engine):
        engine.process.stdin.close()
        engine.process.wait(60)
        return engine.end()


if __name__ == "__main__":
    sys.exit(gpu.main())
