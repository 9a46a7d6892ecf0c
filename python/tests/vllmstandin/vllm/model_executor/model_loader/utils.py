from vllm.model_executor.utils import is_weights_pre_processed


def initialize_model(vllm_config, *, prefix="", model_class=None, model_config=None):
    config = model_config or vllm_config.model_config
    return (model_class or config.model_class)(vllm_config=vllm_config, prefix=prefix)


def process_weights_after_loading(model, model_config, target_device):
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is not None:
            if is_weights_pre_processed() and not method.supports_pre_processed_weights:
                raise RuntimeError(f"{type(method).__name__} does not support pre-processed weights")
            method.process_weights_after_loading(module)
