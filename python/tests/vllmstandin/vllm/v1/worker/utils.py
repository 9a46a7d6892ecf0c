import math


def request_memory(init_snapshot, cache_config):
    requested = math.ceil(init_snapshot.total_memory * cache_config.gpu_memory_utilization)
    if init_snapshot.free_memory < requested:
        raise ValueError("Free memory on device on startup is less than desired GPU memory utilization")
    return requested
