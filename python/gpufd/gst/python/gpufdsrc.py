"""The element gpufdsrc, where GStreamer's loader looks for it."""

import os
import sys

from gi.repository import Gst

sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "../../..")))  # find gpufd where it is not installed

from gpufd.gst.source import GpufdSrc

__gstelementfactory__ = ("gpufdsrc", Gst.Rank.NONE, GpufdSrc)
