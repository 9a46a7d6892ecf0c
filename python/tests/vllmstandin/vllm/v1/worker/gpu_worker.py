from vllm.config import set_current_vllm_config

from .utils import request_memory


class Worker:
    """Asks for memory as a worker does."""

    def __init__(self, vllm_config):
        self.vllm_config = vllm_config

    def init_device(self, init_snapshot):
        with set_current_vllm_config(self.vllm_config):
            self.init_snapshot = init_snapshot
            self.requested_memory = request_memory(init_snapshot, self.vllm_config.cache_config)
