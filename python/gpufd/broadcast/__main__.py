"""Run gpufd.broadcast: torchrun … -m gpufd.broadcast NAME"""

import sys

from . import main

sys.exit(main())
