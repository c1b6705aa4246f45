"""Makes a decoder's inputs: the targets in training, its own outputs in inference."""

import abc
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.imports import without_notice

v1 = tf.compat.v1
_Step = tuple[Any, Any, Any]


def _time_first(values: tf.Tensor) -> tf.Tensor:
    return tf.transpose(values, [1, 0, *range(2, values.shape.rank)])


def embedding_fn(embedding: Any) -> Callable[[Any], Any]:
    """Returns a function from ids to their embedding."""
    return embedding if callable(embedding) else lambda ids: tf.nn.embedding_lookup(embedding, ids)


def checked_tokens(start_tokens: Any, end_token: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first token of each row, and the last one of all, as tensors."""
    start = tf.convert_to_tensor(start_tokens, tf.int32)
    end = tf.convert_to_tensor(end_token, tf.int32)
    if start.shape.rank != 1 or end.shape.rank != 0:
        raise ValueError(
            "start_tokens must be a vector and end_token a scalar; got the shapes "
            f"{start.shape} and {end.shape}."
        )
    return start, end


class Helper(abc.ABC):
    """Samples from a decoder's outputs, and makes the next inputs."""

    @property
    @abc.abstractmethod
    def batch_size(self) -> Any:
        """The number of rows, a scalar."""

    @property
    def sample_ids_shape(self) -> Any:
        """The shape of a row's sample."""
        return tf.TensorShape([])

    @property
    def sample_ids_dtype(self) -> Any:
        """The samples' type."""
        return tf.int32

    @abc.abstractmethod
    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """Returns which rows have ended before the first step, and the first inputs."""

    @abc.abstractmethod
    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Returns samples of a step."""

    @abc.abstractmethod
    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> _Step:
        """Returns which rows have ended, the next inputs, and the next state."""


class CustomHelper(Helper):
    """A helper made from three functions."""

    def __init__(
        self,
        initialize_fn: Callable[[], tuple[Any, Any]],
        sample_fn: Callable[..., Any],
        next_inputs_fn: Callable[..., _Step],
        sample_ids_shape: Any = None,
        sample_ids_dtype: Any = None,
    ) -> None:
        self._initialize_fn, self._sample_fn = initialize_fn, sample_fn
        self._next_inputs_fn = next_inputs_fn
        self._shape, self._dtype = tf.TensorShape(sample_ids_shape or []), sample_ids_dtype
        self._batch_size: Any = None

    @property
    def batch_size(self) -> Any:
        """The number of rows, once the first inputs are there."""
        if self._batch_size is None:
            raise ValueError("batch_size is known only after initialize().")
        return self._batch_size

    @property
    def sample_ids_shape(self) -> Any:
        """The shape of a row's sample."""
        return self._shape

    @property
    def sample_ids_dtype(self) -> Any:
        """The samples' type."""
        return self._dtype or tf.int32

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """Calls the function."""
        with v1.name_scope(name, "CustomHelperInitialize"):
            finished, inputs = self._initialize_fn()
            if self._batch_size is None:
                self._batch_size = tf.size(finished)
            return finished, inputs

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> Any:
        """Calls the function."""
        with v1.name_scope(name, "CustomHelperSample"):
            return self._sample_fn(time=time, outputs=outputs, state=state)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> _Step:
        """Calls the function."""
        with v1.name_scope(name, "CustomHelperNextInputs"):
            return self._next_inputs_fn(
                time=time, outputs=outputs, state=state, sample_ids=sample_ids
            )


class TrainingHelper(Helper):
    """Reads the inputs of each step from a tensor, regardless of the outputs."""

    def __init__(
        self, inputs: Any, sequence_length: Any, time_major: bool = False, name: str | None = None
    ) -> None:
        with v1.name_scope(name, "TrainingHelper"):
            self._inputs = tf.nest.map_structure(tf.convert_to_tensor, inputs)
            self._by_time = (
                self._inputs if time_major else tf.nest.map_structure(_time_first, self._inputs)
            )
            self._sequence_length = tf.convert_to_tensor(sequence_length)
            if self._sequence_length.shape.rank != 1:
                raise ValueError(
                    "sequence_length must be a vector, a length for each row; got the shape "
                    f"{self._sequence_length.shape}."
                )
            self._batch_size = tf.size(self._sequence_length)

    @property
    def inputs(self) -> Any:
        """The inputs, as given."""
        return self._inputs

    @property
    def sequence_length(self) -> tf.Tensor:
        """The length of each row."""
        return self._sequence_length

    @property
    def batch_size(self) -> tf.Tensor:
        """The number of rows."""
        return self._batch_size

    def _at(self, time: Any, finished: tf.Tensor) -> Any:
        """Returns the inputs of a step; zeros if all rows have ended."""
        done = tf.reduce_all(finished)

        def read(values: tf.Tensor) -> tf.Tensor:
            last = tf.shape(values)[0] - 1
            here = values[tf.minimum(tf.cast(time, tf.int32), last)]
            return tf.where(done, tf.zeros_like(here), here)

        return tf.nest.map_structure(read, self._by_time)

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """Returns which rows are empty, and the first inputs."""
        with v1.name_scope(name, "TrainingHelperInitialize"):
            finished = tf.equal(0, self._sequence_length)
            return finished, self._at(0, finished)

    def sample(
        self, time: Any, outputs: Any, state: Any = None, name: str | None = None
    ) -> tf.Tensor:
        """Returns the index of the greatest output."""
        del time, state
        with v1.name_scope(name, "TrainingHelperSample"):
            return tf.argmax(outputs, -1, output_type=tf.int32)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any = None, name: str | None = None
    ) -> _Step:
        """Returns which rows have ended, the next inputs, and the unchanged state."""
        del outputs, sample_ids
        with v1.name_scope(name, "TrainingHelperNextInputs"):
            finished = (time + 1) >= tf.cast(self._sequence_length, tf.int32)
            return finished, self._at(time + 1, finished), state


class GreedyEmbeddingHelper(Helper):
    """Feeds the embedding of the greatest output, until a token ends the row."""

    def __init__(self, embedding: Any, start_tokens: Any, end_token: Any) -> None:
        self._embedding_fn = embedding_fn(embedding)
        self._start_tokens, self._end_token = checked_tokens(start_tokens, end_token)
        self._batch_size = tf.size(self._start_tokens)
        self._start_inputs = self._embedding_fn(self._start_tokens)

    @property
    def batch_size(self) -> tf.Tensor:
        """The number of rows."""
        return self._batch_size

    def initialize(self, name: str | None = None) -> tuple[Any, Any]:
        """Returns that no row has ended, and the embedding of the first tokens."""
        del name
        return tf.fill([self._batch_size], False), self._start_inputs

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> tf.Tensor:
        """Returns the index of the greatest output."""
        del time, state, name
        return tf.argmax(outputs, -1, output_type=tf.int32)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any, name: str | None = None
    ) -> _Step:
        """Returns which rows have ended, the samples' embedding, and the unchanged state."""
        del time, outputs, name
        finished = tf.equal(sample_ids, self._end_token)
        return finished, self._embedding_fn(sample_ids), state


class SampleEmbeddingHelper(GreedyEmbeddingHelper):
    """Feeds the embedding of an output that is drawn by its probability."""

    def __init__(
        self,
        embedding: Any,
        start_tokens: Any,
        end_token: Any,
        softmax_temperature: Any = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(embedding, start_tokens, end_token)
        self._temperature, self._seed = softmax_temperature, seed

    def sample(self, time: Any, outputs: Any, state: Any, name: str | None = None) -> tf.Tensor:
        """Draws an index for each row."""
        del time, state, name
        logits = outputs if self._temperature is None else outputs / self._temperature
        drawn = without_notice(v1.multinomial)(logits, 1, seed=self._seed, output_dtype=tf.int32)
        return tf.squeeze(drawn, -1)


class ScheduledEmbeddingTrainingHelper(TrainingHelper):
    """Reads the inputs, and at random feeds the embedding of the decoder's sample instead."""

    def __init__(
        self,
        inputs: Any,
        sequence_length: Any,
        embedding: Any,
        sampling_probability: Any,
        time_major: bool = False,
        seed: int | None = None,
        scheduling_seed: int | None = None,
        name: str | None = None,
    ) -> None:
        self._embedding_fn = embedding_fn(embedding)
        self._probability = tf.convert_to_tensor(sampling_probability)
        self._seed, self._scheduling_seed = seed, scheduling_seed
        super().__init__(inputs, sequence_length, time_major, name)

    def sample(
        self, time: Any, outputs: Any, state: Any = None, name: str | None = None
    ) -> tf.Tensor:
        """Returns an index for each row whose sample is fed, and -1 for the others."""
        del time, state, name
        chosen = (
            tf.random.uniform([self.batch_size], seed=self._scheduling_seed) < self._probability
        )
        drawn = without_notice(v1.multinomial)(outputs, 1, seed=self._seed, output_dtype=tf.int32)
        return tf.where(chosen, tf.squeeze(drawn, -1), -1)

    def next_inputs(
        self, time: Any, outputs: Any, state: Any, sample_ids: Any = None, name: str | None = None
    ) -> _Step:
        """Returns which rows have ended, the next inputs, and the unchanged state."""
        finished, inputs, state = super().next_inputs(time, outputs, state, sample_ids, name)
        fed = self._embedding_fn(tf.maximum(sample_ids, 0))
        return finished, tf.where((sample_ids > -1)[:, tf.newaxis], fed, inputs), state
