"""What follows an export: warm-up requests, the check, the server's files."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import tensorflow_transform as tft

from tfx_tpu_trainer._support.progress import phase
from tfx_tpu_trainer.components.trainer import tpu_serving_check
from tfx_tpu_trainer.components.trainer.serving_sample import (
    NoSampleError,
    ServingRows,
    TracedReceiver,
    serving_rows,
    take_sample,
)
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.tpu_graph import check_compiles, padded_batch_sizes
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.estimator import Estimator
from tfx_tpu_trainer.estimator.extending import HOST_TAGS, TPU_TAGS
from tfx_tpu_trainer.serving import (
    LOADING_PROCESS,
    Finding,
    FreshProcess,
    MetaGraphDescription,
    RequestError,
    Sample,
    ServingCheckError,
    batching_for_tpu,
    check_saved_model,
    describe_saved_model,
    read_saved_model,
    warmup_requests,
    write_server_config,
    write_serving_check,
    write_warmup,
)

SAMPLE_ROWS = 32
"""Rows that the exported model is compared on."""

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServingStep:
    """Makes an exported model ready for a server, and refuses one that is broken.

    Attributes:
        job: What was asked for.
        receiver_fn: The receiver that the model was exported with.
        host_estimator: The estimator, on the host; `None` if there is none, so that the exported model's answers are
            not compared.
        compiled: What compiling the metagraph for TPU hosts has shown before the training. Defaults to `None`: it is
            compiled now.
    """

    job: TrainJob
    receiver_fn: Callable[[], Any]
    host_estimator: Estimator | None
    compiled: Finding | None = None

    def run(
        self, path: str, checkpoint_path: str | None, process: FreshProcess | None = None
    ) -> None:
        """Writes warm-up requests into a version folder, checks it, and writes the reports."""
        settings, model_uri = self.job.settings, self.job.model.uri
        meta_graphs = [graph for graph in describe_saved_model(path) if "serve" in graph.tags]
        padded = padded_batch_sizes(read_saved_model(path).meta_graphs)
        batch_sizes = settings.warmup_batch_sizes or padded
        receiver = TracedReceiver(self.receiver_fn)
        rows = self._rows(receiver, max(SAMPLE_ROWS, *batch_sizes, 1))
        if rows.are_real:
            with phase("warm-up"):
                self._write_warmup(path, meta_graphs, rows, batch_sizes)
        for_tpu = any(graph.tags == TPU_TAGS for graph in meta_graphs)
        write_server_config(
            model_uri,
            model_name=settings.serving_model_name,
            base_path=f"/models/{settings.serving_model_name}",
            tpu=batching_for_tpu(padded) if for_tpu else None,
        )
        if settings.serving_check != "off":

            def take() -> Sample | str:
                return self._sample(meta_graphs, receiver, rows, checkpoint_path)

            with phase("serving check"):
                self._check(path, take, max(batch_sizes, default=1), process)

    def _rows(self, receiver: TracedReceiver, count: int) -> ServingRows:
        transformed = tft.TFTransformOutput(self.job.transform_graph_path)
        taken = set(receiver.inputs.inputs)
        return serving_rows(
            self.job,
            count,
            transformed_will_do=(
                taken <= set(transformed.transformed_feature_spec())
                and not taken <= set(transformed.raw_feature_spec())
            ),
        )

    def _write_warmup(
        self,
        path: str,
        meta_graphs: list[MetaGraphDescription],
        rows: ServingRows,
        batch_sizes: tuple[int, ...],
    ) -> None:
        try:
            requests = warmup_requests(
                meta_graphs,
                rows.examples,
                defaults=rows.defaults,
                batch_sizes=batch_sizes or (1,),
                model_name=self.job.settings.serving_model_name,
            )
        except RequestError as error:
            _logger.warning(
                "Wrote no warm-up requests: %s. Servers load the model without them.", error
            )
            return
        if requests:
            write_warmup(path, requests)

    def _check(
        self,
        path: str,
        sample: Callable[[], Sample | str],
        batch_size: int,
        process: FreshProcess | None,
    ) -> None:
        settings = self.job.settings
        report = check_saved_model(
            path,
            sample=sample,
            whole_model_on_tpu=settings.export_saved_model_api_version == 1,
            timeout_seconds=settings.serving_check_timeout,
            process=process,
            further_checks={
                tpu_serving_check.CHECK: lambda: (
                    self.compiled or check_compiles(path, settings, batch_size)
                )
            },
        )
        write_serving_check(self.job.model.uri, report)
        if report.passed:
            _logger.info("The exported model passes its check: %s", report.summary())
            return
        problem = f"the exported model fails its check: {report.summary()}"
        if settings.serving_check == "error":
            raise ServingCheckError(
                f"{problem}. The export was removed; the checkpoints were kept. Fix the model, or "
                "let it pass with serving_check='warn'"
            )
        _logger.warning("serving_check='warn': %s", problem)

    def _sample(
        self,
        meta_graphs: list[MetaGraphDescription],
        receiver: TracedReceiver,
        rows: ServingRows,
        checkpoint_path: str | None,
    ) -> Sample | str:
        on_host = [graph for graph in meta_graphs if graph.tags == HOST_TAGS]
        if not on_host:
            return "it has no metagraph for CPU hosts"
        if self.host_estimator is None:
            return "its estimator predicts on TPU cores, which round differently"
        try:
            return take_sample(
                rows,
                receiver=receiver,
                meta_graph=on_host[0],
                estimator=self.host_estimator,
                checkpoint_path=checkpoint_path,
            )
        except NoSampleError as error:
            advice = "" if rows.are_real else "; to check it, give the trainer raw_examples"
            return f"{error}{advice}"


def checking_process(settings: TrainSettings) -> contextlib.AbstractContextManager[Any]:
    """Starts the process that will check the exported model: it imports while the model is evaluated."""
    if settings.serving_check == "off":
        return contextlib.nullcontext()
    return FreshProcess(LOADING_PROCESS)
