"""The calls of an estimator, one after the other, each checked by what it leaves behind."""

import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


class Calls:
    """Makes the calls of estimators, and checks what comes of them.

    Attributes:
        done: The names of the calls that came right.
    """

    def __init__(
        self, make: Callable[[], Any], *, steps: int = 4, unset: Sequence[str] = ()
    ) -> None:
        """Keeps what all calls need.

        Args:
            make: Returns a new estimator each time, on the same model_dir.
            steps: Those of a train call.
            unset: Prefixes of variables that may be NaN.
        """
        self.done: list[str] = []
        self._make = make
        self._steps = steps
        self._unset = tuple(unset)

    def train_and_resume(self, input_fn: Callable[..., Any], **arguments: Any) -> None:
        """Trains, then trains on from the checkpoint in a new estimator."""
        self.train(input_fn, **arguments)
        estimator = self._make()
        estimator.train(input_fn, steps=self._steps, **arguments)
        reached = estimator.get_variable_value("global_step")
        assert reached == 2 * self._steps, f"resumed, {reached} steps in place of {2 * self._steps}"
        self.done.append("resume")

    def train(self, input_fn: Callable[..., Any], **arguments: Any) -> None:
        """Trains from nothing: the checkpoint must be of the last step, and have weights that changed."""
        estimator = self._make()
        assert estimator.latest_checkpoint() is None
        estimator.train(input_fn, steps=self._steps, **arguments)
        reached = estimator.get_variable_value("global_step")
        assert reached == self._steps, f"{reached} steps in place of {self._steps}"
        names = [name for name in estimator.get_variable_names() if name != "global_step"]
        assert names, "the checkpoint has no weights"
        for name in names:
            if name.startswith(self._unset):
                continue
            value = estimator.get_variable_value(name)
            is_float = np.issubdtype(value.dtype, np.floating)
            assert not is_float or np.isfinite(value).all(), f"{name}: {value}"
        self.done.append("train")

    def evaluate(
        self, input_fn: Callable[..., Any], *, steps: int | None = None, names: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Evaluates the last checkpoint: metrics must be finite, and those with these names be there."""
        estimator = self._make()
        metrics = estimator.evaluate(input_fn, steps=steps)
        assert metrics["global_step"] == estimator.get_variable_value("global_step")
        for name, value in metrics.items():
            assert (
                not np.issubdtype(np.asarray(value).dtype, np.number) or np.isfinite(value).all()
            ), f"{name}: {value}"
        missing = [name for name in ("loss", *names) if name not in metrics]
        assert not missing, f"{missing} not in {sorted(metrics)}"
        self.done.append("evaluate")
        return metrics

    def predict(self, input_fn: Callable[..., Any], *, rows: int) -> list[Any]:
        """Predicts, each row once."""
        found = list(self._make().predict(input_fn))
        assert len(found) == rows, f"{len(found)} rows in place of {rows}"
        first = found[0] if isinstance(found[0], dict) else {"prediction": found[0]}
        for name, value in first.items():
            value = np.asarray(value)
            assert not np.issubdtype(value.dtype, np.floating) or np.isfinite(value).all(), name
        self.done.append("predict")
        return found

    def export(
        self, receiver: Callable[[], Any], feed: Any, *, signature: str = "serving_default"
    ) -> dict[str, np.ndarray]:
        """Exports, and calls the export's signature."""
        folder = self._make().export_saved_model(tempfile.mkdtemp(), receiver)
        with tf.Graph().as_default(), tf.Session() as session:
            loaded = tf.saved_model.load(session, ["serve"], tf.compat.as_str(folder))
            told = loaded.signature_def[signature]
            feeds = feed if isinstance(feed, dict) else {next(iter(told.inputs)): feed}
            given = {told.inputs[name].name: value for name, value in feeds.items()}
            names = {name: info.name for name, info in told.outputs.items()}
            answers = session.run(names, given)
        assert answers
        self.done.append("export")
        return answers

    def finish(self) -> None:
        """Prints what was done, for the test to read."""
        assert self.done
        print("CALLS", *self.done)


def run_config(tf_tpu: Any, model_dir: str, cores: int, **arguments: Any) -> Any:
    """Returns the RunConfig of a TPUEstimator as programs of that time make it.

    Args:
        tf_tpu: The module with `RunConfig` and `TPUConfig`.
        model_dir: Where checkpoints go.
        cores: How many; 0 for the host.
        arguments: More of RunConfig's.
    """
    tpu_config = tf_tpu.TPUConfig(iterations_per_loop=2, num_shards=max(cores, 1))
    return tf_tpu.RunConfig(
        model_dir=model_dir, tpu_config=tpu_config, tf_random_seed=1, **arguments
    )
