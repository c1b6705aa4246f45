"""Reads a job's input by the calls of input_fn with which it began, wherever it continues.

The calls of input_fn depend on the cores: eight cores of PER_HOST_V2 read batches of an eighth of a step's rows, and
four would read batches of a quarter. So a checkpoint's position keeps the calls. A training that continues on other
cores, or on the host, makes the same calls, joins a step's batches, and cuts them again. A log line names the layers
that depend on how many cores share its rows: batch statistics and random draws.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing.input_position import latest_reading
from tfx_tpu_trainer.estimator._engine.copying.cross_replica_ops import EXCHANGES
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import (
    InputTensors,
    as_input_tensors,
    is_number,
    split_features_and_labels,
)
from tfx_tpu_trainer.estimator._engine.graph_nodes import functions_of, nodes_called, upstream
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate
from tfx_tpu_trainer.estimator._engine.training.training_plan import TrainingPlan
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator._run_config import RunConfig
from tfx_tpu_trainer.estimator._user_calls import check_tensors_are_inside
from tfx_tpu_trainer.estimator.places.host import OnHost
from tfx_tpu_trainer.estimator.places.place import Call, Hooks
from tfx_tpu_trainer.estimator.tpu._tpu_context import TPUContext
from tfx_tpu_trainer.estimator.tpu.cores.layout import (
    CoreLayout,
    InputMode,
    RowSlice,
    batch_sizes,
    number_of_sources,
    row_slices,
)
from tfx_tpu_trainer.estimator.tpu.cores.run import READ_ONCE, CoreRun

v1 = tf.compat.v1
_logger = tf.get_logger()

_DRAWS = re.compile(r"^(Stateless|Parameterized)?(Random|TruncatedNormal|Multinomial)(?!.*Dataset)")
# The op name of tf.nn.moments, which unfused batch norms call; so do layer norms, over other axes.
_MOMENTS = re.compile(r"(?:^|/)moments(_\d+)?/mean$")


@dataclasses.dataclass(frozen=True)
class JobInput:
    """How a job reads its input, with the replicas on which it ran last."""

    rows: int  # Rows of a step.
    replicas: int = 1  # Copies of the model; 1 on the host.
    replica_rows: int = 0  # Rows of a step that each of them has.
    # How rows reached the replicas where the job began; `None` if that was the host.
    mode: InputMode | None = None
    layout: CoreLayout | None = None  # The cores where the job began; `None` if that was the host.

    @classmethod
    def on_cores(cls, run: CoreRun) -> JobInput:
        """Describes a job that begins on cores."""
        rows = run.sizes.input_fn * len(_draws(run))
        return cls(rows, run.cores, run.sizes.model_fn, run.input_mode, run.layout)

    @classmethod
    def on_host(cls, rows: int) -> JobInput:
        """Describes a job that begins on the host."""
        return cls(rows, replica_rows=rows)

    @property
    def text(self) -> str:
        """The saved form."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def parse(cls, text: str) -> JobInput:
        """Parses the saved form."""
        saved = json.loads(text)
        if saved["layout"] is not None:
            saved["layout"] = CoreLayout(**saved["layout"])
            saved["mode"] = InputMode(saved["mode"])
        return cls(**saved)


@dataclasses.dataclass(frozen=True)
class GoingOn:
    """A job with its current replicas."""

    job: JobInput  # How it reads, and the replicas that it has now.
    before: JobInput  # The same, with those that it had.
    as_it_began: bool  # Whether its replicas read what they would read if the job began here.

    @classmethod
    def from_checkpoint(cls, here: JobInput, config: RunConfig) -> GoingOn:
        """Finds how the job of a configuration's checkpoint reads its input."""
        # A job with another number of rows in a step is a different job.
        folder = config.model_dir if config.save_input_position else None
        text = latest_reading(folder) if folder else None
        before = JobInput.parse(text) if text else here
        if before.rows != here.rows:
            before = here
        job = dataclasses.replace(here, mode=before.mode, layout=before.layout)
        return cls(job, before, as_it_began=job == here)

    def warn_of_changes(self, template: ModelTemplate) -> None:
        """Logs one line about a training that continues with other replicas, if anything differs."""
        before, now = self.before, self.job
        has_other_rows = before.replica_rows != now.replica_rows
        if before.replicas == now.replicas and not has_other_rows:
            return
        moved = (
            f"This training had {_counted(before.replicas, 'replica')} of {_counted(before.replica_rows, 'row')} and "
            f"continues with {now.replicas} of {_counted(now.replica_rows, 'row')}"
        )
        causes = []
        if has_other_rows and (layers := _layers(template, _takes_statistics)):
            causes.append(
                f"{layers} now normalizes over {_counted(now.replica_rows, 'row')} of a replica instead of "
                f"{before.replica_rows}"
            )
        if layers := _layers(template, lambda _, node: bool(_DRAWS.match(node.op))):
            causes.append(f"{layers} draws other numbers, as each replica draws its own")
        if causes:
            _logger.warning(
                "%s. It no longer equals one that stayed: %s. The rows of each step are the same.",
                moved,
                "; ".join(causes),
            )
        else:
            _logger.info("%s, with the same rows in each step.", moved)

    def read(self, call: Call, *, batch_axis: Sequence[int | None] | None) -> InputTensors:
        """Reads one step's rows in a single batch, by the job's original calls."""
        job = self.job
        if job.layout is None or job.mode is None:
            added = {"batch_size": job.rows}
            return as_input_tensors(call.call_input_fn(added)).with_tensors()
        run = CoreRun(
            mode=ModeKeys.TRAIN,
            layout=job.layout,
            input_mode=job.mode,
            sizes=batch_sizes(job.mode, job.layout, job.rows),
            batch_axis=batch_axis,
        )
        return _put_together(sources_of(run, call), _draws(run), batch_axis)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobOnHost(OnHost):
    """A training on the host that may continue one on cores, or be continued there."""

    rows: int  # Rows of a step.
    # The axis of each input tensor that has its rows, or `None`.
    batch_axis: Sequence[int | None] | None = None

    def plan_training(
        self, *, steps: int | None, max_steps: int | None
    ) -> tuple[TrainingPlan, Hooks]:
        """Plans training; see `OnHost`."""
        plan, hooks = super().plan_training(steps=steps, max_steps=max_steps)
        return dataclasses.replace(plan, reading=self._going_on.job.text), hooks

    def read_input(self) -> InputTensors:
        """Reads the input by the job's original calls."""
        going_on = self._going_on
        if going_on.as_it_began:
            return super().read_input()
        return going_on.read(self.call, batch_axis=self.batch_axis)

    def look_at(self, template: ModelTemplate) -> None:
        """Logs differences to a training that stayed on cores."""
        self._going_on.warn_of_changes(template)

    @property
    def _going_on(self) -> GoingOn:
        return GoingOn.from_checkpoint(JobInput.on_host(self.rows), self.call.config)


def sources_of(run: CoreRun, call: Call) -> list[InputTensors]:
    """Makes a run's calls of input_fn in the default graph."""
    return [_source(run, call, i) for i in range(number_of_sources(run.input_mode, run.layout))]


def slices_of(run: CoreRun, *, put_together: bool) -> tuple[RowSlice, ...]:
    """Returns each replica's rows, from a run's own calls of input_fn or from a whole step's batch."""
    mode = run.input_mode
    if put_together and not run.broadcast:
        mode = InputMode.SLICED
    return row_slices(mode, run.layout)


def _draws(run: CoreRun) -> list[tuple[int, int]]:
    """Returns a step's draws as pairs of an input_fn call and a number, in the order of the rows."""
    parts = row_slices(run.input_mode, run.layout)
    return list(dict.fromkeys((part.source, part.draw) for part in parts))


def _put_together(
    sources: Sequence[InputTensors],
    draws: Sequence[tuple[int, int]],
    batch_axis: Sequence[int | None] | None,
) -> InputTensors:
    if len(draws) == 1:
        return sources[0]
    batches: list[Any] = []
    for number, draw in draws:
        source = sources[number]
        batch = (source.features, source.labels)
        if draw:
            assert source.iterator is not None
            # A source's batches must come in order.
            before = tf.nest.flatten(_leaves(batches[-1]), expand_composites=True)
            with tf.control_dependencies(before):
                batch = split_features_and_labels(source.iterator.get_next())
        batches.append(batch)
    columns = list(zip(*map(_leaves, batches)))
    axes = batch_axis or [0] * len(columns)
    joined = iter([_joined(parts, axis or 0) for parts, axis in zip(columns, axes)])
    features, labels = tf.nest.map_structure(
        lambda leaf: None if leaf is None else next(joined), batches[0]
    )
    return InputTensors(features, labels, tuple(hook for each in sources for hook in each.hooks))


def _leaves(batch: Any) -> list[tf.Tensor]:
    return [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]


def _joined(parts: Iterable[Any], axis: int) -> Any:
    first, *others = parts
    if isinstance(first, tf.SparseTensor):  # On the host, ids of a TPU embedding may be.
        return tf.sparse.concat(axis, [first, *others], expand_nonconcat_dims=True)
    return first if is_number(first) else tf.concat([first, *others], axis)


def _source(run: CoreRun, call: Call, index: int) -> InputTensors:
    context = TPUContext(run.layout, run.input_mode, invocation=index, job=run.job)
    with _input_scope(run, index, context):
        returned = call.call_input_fn({"batch_size": run.sizes.input_fn, "context": context})
    is_dataset = isinstance(returned, tf.data.Dataset)
    if run.input_mode is InputMode.PER_SHARD_V1 and is_dataset:
        raise TypeError(
            "`input_fn` returning `Dataset`  is not yet supported in per-Core input pipeline "
            "deployment yet. Please set TPUConfig.per_host_input_for_training to True or return "
            "`features` and `labels` from `input_fn`."
        )
    if run.input_mode is InputMode.PER_HOST_V2 and not is_dataset:
        raise TypeError(
            "`input_fn` must return a `Dataset` for the PER_HOST_V2 input pipeline configuration; "
            f"got {returned!r}."
        )
    if run.mode == ModeKeys.PREDICT and not is_dataset:
        raise TypeError(
            "For mode PREDICT, `input_fn` must return `Dataset` instead of `features` and "
            f"`labels`: only a dataset has a known end; got {returned!r}."
        )
    if run.mode == ModeKeys.PREDICT and _has_features_alone(returned):
        # `map` unpacks a tuple into arguments; this turns (features,) into features.
        returned = returned.map(lambda features: features)
    inputs = as_input_tensors(returned).with_tensors()
    check_tensors_are_inside(inputs.features, inputs.labels)
    return inputs


def _has_features_alone(dataset: tf.data.Dataset) -> bool:
    """Returns whether the elements are 1-tuples, which the original accepts for prediction."""
    return type(dataset.element_spec) is tuple and len(dataset.element_spec) == 1


def _input_scope(
    run: CoreRun, index: int, context: TPUContext
) -> contextlib.AbstractContextManager[Any]:
    """Returns the name scope of an input_fn call, named as in the original's graphs."""
    if run.input_mode in READ_ONCE:
        return contextlib.nullcontext()
    scope = f"input_pipeline_task{context.current_host}/"
    if run.input_mode is InputMode.PER_SHARD_V1:
        scope += f"ordinal_{index % run.layout.replicas_per_host}/"
    return v1.name_scope(scope)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _layers(template: ModelTemplate, wanted: Callable[[tf.Operation, v1.NodeDef], bool]) -> str:
    """Names the layers with certain ops upstream of the loss, unless an exchange between replicas evens them out."""
    graph = template.graph
    exchanged = {
        output.name
        for op in graph.get_operations()
        if op.type in EXCHANGES
        for output in op.outputs
    }
    functions = functions_of(graph.as_graph_def().library)
    found: dict[str, str] = {}
    for op in upstream([graph.as_graph_element(template.loss)], given=exchanged):
        for node in (op.node_def, *nodes_called([op.node_def], functions)):
            if wanted(op, node):
                found.setdefault(_layer(op.name), node.op)
    return ", ".join(f"{name} ({kind})" for name, kind in sorted(found.items()))


def _takes_statistics(op: tf.Operation, node: v1.NodeDef) -> bool:
    if node.op.startswith("FusedBatchNorm"):
        # Keras implements layer norm with this op, with rows as the channels of a batch of 1.
        in_channels = node.attr["data_format"].s == b"NCHW" and op.inputs[0].shape[:1] == [1]
        return node.attr["is_training"].b and not in_channels
    if node.op != "Mean" or node.name != op.name or not _MOMENTS.search(op.name):
        return False
    axes = tf.get_static_value(op.inputs[1])
    return axes is not None and 0 in np.ravel(axes)


def _layer(name: str) -> str:
    """Returns an op's layer: "deep/dropout" for "deep/dropout/dropout/random_uniform/RandomUniform"."""
    scopes = name.split("/")[:-1] or [name]
    while len(scopes) > 1 and re.match(
        r"(moments|random_uniform|random_normal)(_\d+)?$", scopes[-1]
    ):
        scopes.pop()
    if len(scopes) > 1 and scopes[-1] in (scopes[-2], "dropout"):
        scopes.pop()
    return "/".join(scopes)
