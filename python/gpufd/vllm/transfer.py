"""The weight transfer backend ``gpufd``, on gpufd.weights: an engine for vLLM's workers, and one for the trainer."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from ..errors import TimedOutError, UsageError, WeightsError
from ..weights.meta import Meta
from ..weights.publisher import Publisher
from ..weights.subscriber import Subscriber
from ..weights.update import Update

WAIT = 300.0  # seconds for the other side, as of vLLM's own clients


@dataclass
class GpufdWeightTransferInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """The text that a worker gets once.

    name    of the publisher
    wait    seconds to wait for the publisher, and for an update to come whole
    """

    name: str
    wait: float = WAIT


@dataclass
class GpufdWeightTransferUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The text that a worker gets for each update: the trainer's step."""

    step: int


class GpufdWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """Takes updates from the publisher on the worker's own GPU, whichever ordinals and ranks the trainer has."""

    init_info_cls = GpufdWeightTransferInitInfo
    update_info_cls = GpufdWeightTransferUpdateInfo

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._subscriber: Subscriber | None = None
        self._wait = WAIT

    def init_transfer_engine(self, init_info: GpufdWeightTransferInitInfo) -> None:
        """Become a subscriber of the trainer's."""
        self.shutdown()
        self._wait = init_info.wait
        device = self.device if self.device.type == "cuda" else None
        self._subscriber = Subscriber(init_info.name, device=device, wait=init_info.wait)

    def start_weight_update(self) -> None:
        """Prepare the model for weights as the files have them."""
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Put the processed weights in place."""
        finalize_layerwise_reload(self.model, self.model_config)

    def receive_weights(self, update_info: GpufdWeightTransferUpdateInfo) -> None:
        """Load the update of that step while it comes. Raises WeightsError (torn) if it does not come whole."""
        self._update_of(update_info.step).load(self.model.load_weights, timeout=self._wait)

    def _update_of(self, step: int) -> Update:
        """Wait for the update of a step. Those of before, whose request has failed elsewhere, are left out."""
        if self._subscriber is None:
            raise UsageError("the weight transfer was not initialised: call init_weight_transfer_engine first")
        until = time.monotonic() + self._wait
        while True:
            update = self._subscriber.next(max(0.0, until - time.monotonic()))
            if not isinstance(update, Update):
                raise UsageError("the trainer publishes in place: use its publisher without in_place")
            if update.step == step:
                return update
            if update.step > step:
                raise WeightsError(f"the trainer sends step {update.step}, and step {step} was asked for", step=step, reason="over")

    def shutdown(self) -> None:
        """Leave the trainer."""
        subscriber, self._subscriber = self._subscriber, None
        if subscriber:
            subscriber.close()

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, Any]], trainer_args: Any) -> None:
        """Send tensors as one update. trainer_args has the publisher, a gpufd.weights.Publisher, and the step."""
        publisher, step = trainer_args["publisher"], trainer_args["step"]
        with publisher.update(step) as send:
            for name, tensor in iterator:
                send(name, tensor)


@dataclass
class GpufdTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    """The arguments of a trainer's engine.

    rank    of this process; rank 0 talks to vLLM
    name    of the publisher, for workers to find it
    wait    seconds for the workers
    """

    name: str
    wait: float = WAIT


class GpufdTrainerWeightTransferEngine(TrainerWeightTransferEngine):  # type: ignore[misc]
    """Sends the weights of a source. Each rank of the trainer publishes them on its own GPU, for the worker there."""

    init_info_cls = GpufdTrainerInitInfo
    config_cls = WeightTransferConfig

    def __init__(self, config: Any, *, client: Any, source: Any, is_sender: bool = True, init_info: GpufdTrainerInitInfo) -> None:
        super().__init__(config, client=client, source=source, is_sender=is_sender)
        self._name, self._wait, self._step = init_info.name, init_info.wait, 0
        self._metadata = {m.name: Meta(m.dtype, m.shape) for m in source.metadata()}
        self._publisher: Publisher | None = None

    @classmethod
    def trainer_init(cls, config: Any, init_info: GpufdTrainerInitInfo, *, client: Any, source: Any) -> GpufdTrainerWeightTransferEngine:
        """Publish under the name, and have vLLM's workers subscribe."""
        made = cls(config, client=client, source=source, is_sender=init_info.is_sender, init_info=init_info)
        try:
            made._published()
            if init_info.is_sender:
                client.init_weight_transfer_engine(asdict(GpufdWeightTransferInitInfo(init_info.name, init_info.wait)))
        except BaseException:
            made.shutdown()
            raise
        return made

    def _published(self) -> Publisher:
        """Return the publisher: another one after an update that could not be sent."""
        if not self._publisher:
            self._publisher = Publisher(self._name, self._metadata, stall=self._wait)
        return self._publisher

    def send_weights(self) -> None:
        """Send the weights of the source as the next step. vLLM's workers load them meanwhile."""
        self._step += 1
        if not self.is_sender:
            return self._publish()
        self.client.start_weight_update()
        try:
            self._send()
        except BaseException:
            with contextlib.suppress(Exception):
                self.client.finish_weight_update()  # vLLM starts no other update before
            raise
        self.client.finish_weight_update()

    def _send(self) -> None:
        """Publish, while another thread has vLLM's workers load."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            told = pool.submit(self.client.update_weights, asdict(GpufdWeightTransferUpdateInfo(self._step)))
            try:
                self._publish(told)
            except Exception as e:
                if told.done() and (why := told.exception()):
                    raise why from e  # that is why nobody takes the update
                raise
            told.result()

    def _publish(self, told: concurrent.futures.Future[None] | None = None) -> None:
        """Send the tensors of the source. If that fails, the publisher ends, so that workers do not wait for the rest."""
        try:
            publisher = self._published()
            self._await_worker(publisher, told)
            with publisher.update(self._step) as send:
                for name, tensor in self.source:
                    send(name, tensor)
        except BaseException:
            self.shutdown()
            raise

    def _await_worker(self, publisher: Publisher, told: concurrent.futures.Future[None] | None) -> None:
        """Wait until the worker on this GPU subscribes. If vLLM has refused the update meanwhile, raise its error."""
        until = time.monotonic() + self._wait
        while True:
            try:
                return publisher.await_subscribers(1, timeout=1.0)
            except TimedOutError:
                if told and told.done():
                    told.result()
                if time.monotonic() > until:
                    raise

    def shutdown(self) -> None:
        """End the publisher."""
        publisher, self._publisher = self._publisher, None
        if publisher:
            publisher.close()
