"""Evaluates slices of the eval split together with the whole: wraps input_fn and model_fn, and splits the result."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_model_analysis as tfma
import tensorflow_transform as tft

from tfx_tpu_trainer.components.evaluation import EvalMetrics, SliceMetrics
from tfx_tpu_trainer.components.evaluation._data_slices import (
    OTHER_VALUE,
    SliceKey,
    SliceValue,
    count_slices,
    features_of,
    most_frequent,
    other_slice,
    parse_slicing_specs,
    slice_name,
)
from tfx_tpu_trainer.components.inputs import RAW_PREFIX, RawEvaluationInput
from tfx_tpu_trainer.components.trainer.rows import RowLimit, values_by_row
from tfx_tpu_trainer.components.trainer.train_job import TrainJob
from tfx_tpu_trainer.components.trainer.values import suggest
from tfx_tpu_trainer.components.user_module._module import UserModule
from tfx_tpu_trainer.estimator import ModeKeys, tpu
from tfx_tpu_trainer.estimator.extending import (
    EXAMPLE_COUNT,
    EvalResult,
    Slice,
    call_input_fn,
    emulated_replicas,
    slice_eval_metrics,
    slice_membership,
    split_by_slice,
)
from tfx_tpu_trainer.estimator.tpu import TPUEstimatorSpec

v1 = tf.compat.v1
_logger = logging.getLogger(__name__)

MEMBERSHIP = "__slice_membership__"
"""Feature with the slices of each row, which passes through the input; model_fn never sees it."""


@dataclasses.dataclass(frozen=True)
class Slicing:
    """The slices of an evaluation."""

    keys: tuple[SliceKey, ...]  # Slice keys, in TFMA's form.
    slices: tuple[Slice, ...]  # The slices' definitions.
    # The label's name for slicing, if the labels are one tensor.
    label_key: str | None = None

    @classmethod
    def find(
        cls,
        specs: Sequence[tfma.SlicingSpec],
        dataset_fn: Callable[[], tf.data.Dataset],
        *,
        max_slices: int,
        label_key: str | None,
        check_read: Callable[[int], None] = lambda read: None,
    ) -> Slicing:
        """Reads the eval split once to find the values of the specs' features.

        An evaluation's graph computes all slices, so they must be known when it is built.
        """
        # One pass counts distinct rows of the sliced features: 15,000 trips by hour and payment are some hundred
        # counts. These give the slices of each spec, the most frequent first, and `__OTHER__` for the rest. A slice
        # that two specs select is measured once.
        names = sorted({name for spec in specs for name in features_of(spec)})
        rows, dtypes = _read_rows(dataset_fn, names, label_key, check_read)
        found: dict[SliceKey, Slice] = {}
        for spec in specs:
            counts = count_slices(rows, names, spec)
            if not counts:
                _logger.warning(
                    "No row of the eval split is in a slice by %s, so none is measured.",
                    ", ".join(features_of(spec)),
                )
            for key, one in _slices_of(spec, counts, max_slices, dtypes):
                found.setdefault(key, one)
        return cls(tuple(found), tuple(found.values()), label_key)

    @property
    def names(self) -> list[str]:
        """The slices' names."""
        return [one.name for one in self.slices]

    def input_fn(self, input_fn: Callable[..., Any]) -> Callable[..., tf.data.Dataset]:
        """Wraps the evaluation's input function to add each row's membership to the features."""
        if not self.slices:
            return input_fn

        @functools.wraps(input_fn)
        def with_membership(*args: Any, **kwargs: Any) -> tf.data.Dataset:
            add_membership = tf.autograph.experimental.do_not_convert(self._add_membership)
            return input_fn(*args, **kwargs).map(add_membership)

        return with_membership

    def model_fn(
        self, model_fn: Callable[..., Any], *, on_this_host: bool = True
    ) -> Callable[..., Any]:
        """Wraps a model_fn to slice its eval_metrics if the input carries memberships."""

        @functools.wraps(model_fn)
        def sliced_model_fn(features: Any, **rest: Any) -> Any:
            if not isinstance(features, Mapping) or MEMBERSHIP not in features:
                return model_fn(features, **rest)
            features = dict(features)
            membership = features.pop(MEMBERSHIP)
            spec = model_fn(features, **rest)
            if not isinstance(spec, TPUEstimatorSpec) or spec.eval_metrics is None:
                raise ValueError(
                    "slicing_specs need a metric_fn to call for each slice: let model_fn return a "
                    "TPUEstimatorSpec with eval_metrics=(metric_fn, tensors), or leave slicing_specs "
                    f"out; it returned a {type(spec).__name__}."
                )
            metric_fn, tensors = spec.eval_metrics
            sliced = slice_eval_metrics(
                metric_fn, tensors, membership, self.names, on_this_host=on_this_host
            )
            return spec._replace(eval_metrics=sliced)

        return sliced_model_fn

    def metrics_of(self, result: EvalResult) -> EvalMetrics:
        """Splits a result into the metrics of the whole and of the slices.

        A slice without rows is left out, since the evaluation may have read only a part of the split.
        """
        overall, by_slice = split_by_slice(result.metrics, self.names)
        metrics = EvalMetrics.from_result(dataclasses.replace(result, metrics=overall))
        slices = [
            SliceMetrics(
                key=key,
                # from_result has already warned of metrics that are not scalars.
                metrics={name: part[name] for name in metrics.overall if name in part},
                num_examples=int(part[EXAMPLE_COUNT]),
            )
            for key, part in zip(self.keys, by_slice)
            if part[EXAMPLE_COUNT]
        ]
        return dataclasses.replace(metrics, slices=tuple(slices))

    def _add_membership(self, *element: Any) -> Any:
        features, *labels = element
        wanted = {name for one in self.slices for name, _ in one.conditions}
        sliced_by = _select(features, labels, wanted, self.label_key)
        membership = slice_membership(sliced_by, self.slices)
        of_model = {k: v for k, v in features.items() if not k.startswith(RAW_PREFIX)}
        features = {**of_model, MEMBERSHIP: membership}
        return (features, *labels) if labels else features


def _slices_of(
    spec: tfma.SlicingSpec,
    counts: Counter,
    max_slices: int,
    dtypes: Mapping[str, tf.DType],
) -> list[tuple[SliceKey, Slice]]:
    keys = most_frequent(counts, max_slices)
    slices = [
        (key, Slice(name=slice_name(key), conditions=_conditions(key, dtypes))) for key in keys
    ]
    if len(counts) > len(keys):
        other = other_slice(keys[0], spec)
        name = slice_name(other)
        _logger.warning(
            "%d slices by %s are more than max_slices=%d: the %d with the fewest rows are measured "
            "together as %s.",
            len(counts),
            ", ".join(features_of(spec)),
            max_slices,
            len(counts) - len(keys),
            name,
        )
        excluded = tuple(one.conditions for _, one in slices)
        slices.append(
            (other, Slice(name=name, conditions=_conditions(other, dtypes), excluded=excluded))
        )
    return slices


def _conditions(key: SliceKey, dtypes: Mapping[str, tf.DType]) -> tuple[Any, ...]:
    def typed(name: str, value: SliceValue) -> SliceValue | None:
        if value == OTHER_VALUE:
            return None
        if dtypes[name] == tf.string:
            return str(value)
        return float(value) if dtypes[name].is_floating else int(value)

    return tuple((name, typed(name, value)) for name, value in key)


def _read_rows(
    dataset_fn: Callable[[], tf.data.Dataset],
    names: Sequence[str],
    label_key: str | None,
    check_read: Callable[[int], None],
) -> tuple[Counter, dict[str, tf.DType]]:
    """Counts distinct rows, as tuples of each feature's values.

    In its own graph, since programs in TF1 behaviour have no eager iteration.
    """
    rows: Counter = Counter()
    read = 0
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        dataset = dataset_fn()
        if not isinstance(dataset, (tf.data.Dataset, v1.data.Dataset)):
            raise ValueError(
                f"slicing_specs need an input_fn that returns a tf.data.Dataset; got {dataset!r}."
            )

        def select(features: Any, *labels: Any) -> dict[str, Any]:
            return _select(features, labels, names, label_key)

        selected = dataset.map(tf.autograph.experimental.do_not_convert(select))
        iterator = v1.data.make_initializable_iterator(selected)
        batch = iterator.get_next()
        dtypes = {name: batch[name].dtype for name in names}
        with v1.Session() as session:
            session.run([v1.tables_initializer(), iterator.initializer])
            while True:
                try:
                    values = session.run(batch)
                except tf.errors.OutOfRangeError:
                    return rows, dtypes
                of_batch = list(zip(*(_values_by_row(name, values[name]) for name in names)))
                rows.update(of_batch)
                read += len(of_batch)
                check_read(read)


def _select(
    features: Any, labels: Sequence[Any], names: Sequence[str] | set[str], label_key: str | None
) -> dict[str, Any]:
    """Returns the features to slice by, labels included."""
    if not isinstance(features, Mapping):
        raise ValueError(
            "slicing_specs need features by name: let input_fn return a Dataset of dicts; its features "
            f"are {features!r}."
        )
    known = {
        name.removeprefix(RAW_PREFIX): value
        for name, value in features.items()
        if name.startswith(RAW_PREFIX)
    }
    known |= {name: value for name, value in features.items() if not name.startswith(RAW_PREFIX)}
    for part in labels:
        if isinstance(part, Mapping):
            known.update(part)
        elif label_key is not None:
            known[label_key] = part
    for name in names:
        if name not in known:
            raise ValueError(
                f"slicing_specs name the feature {name!r}, which the evaluation's input doesn't "
                f"have; {suggest(name, known)}. For a raw feature give TpuTrainer raw_examples=, "
                "or let Transform return it under this name."
            )
    return {name: known[name] for name in names}


def _values_by_row(name: str, values: Any) -> list[tuple[SliceValue, ...]]:
    """Returns the distinct values of each row in a batch, as Python values."""
    return [
        tuple(sorted(_as_python(name, value) for value in set(row.tolist())))
        for row in values_by_row(values)
    ]


def _as_python(name: str, value: Any) -> SliceValue:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError(
                f"slicing_specs name the feature {name!r}, whose value {value!r} is not a UTF-8 "
                "string; leave it out of them, or let Transform return it as text."
            ) from None
    return int(value) if isinstance(value, bool) else value


EvalInputFn = Callable[..., tf.data.Dataset]


@dataclasses.dataclass(frozen=True)
class SlicedInput:
    """Slices and the input that has their features."""

    slicing: Slicing
    # The input function, which includes raw features that slices need.
    eval_input_fn: EvalInputFn

    @classmethod
    def find(
        cls,
        job: TrainJob,
        module: UserModule,
        eval_input_fn: EvalInputFn,
        *,
        params: Mapping[str, Any],
        config: tpu.RunConfig,
        row_limit: RowLimit | None = None,
    ) -> SlicedInput | None:
        """Finds a job's slices by reading its eval splits once."""
        settings = job.settings
        specs = parse_slicing_specs(settings.slicing_specs)
        if not specs:
            return None
        if module.input_fn is None:
            eval_input_fn = _with_raw_features(job, specs, eval_input_fn)
        all_params = {**params, "batch_size": settings.rows_per_eval_batch}

        def read_once() -> Any:
            dataset = call_input_fn(
                eval_input_fn, mode=ModeKeys.EVAL, params=all_params, config=config
            )
            if job.eval_steps is None or not isinstance(dataset, tf.data.Dataset):
                return dataset
            # The input may be endless. On cores a step may take one batch per core.
            cores = (settings.num_shards or emulated_replicas()) if settings.use_tpu else 1
            return dataset.take(job.eval_steps * cores)

        slicing = Slicing.find(
            specs,
            read_once,
            max_slices=settings.max_slices,
            label_key=settings.label_key,
            check_read=row_limit.check if row_limit else lambda read: None,
        )
        return cls(slicing, eval_input_fn)

    def input_fn(self) -> EvalInputFn:
        """Returns the input function of an evaluation that measures the slices."""
        return self.slicing.input_fn(self.eval_input_fn)


def _with_raw_features(
    job: TrainJob, specs: Sequence[tfma.SlicingSpec], eval_input_fn: EvalInputFn
) -> EvalInputFn:
    """Reads raw examples instead of Transform's if specs name raw features."""
    output = tft.TFTransformOutput(job.transform_graph_path)
    named = {name for spec in specs for name in features_of(spec)}
    # A name of both a raw and a transformed feature means the transformed one, as in the stock Evaluator.
    raw = sorted(named & set(output.raw_feature_spec()) - set(output.transformed_feature_spec()))
    if not raw or not job.raw_eval_files:
        return eval_input_fn
    return RawEvaluationInput(
        transform_graph_path=job.transform_graph_path,
        file_patterns=job.raw_eval_files,
        label_key=job.settings.label_key,
        raw_features=raw,
    ).eval_fn()
