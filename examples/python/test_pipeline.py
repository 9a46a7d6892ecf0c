"""The pipeline of camera, model and sink, with small frames on the software driver."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class Pipeline(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("torch"), "there is no PyTorch here")
    def test_every_frame_comes(self):
        with tempfile.TemporaryDirectory() as directory:
            env = {**os.environ, "GPUFD_DRIVER": "soft", "GPUFD_SOFT_DIR": os.path.join(directory, "soft")}
            small = ["--width", "32", "--height", "16", "--frames", "60"]
            flags = {"sink": ["--check", "1"], "model": small, "camera": [*small, "--rate", "0"]}
            started = {
                name: subprocess.Popen([sys.executable, "-B", str(HERE / f"{name}.py"), "--directory", directory, *more], env=env, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                for name, more in flags.items()
            }  # fmt: skip
            try:
                for name in ("camera", "model", "sink"):
                    out, _ = started[name].communicate(timeout=120)
                    self.assertEqual(started[name].returncode, 0, f"{name}: {out}")
                self.assertRegex(out, r"^60 frames of 1536 bytes \(U8\[3, 16, 32\]\): p50 [0-9.]+ ms, p99 [0-9.]+ ms")
            finally:
                for p in started.values():
                    p.kill()
                    p.wait()
                    p.stdout.close()


if __name__ == "__main__":
    unittest.main()
