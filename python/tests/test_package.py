"""The package as it is installed: wheel, an empty environment, types. No index is asked."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import common


# A user's file as mypy sees it: each ignored line is an error.
USER = """
import gpufd

gpufd.follow("x", acess=1)  # type: ignore[call-arg]
gpufd.attach_parts("y", acess=1)  # type: ignore[call-arg]
gpufd.channel.follow("x", polcy="block")  # type: ignore[call-arg]
gpufd.channel.Reader("x", newer=1)  # type: ignore[call-arg]
gpufd.channel.Writer("y", slots=2, slot_size=8, time_out=1)  # type: ignore[call-arg]
gpufd.put("x", b"", labels={"step": 3})  # type: ignore[dict-item]
gpufd.put("x", b"", timeout=None)
with gpufd.reserve(1 << 30, device="cuda:0") as at:
    address: int = gpufd.attach("x", at=at).ptr
tensors: dict[str, object] = dict(gpufd.torch.load("x", timeout=None))
client: gpufd.keeper.Client = gpufd.Client()
for version in gpufd.torch.follow("x", within=1.0):
    version.swap(object(), strict=False)
    number: int = version.version
gpufd.torch.follow("x", overlap=True)  # type: ignore[call-arg]
gpufd.transformers.put("x", object(), parts=2)  # type: ignore[call-arg]
gpufd.transformers.load("x", labels={"step": "1"}).eval()
awake: int = gpufd.transformers.Model("x").wake()
for version in gpufd.transformers.follow("x", within=1.0):
    version.model.eval()
gpufd.torch.follow("x", at=gpufd.reserve(1))
gpufd.torch.follow("x", at=5)  # type: ignore[arg-type]
with gpufd.torch.checkpoint(1, timeout=None) as made:
    state: str = made.state
    made.restore({0: "cuda:1"})
gpufd.torch.register_reducer(receiver=1)  # type: ignore[call-arg]
with gpufd.channel.Reader("x").next() as frame:
    pts: int | None = frame.pts
try:
    array: gpufd.Array = gpufd.get("x", part="here")["w"]
except gpufd.NotFoundError as e:
    reason: str = e.reason


async def waits(reader: gpufd.channel.Reader, att: gpufd.Attachment) -> None:
    over: bool = await gpufd.aio.wait(att, 1.0)
    async for one in gpufd.aio.frames(reader):
        size: int = one.size
"""


class Package(unittest.TestCase):
    def run_it(self, *command, **how):
        p = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, **how)
        self.assertEqual(p.returncode, 0, p.stdout)
        return p.stdout

    def test_wheel(self):
        """pip builds a wheel, and installs it into an environment that has nothing else."""
        for module in ("pip", "setuptools", "wheel"):
            if subprocess.run([sys.executable, "-c", f"import {module}"], stderr=subprocess.DEVNULL).returncode:
                common.missing("python", f"{sys.executable} has no {module}")
        with tempfile.TemporaryDirectory() as directory:
            there = pathlib.Path(directory)
            source = there / "source"  # building leaves things beside the sources
            shutil.copytree(common.PACKAGE, source, ignore=shutil.ignore_patterns("tests", "__pycache__", "build", "*.egg-info"))
            pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
            self.run_it(*pip, "wheel", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w", there, source)
            (wheel,) = there.glob("gpufd-*-py3-none-any.whl")
            names = zipfile.ZipFile(wheel).namelist()
            self.assertIn("gpufd/py.typed", names)
            modules = {str(p.relative_to(common.PACKAGE)) for p in (common.PACKAGE / "gpufd").rglob("*.py")}
            self.assertEqual({n for n in names if n.endswith(".py")}, modules)
            (info,) = {n.partition("/")[0] for n in names if ".dist-info/" in n}
            with zipfile.ZipFile(wheel) as z:
                self.assertEqual(z.read(next(n for n in names if n.endswith("LICENSE"))), (common.ROOT / "LICENSE").read_bytes())
                metadata = z.read(f"{info}/METADATA").decode()
                self.assertIn("gpufd-broadcast = gpufd.broadcast:main", z.read(f"{info}/entry_points.txt").decode())
            for line in ("License: Apache-2.0", "Provides-Extra: torch"):
                self.assertIn(line, metadata)
            self.run_it(sys.executable, "-m", "venv", "--without-pip", there / "venv")
            python = there / "venv/bin/python"
            self.run_it(*pip, "--python", python, "install", "-q", "--no-index", "--no-build-isolation", wheel)
            where = self.run_it(python, "-I", "-c", "import gpufd; print(gpufd.__file__)", cwd="/")
            self.assertIn(str(there / "venv"), where)
            text = "import gpufd; m = gpufd.allocate(5, driver='soft'); m.write(0, b'hello'); print(m.read())"
            self.assertIn("b'hello'", self.run_it(python, "-I", "-c", text, cwd="/", env={"GPUFD_SOFT_DIR": str(there / "soft")}))

    def test_types(self):
        mypy = shutil.which("mypy")
        if not mypy:
            common.missing("python", "there is no mypy here")
        with tempfile.TemporaryDirectory() as cache:
            user = pathlib.Path(cache) / "user.py"
            user.write_text(USER)  # mypy tells of an ignore that there is nothing for
            self.run_it(mypy, "--strict", "--cache-dir", cache, "gpufd", user, cwd=common.PACKAGE)

    def test_no_dependency(self):
        """The standard library is all that is imported."""
        text = "import sys; before = set(sys.modules); from gpufd import *; import gpufd.channel; print(*{m.split('.')[0] for m in set(sys.modules) - before})"
        loaded = self.run_it(sys.executable, "-S", "-c", text, cwd=common.PACKAGE).split()
        self.assertEqual([m for m in loaded if m not in sys.stdlib_module_names and m != "gpufd"], [])


if __name__ == "__main__":
    unittest.main()
