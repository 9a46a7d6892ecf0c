"""Say where the elements are: export GST_PLUGIN_PATH=$(python3 -m gpufd.gst)"""

from . import PATH

if __name__ == "__main__":
    print(PATH)
