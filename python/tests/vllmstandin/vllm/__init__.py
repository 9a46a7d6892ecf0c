"""A stand-in for vLLM: its registries, loaders, workers' memory and sleep, with the signatures of tests/vllm-signatures.json.

It does on the CPU what gpufd.vllm sees of vLLM. Models are those of the module tiny.
"""
