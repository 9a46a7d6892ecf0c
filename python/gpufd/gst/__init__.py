"""GStreamer elements that pass pictures through channels: gpufdsink, gpufdsrc, gpufdbatch.

    export GST_PLUGIN_PATH=$(python3 -m gpufd.gst)
    gst-launch-1.0 videotestsrc is-live=true ! gpufdsink channel=cam
    gst-launch-1.0 gpufdsrc channel=cam policy=latest ! videoconvert ! autovideosink

They need GStreamer's loader of elements in Python. docs/howto-gstreamer.md in gpufd's sources says more.
"""

from __future__ import annotations

import os

PATH = os.path.dirname(os.path.abspath(__file__))  #: for GST_PLUGIN_PATH

__all__ = ["PATH"]
