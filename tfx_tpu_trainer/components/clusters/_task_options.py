"""Retries of a task, and whether its results may come from a cache."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any

import pydantic

from tfx_tpu_trainer.components.clusters._checks import JobError, first_problem
from tfx_tpu_trainer.components.clusters._platform_document import container_nodes, executor_label

MOST_RETRIES = 1_000
LONGEST_BACKOFF = 86_400
"""The longest pause between two tries of a task, in seconds."""

Retries = typing.Annotated[int, pydantic.Field(ge=0, le=MOST_RETRIES)]


class TaskOptions(pydantic.BaseModel):
    """Retries and caching of a pipeline's tasks.

    Example:
    ```python
    TaskOptions(retries=1, node_retries={"TpuTrainer": 5}, node_caching={"Pusher": False})
    ```

    Attributes:
        retries: How often a failed task is tried again. Defaults to 0.
        node_retries: The same for single nodes, by their ids.
        backoff_seconds: Seconds before the first retry; each further one waits twice as long, an
            hour at most. Defaults to 60.
        caching: Whether results may come from the cache. Defaults to `None`: as the pipeline was
            declared.
        node_caching: The same for single nodes, by their ids.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    retries: Retries = 0
    node_retries: Mapping[str, Retries] = {}
    backoff_seconds: typing.Annotated[int, pydantic.Field(ge=0, le=LONGEST_BACKOFF)] = 60
    caching: bool | None = None
    node_caching: Mapping[str, bool] = {}

    def __init__(self, **values: Any) -> None:
        """Makes the options.

        Args:
            **values: The attributes.

        Raises:
            JobError: If something does not fit.
        """
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise JobError(first_problem(error, "TaskOptions")) from None

    def apply(self, pipeline_spec: dict[str, Any]) -> None:
        """Puts the options into a compiled pipeline.

        Args:
            pipeline_spec: A `PipelineSpec` in JSON form.

        Raises:
            ValueError: If an option names a node that there is not.
        """
        for node in (*self.node_retries, *self.node_caching):
            executor_label(pipeline_spec, node)
        tasks = pipeline_spec["root"]["dag"]["tasks"]
        for node in container_nodes(pipeline_spec):
            retries = self.node_retries.get(node, self.retries)
            if retries:
                tasks[node]["retryPolicy"] = {
                    "maxRetryCount": retries,
                    "backoffDuration": f"{self.backoff_seconds}s",
                    "backoffFactor": 2.0,
                    "backoffMaxDuration": f"{max(3600, self.backoff_seconds)}s",
                }
            caching = self.node_caching.get(node, self.caching)
            if caching is not None:
                tasks[node]["cachingOptions"] = {"enableCache": caching}


def never_cache(pipeline_spec: dict[str, Any], node: str) -> None:
    """Switches the cache of a node off whose result depends on more than its inputs."""
    pipeline_spec["root"]["dag"]["tasks"][node]["cachingOptions"] = {"enableCache": False}
