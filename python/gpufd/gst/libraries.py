"""GStreamer's libraries, of the versions that the elements want."""

from __future__ import annotations

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstBase", "1.0")
gi.require_version("GstVideo", "1.0")

from gi.repository import GLib, GObject, Gst, GstBase, GstVideo

Gst.init(None)

__all__ = ["GLib", "GObject", "Gst", "GstBase", "GstVideo"]
