"""GStreamer's elements over memory of a GPU: the tests of test_gst.py and test_gstends.py that hold there, too.

	GPUFD_REQUIRE=gpu,gstreamer python3 python/tests/gpu_gst.py -v

It needs a GPU, and what docs/howto-gstreamer.md installs.
"""

import os
import unittest

import common
import test_gst
import test_gstends
from gpufd.memory import libcuda as _driver


def on_gpu(kind, *but):
    """The tests of a class, over a GPU's memory."""

    class OnGpu(kind):
        def setUp(self):
            if not _driver.has_device():
                common.missing("gpu", "there is no GPU here")
            super().setUp()
            os.environ["GPUFD_DRIVER"] = "cuda"  # which the end of the test restores

        def nothing_left(self):
            """A GPU's driver keeps descriptors from its first use on."""

    for name in but:  # NumPy reads the frames in place
        setattr(OnGpu, name, None)
    return OnGpu


Pictures, Wrong, Ends, Batch = (on_gpu(kind) for kind in (test_gst.Pictures, test_gst.Wrong, test_gstends.Ends, test_gstends.Batch))
OtherPrograms = on_gpu(test_gst.OtherPrograms, "test_reader")

if __name__ == "__main__":
    unittest.main()
