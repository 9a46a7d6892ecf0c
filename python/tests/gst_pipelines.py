"""Pipelines in processes of their own, for the tests of GStreamer's elements."""

import functools
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
from unittest import mock

import common
import forks
from common import PATIENCE
from gpufd.gst import PATH

PEER = str(pathlib.Path(__file__).with_name("gst_peers.py"))
_registry = tempfile.TemporaryDirectory(prefix="gpufd-gst-")


@functools.lru_cache(maxsize=None)
def need_gst():
    if not shutil.which("gst-launch-1.0"):
        common.missing("gstreamer", "there is no gst-launch-1.0 here")
    env = {**os.environ, **gst_environment()}
    for what in ("python", "videotestsrc", "appsrc"):
        p = subprocess.run(["gst-inspect-1.0", what], env=env, capture_output=True, text=True, timeout=PATIENCE)
        if p.returncode:
            common.missing("gstreamer", f"GStreamer has no {what} here: {p.stderr}")
    try:
        import gi  # noqa: F401
    except ImportError:
        common.missing("gstreamer", f"{sys.executable} has no gi")


def setUpModule():
    need_gst()
    with mock.patch.dict(os.environ, gst_environment()):
        forks.begin("gst_peers", "gpufd.gst.source", "gpufd.gst.sink", "gpufd.gst.batch")


def gst_environment():
    return {"GST_PLUGIN_PATH": PATH, "GST_REGISTRY": os.path.join(_registry.name, "registry"), "PYTHONPATH": str(common.PACKAGE)}


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Pipelines(common.Scene):
    def setUp(self):
        need_gst()
        super().setUp()
        self.environ(XDG_RUNTIME_DIR=self.dir, **gst_environment())

    def launch(self, description):
        """A pipeline of gst-launch-1.0."""
        return self.run_program(["gst-launch-1.0", *description.split()])

    def peer(self, description, *flags):
        """A pipeline whose buffers come as lines."""
        return self.watched(self.run_program([sys.executable, "-B", PEER, *flags, description]))

    def watched(self, p):
        """Kill a program that runs for too long, because reading its lines would wait forever. Returns it."""
        watch = threading.Timer(PATIENCE, p.kill)
        watch.start()
        self.addCleanup(watch.join)
        self.addCleanup(watch.cancel)
        return p

    def writer(self, description):
        """A pipeline that has a sink. It ends as one of gst-launch-1.0 does."""
        return self.run_program([sys.executable, "-B", PEER, "--whole", description])

    def line(self, p):
        """The next thing that a peer says."""
        said = []
        for text in p.stdout:
            if text.startswith("{"):
                return json.loads(text)
            said.append(text)
        self.fail(f"the peer has ended: {''.join(said)}")

    def lines(self, p):
        """All buffers up to the end of the stream, after which the peer ends."""
        got = []
        while "sha" in (told := self.line(p)):
            got.append(told)
        self.assertEqual(told, {"eos": True})
        self.assertEqual(p.wait(PATIENCE), 0)
        return got

    def goes_on(self, p):
        p.stdin.write("\n")
        p.stdin.flush()

    def reference(self, description):
        """Run a pipeline without gpufd, and return its buffers."""
        return self.lines(self.peer(description))

    def same(self, got, want, *but):
        """The buffers are those of a pipeline without gpufd, in bytes, caps and times."""
        keys = [k for k in ("sha", "size", "caps", "pts", "dts", "duration") if k not in but]
        self.assertEqual([[b[k] for k in keys] for b in got], [[b[k] for k in keys] for b in want])
