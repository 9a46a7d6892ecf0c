from abc import ABC, abstractmethod
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ParamMeta:
    name: str
    dtype: object
    shape: tuple


class WeightSource(ABC):
    @abstractmethod
    def metadata(self): ...

    @abstractmethod
    def __iter__(self): ...


class ModuleSource(WeightSource):
    def __init__(self, module):
        self._module = module

    def metadata(self):
        return [ParamMeta(name, p.dtype, tuple(p.shape)) for name, p in self._module.named_parameters()]

    def __iter__(self):
        return iter(self._module.named_parameters())


@dataclass
class WeightTransferInitInfo(ABC):
    pass


@dataclass
class TrainerInitInfo(WeightTransferInitInfo):
    rank: int = field(kw_only=True)

    @property
    def is_sender(self):
        return self.rank == 0


@dataclass
class WeightTransferUpdateInfo(ABC):
    pass


class WeightTransferEngine(ABC):
    init_info_cls: type
    update_info_cls: type

    def __init__(self, config, vllm_config, device, model):
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.model_config = vllm_config.model_config

    def parse_init_info(self, init_dict):
        try:
            return self.init_info_cls(**init_dict)
        except TypeError as e:
            raise ValueError(f"Invalid init_info for {self.__class__.__name__}: {e}") from e

    def parse_update_info(self, update_dict):
        try:
            return self.update_info_cls(**update_dict)
        except TypeError as e:
            raise ValueError(f"Invalid update_info for {self.__class__.__name__}: {e}") from e

    @abstractmethod
    def init_transfer_engine(self, init_info): ...

    @abstractmethod
    def start_weight_update(self): ...

    @abstractmethod
    def finish_weight_update(self): ...

    def update_weights(self, update_info):
        self.receive_weights(self.parse_update_info(update_info))

    @abstractmethod
    def receive_weights(self, update_info): ...

    @abstractmethod
    def shutdown(self): ...

    @staticmethod
    @abstractmethod
    def trainer_send_weights(iterator, trainer_args): ...


class TrainerWeightTransferEngine(ABC):
    init_info_cls: type
    config_cls: type

    def __init__(self, config, *, client, source, is_sender=True):
        self.config, self.client, self.source, self.is_sender = config, client, source, is_sender

    @classmethod
    @abstractmethod
    def trainer_init(cls, config, init_info, *, client, source): ...

    @abstractmethod
    def send_weights(self): ...

    def shutdown(self): ...
