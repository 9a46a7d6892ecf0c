"""Lines for the operator, in vLLM's own log."""

import logging

logger = logging.getLogger("vllm.gpufd")  # vLLM's handlers are at "vllm"
