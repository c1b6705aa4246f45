"""Feeds an input_fn's dataset to the replicas of a `tf.distribute` strategy."""

import concurrent.futures
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfx_tpu_trainer._support.waiting import named
from tfx_tpu_trainer.estimator._engine.feeding.input_tensors import split_features_and_labels
from tfx_tpu_trainer.estimator.places.strategy import tf_private_strategy

v1 = tf.compat.v1


_T = TypeVar("_T")


def spans_processes(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether a strategy has replicas in other processes, which run the same steps."""
    return strategy.num_replicas_in_sync > len(strategy.extended.worker_devices)


def is_elsewhere(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether a strategy has replicas in other processes or on TPUs."""
    return spans_processes(strategy) or is_of_tpus(strategy)


def is_of_tpus(strategy: Any) -> bool:
    """Returns whether a strategy is TensorFlow's for TPUs, of either generation of its class; `False` for `None`."""
    return type(strategy).__name__.startswith("TPUStrategy")


def _cluster_of(strategy: tf.distribute.Strategy) -> tf.train.ClusterSpec:
    resolver = strategy.cluster_resolver if spans_processes(strategy) else None
    return tf.train.ClusterSpec({}) if resolver is None else resolver.cluster_spec()


def _check_devices_are_here(strategy: tf.distribute.Strategy) -> None:
    """Rejects a strategy with remote devices that a program without eager execution can't reach."""
    if is_elsewhere(strategy):
        raise RuntimeError(
            f"{type(strategy).__name__} connects to its devices eagerly, but this program disabled "
            "eager execution with tf.compat.v1.disable_eager_execution() or "
            "disable_v2_behavior(). Remove that call; model_fn is traced into a v1 graph anyway. "
            "A strategy with its replicas in this process (MirroredStrategy) needs no change."
        )


def _made_eagerly(strategy: tf.distribute.Strategy) -> tf.distribute.Strategy:
    """Makes a strategy of GPUs again, eagerly, which sets the order of its devices' collectives."""
    kinds = (tf.distribute.MirroredStrategy, v1.distribute.MirroredStrategy)
    devices = strategy.extended.worker_devices
    if isinstance(strategy, kinds) and any("GPU" in device for device in devices):
        return type(strategy)(list(devices))
    return strategy


class EagerThread:
    """A thread in which TensorFlow executes eagerly."""

    # A strategy runs eagerly, while the session and hooks that drive it are in a graph. Eager
    # execution is a property of the thread, and no public call leaves a graph, except closing it.

    def __init__(self, cluster: tf.train.ClusterSpec) -> None:
        self._cluster = cluster
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None

    def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Calls a function in the thread; returns its result or raises its error."""
        return self._result_of(self._eagerly, function, *args)

    def run_beside(self, function: Callable[..., _T], *args: Any) -> _T:
        """Calls a function eagerly in the caller's thread, while this one may be busy."""
        return self._eagerly(function, *args)

    def is_switched_on(self) -> bool:
        """Returns whether the program lets TensorFlow execute eagerly in a new thread."""
        return self._result_of(tf.executing_eagerly)

    def end(self) -> None:
        """Ends the thread; the next call starts another one."""
        # A graph refers to the object that runs its steps, and waits for Python's collector; a
        # thread that waited with it would keep one of glibc's arenas.
        if self._executor is not None:
            # It is idle by now. Python's collector may be closing a session, and must not wait for
            # threads.
            self._executor.shutdown(wait=False)
            self._executor = None

    def _result_of(self, function: Callable[..., _T], *args: Any) -> _T:
        if self._executor is None:
            self._executor = concurrent.futures.ThreadPoolExecutor(1, "strategy")
        return self._executor.submit(function, *args).result()

    def _eagerly(self, function: Callable[..., _T], *args: Any) -> _T:
        # Even if the program has called disable_v2_behavior(), as programs for TensorFlow 1 do.
        try:
            with tf_private_strategy.eager_mode():
                return function(*args)
        except tf.errors.OpError as error:
            if (lost := lost_process(error, self._cluster)) is None:
                raise
            raise ProcessLostError(lost) from error


class StrategyFeed:
    """Feeds the replicas of a strategy: each gets one batch of the dataset.

    Attributes:
        strategy: The strategy.
        eager: The thread that runs it.
        placeholders: Placeholders of one replica's batch in the traced graph; the last is `replica_id`.
        replica_id: Placeholder of the replica's number.
        pipeline: The part of the input that this process draws, as passed to dataset_fn.
        is_saved: Whether the iterator can be saved.
        ends_unevenly: Whether some replicas may have a batch of training when others have none; TensorFlow gives
            those a batch of zeros.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        *,
        repeated: bool,
        saved: bool = False,
        on_host: bool = False,
    ) -> None:
        self.eager = EagerThread(_cluster_of(strategy))
        # TPUs draw in their own loops; saving is not tested there.
        self.is_saved = saved and repeated and not is_of_tpus(strategy)
        if not self.eager.is_switched_on():
            _check_devices_are_here(strategy)
            # The default of an estimator's sessions and of TensorFlow 2's eager execution; programs make strategies of
            # GPUs that a host may lack.
            tf.config.set_soft_device_placement(True)
            strategy = self.eager.run(_made_eagerly, strategy)
        self.strategy = strategy
        self._element_spec: Any = None
        self._last_dataset: Any = None
        self.pipeline = tf.distribute.InputContext(
            num_replicas_in_sync=strategy.num_replicas_in_sync
        )
        self.ends_unevenly = spans_processes(strategy)

        def noted(context: tf.distribute.InputContext) -> tf.data.Dataset:
            # As in the original, input_fn can get the strategy that it feeds.
            with strategy.scope():
                dataset = dataset_fn(context)
            if not isinstance(dataset, tf.data.Dataset):
                raise TypeError(
                    "Under a tf.distribute strategy input_fn must return a tf.data.Dataset; got "
                    f"{dataset!r}."
                )
            self._element_spec, self._last_dataset = dataset.element_spec, dataset
            self.pipeline = context
            return dataset

        def marked(context: tf.distribute.InputContext) -> tf.data.Dataset:
            dataset = noted(context)
            # If all batches have one shape, TensorFlow ends every replica's input with the first that ends; else it
            # continues with batches of zeros that are not marked. So each batch has an additional element: 1, or 0 if
            # TensorFlow added the batch.
            endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
            self.ends_unevenly |= not endless and not _is_static(dataset.element_spec)
            return tf.data.Dataset.zip((dataset, tf.data.Dataset.from_tensors(1).repeat()))

        # Only a plain iterator's position can be saved. So if it is to be saved, each process has its dataset's own
        # iterator, and draws a batch for each of its replicas itself; else the strategy distributes, and may read ahead
        # onto the devices. Evaluation and prediction draw themselves, too, since they must know which batches are the
        # last.
        def make() -> Any:
            if repeated and not self.is_saved:
                options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
                return strategy.distribute_datasets_from_function(
                    marked, options if on_host else None
                )
            if repeated and spans_processes(strategy):
                # Only the strategy knows the number of this process.
                strategy.distribute_datasets_from_function(noted)
                return self._last_dataset
            return noted(self.pipeline)

        self._dataset = self.eager.run(make)
        if self.is_saved and not spans_processes(strategy):
            self.ends_unevenly = False
        self.placeholders: tuple[tf.Tensor, ...] = ()
        self.replica_id: tf.Tensor

    @property
    def description(self) -> str:
        """Describes the input: its structure, the batches' shapes, and the process's part."""
        context, structure = self.pipeline, str(self._element_spec)
        if context.num_input_pipelines == 1:
            return structure
        return f"{structure}, {context.input_pipeline_id} of {context.num_input_pipelines}"

    def make_placeholders(self) -> tuple[Any, Any]:
        """Makes one replica's features and labels, placeholders of the default graph."""
        specs = tf.nest.flatten(self._element_spec, expand_composites=True)
        batch = tuple(v1.placeholder(spec.dtype, spec.shape) for spec in specs)
        self.replica_id = v1.placeholder(tf.int32, (), name="replica_id")
        self.placeholders = (*batch, self.replica_id)
        return split_features_and_labels(
            tf.nest.pack_sequence_as(self._element_spec, batch, expand_composites=True)
        )

    def named(self, batch: Sequence[Any]) -> dict[str, tf.Tensor]:
        """Returns name of a placeholder -> the replica's tensor."""
        return {
            placeholder.name: tf.convert_to_tensor(tensor)
            for placeholder, tensor in zip(self.placeholders[:-1], batch, strict=True)
        }

    def batches(self, element: Any) -> list[list[tf.Tensor]]:
        """Splits a step's element into the replicas' batches; called in a function of the strategy."""
        leaves = map(self.strategy.experimental_local_results, tf.nest.flatten(element))
        return [list(tf.nest.flatten(batch, expand_composites=True)) for batch in zip(*leaves)]

    def iterator(self) -> Any:
        """Starts the dataset; called in the eager thread."""
        with tf.device("/device:CPU:0" if self.is_saved else None):
            return iter(self._dataset)

    def next_step(self, iterator: Any) -> tuple[Callable[[], Any], tf.Tensor | None]:
        """Draws the batches of a step of training; called in a function of the strategy."""
        if not self.is_saved:
            element, here = next(iterator)
            return lambda: element, self._have_all(here) if self.ends_unevenly else None
        draws = range(len(self.strategy.extended.worker_devices))
        if not self.ends_unevenly:
            # At the end of the input, the replica that reaches it raises the error.
            batches = [tf.nest.flatten(next(iterator), expand_composites=True) for _ in draws]
            return lambda: self.distribute(batches), None
        drawn = [iterator.get_next_as_optional() for _ in draws]
        here = self.distribute([[tf.cast(one.has_value(), tf.int32)] for one in drawn])[0]

        def element_of_all() -> Any:
            values = (one.get_value() for one in drawn)
            return self.distribute([tf.nest.flatten(v, expand_composites=True) for v in values])

        return element_of_all, self._have_all(here)

    def _have_all(self, here: Any) -> tf.Tensor:
        """Returns whether every replica has a batch, those of other processes included."""
        having = self.strategy.reduce(tf.distribute.ReduceOp.SUM, here, axis=None)
        return tf.equal(having, self.strategy.num_replicas_in_sync)

    def groups(self) -> Generator[list[list[tf.Tensor]], None, None]:
        """Draws the dataset to its end, in the eager thread."""
        replicas = self.strategy.num_replicas_in_sync
        full_shapes: list[tf.TensorShape] | None = None
        waiting: list[list[tf.Tensor]] = []
        for element in self._dataset:
            batch = tf.nest.flatten(element, expand_composites=True)
            shapes = [tensor.shape for tensor in batch]
            full_shapes = full_shapes or shapes
            waiting.append(batch)
            # Replicas may be one program on several cores (TPUStrategy), with one shape.
            if shapes != full_shapes:
                yield from ([one] for one in waiting)
                waiting = []
            elif len(waiting) == replicas:
                yield waiting
                waiting = []
        yield from ([one] for one in waiting)

    def distribute(self, group: list[list[tf.Tensor]]) -> list[Any]:
        """Gives each replica here one batch of a group; called in the eager thread, or a function."""

        def distributed(parts: tuple[tf.Tensor, ...]) -> Any:
            return tf_private_strategy.distribute_values(
                self.strategy,
                # Replicas are numbered over all processes, which have the same number of replicas.
                lambda context: parts[context.replica_id_in_sync_group % len(parts)],
            )

        return [distributed(parts) for parts in zip(*group)]

    def host_values(self, batch: list[tf.Tensor]) -> dict[tf.Tensor, np.ndarray]:
        """Returns the feeds of a session for a batch, with this host as the first replica."""
        values = [*(tensor.numpy() for tensor in batch), np.int32(0)]
        return dict(zip(self.placeholders, values, strict=True))


def _is_static(element_spec: Any) -> bool:
    specs = tf.nest.flatten(element_spec, expand_composites=True)
    return all(spec.shape.is_fully_defined() for spec in specs)


# "/job:worker/replica:0/task:1" and "/job:worker/task:1".
_TASK = re.compile(r"/job:(?P<job>\w+)(?:/replica:\d+)?/task:(?P<task>\d+)")
_CONNECTION_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.UnavailableError,
)
_SIGNS = ("Collective ops is aborted", "from remote target /job:", "heartbeat timeout")


class ProcessLostError(RuntimeError):
    """A process of a training over several is gone; start all of them again to continue."""

    # Not an error on which a MonitoredSession opens another session: once TensorFlow has aborted
    # the collective ops of a process, each further one fails until that process ends.


def lost_process(error: tf.errors.OpError, cluster: tf.train.ClusterSpec) -> str | None:
    """Explains which process no longer answers; `None` for other errors."""
    if not isinstance(error, _CONNECTION_ERRORS):
        return None
    said = error.message or ""
    task = next((match for sign in _SIGNS if sign in said for match in _TASK.finditer(said)), None)
    if task is None:
        return None
    job, index = task["job"], int(task["task"])
    where = f"{job} {index}"
    if job in cluster.jobs and index in cluster.task_indices(job):
        where = named({where: cluster.task_address(job, index)})
    return (
        f"{where} no longer answers: it has ended, or the network between it and this process is "
        "down. A training over several processes can't continue without one of them: start all of "
        "them again, and they resume from the last checkpoint"
    )
