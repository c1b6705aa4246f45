"""The engine's inputs: the template of a traced model_fn, and the settings of a run."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import tensorflow as tf

v1 = tf.compat.v1

_logger = tf.get_logger()


@dataclasses.dataclass(frozen=True)
class HostFunction:
    """A function that runs outside of the model, once a step, on some of its tensors.

    The engine's form of `eval_metrics` and `host_call`: it is not called while the model is traced,
    so a place can first gather the tensors of all replicas.

    Attributes:
        name: The user's name for it: `"eval_metrics"` or `"host_call"`.
        function: Takes the tensors, positionally from a sequence, by keyword from a mapping.
        tensors: The tensors, a sequence or a mapping.
    """

    name: str
    function: Callable[..., Any]
    tensors: Sequence[Any] | Mapping[str, Any]

    def __call__(self) -> Any:
        """Calls the function on its tensors."""
        if not isinstance(self.tensors, Mapping):
            return self.function(*self.tensors)
        try:
            return self.function(**self.tensors)
        except TypeError as error:
            _logger.warning(
                "Exception while calling %s: %s. It is likely the tensors (%s[1]) do not match the "
                "function's arguments: the keys %s must be the argument names of %r.",
                self.name,
                error,
                self.name,
                sorted(self.tensors),
                self.function,
            )
            raise


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTemplate:
    """A model traced once, at the top level of a v1 graph.

    Attributes:
        graph: The graph that holds everything below.
        mode: `"train"`, `"eval"` or `"infer"`.
        features: The features that model_fn received, a nested structure of tensors. A place that
            runs the template more than once replaces these and the labels.
        labels: Nested structure of tensors, or `None`.
        loss: Scalar tensor; `None` in mode `"infer"`.
        train_op: The op or tensor that runs a step; `None` outside mode `"train"`.
        predictions: A tensor or a mapping of tensors.
        eval_metrics: Metrics to be built: the function returns name -> (value, update op).
        eval_metric_ops: Metrics that the model built itself: name -> (value, update op).
        host_call: Function that runs outside of the model once a step.
        make_scaffold: Returns the `Scaffold` of the session; called once, after tracing.
        hooks: The session hooks that model_fn gave for this mode.
        chief_hooks: The same, for the chief only.
        table_update: Function that trains embedding tables, once a step, from the tensors of all
            replicas.
    """

    graph: tf.Graph
    mode: str
    features: Any
    labels: Any
    loss: tf.Tensor | None
    train_op: tf.Operation | tf.Tensor | None
    predictions: Any
    eval_metrics: HostFunction | None
    eval_metric_ops: Mapping[str, Any]
    host_call: HostFunction | None
    make_scaffold: Callable[[], v1.train.Scaffold]
    hooks: tuple[v1.train.SessionRunHook, ...]
    chief_hooks: tuple[v1.train.SessionRunHook, ...]
    table_update: HostFunction | None = None

    @property
    def loss_dtype(self) -> tf.DType:
        """Dtype of the loss.

        Raises:
            ValueError: If the template has none.
        """
        if self.loss is None:
            raise ValueError(f"A template of mode {self.mode!r} has no loss.")
        return self.loss.dtype


class SessionSettings(Protocol):
    """The part of a `RunConfig` that the engine reads."""

    @property
    def model_dir(self) -> str | None:
        """Folder of checkpoints and events; never `None` during a run."""

    @property
    def is_chief(self) -> bool:
        """Whether this process initializes variables and saves."""

    @property
    def session_config(self) -> v1.ConfigProto | None:
        """Configuration of every session."""

    @property
    def save_summary_steps(self) -> int | None:
        """Steps between summaries; 0 or `None` switches them off."""

    @property
    def save_checkpoints_steps(self) -> int | None:
        """Steps between checkpoints; if the seconds between them are `None` too, no checkpoint is written."""

    @property
    def save_checkpoints_secs(self) -> int | None:
        """Seconds between checkpoints, or `None`."""

    @property
    def keep_checkpoint_max(self) -> int | None:
        """Checkpoints kept; 0 or `None` keeps all."""

    @property
    def keep_checkpoint_every_n_hours(self) -> float | None:
        """Hours after which one is kept for good."""

    @property
    def log_step_count_steps(self) -> int | None:
        """Steps between log lines of loss and step; `None` for none."""

    @property
    def session_creation_timeout_secs(self) -> int | None:
        """Seconds that a worker waits for the chief, and a session for the tasks that it needs."""

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The cluster; empty for a local run."""

    @property
    def checkpoint_save_graph_def(self) -> bool:
        """Whether graph.pbtxt and .meta files are written."""

    @property
    def jit_compile(self) -> bool | Literal["auto"] | None:
        """Whether XLA compiles the steps of loops; `"auto"` measures.

        `None` runs small ops on one thread each instead; `False` changes nothing.
        """

    @property
    def save_input_position(self) -> bool:
        """Whether the position of the training input is saved with each checkpoint."""

    @property
    def first_checkpoint_secs(self) -> int | None:
        """Seconds to the first checkpoint by time; `None` for equal intervals."""

    @property
    def stall_timeout_secs(self) -> float | None:
        """Seconds without a step after which a session ends; `None` never ends it."""

    @property
    def profile_steps(self) -> tuple[int, int] | None:
        """The first and the last global step to profile, or `None`."""


def folder_of(settings: SessionSettings) -> str:
    """Returns the folder of a run's checkpoints and events."""
    assert settings.model_dir is not None
    return settings.model_dir
