from dataclasses import dataclass, field


@dataclass
class LoadConfig:
    load_format: str = "auto"
    model_loader_extra_config: dict = field(default_factory=dict)
    device: str | None = None
