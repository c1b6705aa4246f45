"""What a legacy trainer_fn returns, checked before anything is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.compat.tfma_export import receive_evaluation
from tfx_tpu_trainer.components.trainer.evaluation_end import RowLimit, check_input_ends
from tfx_tpu_trainer.components.trainer.values import suggest
from tfx_tpu_trainer.estimator import Estimator, EvalSpec, FinalExporter, ModeKeys, TrainSpec
from tfx_tpu_trainer.estimator.extending import call_input_fn

_KEYS = ("estimator", "train_spec", "eval_spec", "eval_input_receiver_fn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """An estimator, and how it is trained, evaluated and exported.

    Attributes:
        estimator: The estimator.
        train_spec: How it is trained.
        eval_spec: How it is evaluated, and its exporters. The first of them makes Format-Serving.
        eval_input_receiver_fn: Returns what Format-TFMA, and the signature `transform_features` of
            Format-Serving, are made of.
    """

    estimator: Estimator
    train_spec: TrainSpec
    eval_spec: EvalSpec
    eval_input_receiver_fn: Callable[[], Any]

    @classmethod
    def read(cls, returned: Any, *, module: str) -> TrainingSpec:
        """Reads what trainer_fn has returned."""
        values = _entries(returned, module)
        _check_estimator(values["estimator"], module)
        for name, kind in (("train_spec", TrainSpec), ("eval_spec", EvalSpec)):
            if not isinstance(values[name], kind):
                raise ValueError(
                    f"{name} of module {module!r} is {_described(values[name])}, not "
                    f"tfx_tpu_trainer's {kind.__name__}; {_WAY_TO_OURS}"
                )
        if not callable(values["eval_input_receiver_fn"]):
            raise ValueError(
                f"eval_input_receiver_fn of module {module!r} is "
                f"{values['eval_input_receiver_fn']!r}; give a function that returns an "
                "EvalInputReceiver"
            )
        spec = cls(**values)
        spec._check_exports(module)
        return spec

    def _check_exports(self, module: str) -> None:
        exporters, steps = self.eval_spec.exporters, self.train_spec.max_steps
        if not exporters:
            raise ValueError(
                f"eval_spec of module {module!r} has no exporters, so no model would be exported; "
                "give EvalSpec(..., exporters=FinalExporter('name', serving_input_receiver_fn))"
            )
        if steps is None and isinstance(exporters[0], FinalExporter):
            raise ValueError(
                f"train_spec of module {module!r} has max_steps=None, and a FinalExporter exports when "
                "max_steps is reached: give TrainSpec(..., max_steps=trainer_fn_args.train_steps)"
            )

    def check_eval_receiver(self) -> None:
        """Builds the receiver of the evaluation on trial: a mistake would else show after the training."""
        try:
            with tf.Graph().as_default():
                receive_evaluation(self.eval_input_receiver_fn)
        except Exception as error:
            lines = str(error).strip().splitlines() or ["no reason given"]
            raise ValueError(
                "the eval_input_receiver_fn fails, so the model couldn't be exported after training: "
                f"{type(error).__name__}: {lines[0]}"
            ) from error

    def check_evaluation_ends(self) -> None:
        """Refuses an evaluation of all batches of an input that has no last one."""
        if self.eval_spec.steps is not None:
            return
        check_input_ends(
            lambda: call_input_fn(
                self.eval_spec.input_fn,
                mode=ModeKeys.EVAL,
                params={"batch_size": 1, **self.estimator.params},
                config=self.estimator.config,
            ),
            called="eval_spec.steps",
            found_in="trainer_fn_args.eval_steps",
        )

    def with_row_limit(self, limit: RowLimit | None) -> TrainingSpec:
        """Returns the same, whose evaluations read no more rows than a limit allows."""
        if limit is None or self.eval_spec.steps is not None:
            return self
        hooks = (*self.eval_spec.hooks, limit.hook())
        return dataclasses.replace(self, eval_spec=self.eval_spec._replace(hooks=hooks))


def _entries(returned: Any, module: str) -> dict[str, Any]:
    where = f"trainer_fn of module {module!r}"
    wanted = f"a dict with {', '.join(map(repr, _KEYS))}"
    if not isinstance(returned, Mapping):
        raise ValueError(f"{where} returned {_described(returned)}; let it return {wanted}")
    unexpected = sorted(str(key) for key in returned if key not in _KEYS)
    missing = [key for key in _KEYS if key not in returned]
    if missing:
        others = f", and has {', '.join(map(repr, unexpected))}" if unexpected else ""
        hints = "; ".join(f"{key!r}: {suggest(key, _KEYS)}" for key in unexpected)
        raise ValueError(
            f"{where} returned a dict that lacks {', '.join(map(repr, missing))}{others}; let it "
            f"return {wanted}{f' ({hints})' if hints else ''}"
        )
    if unexpected:
        tf.get_logger().warning(
            "%s also returned %s, which is ignored.", where, ", ".join(map(repr, unexpected))
        )
    return {key: returned[key] for key in _KEYS}


def _check_estimator(estimator: Any, module: str) -> None:
    if isinstance(estimator, Estimator):
        return
    way_out = _WAY_TO_OURS
    if isinstance(estimator, tf.Module) or callable(getattr(estimator, "compile", None)):
        way_out = (
            "convert a Keras model with model_to_estimator, or train it in the stock Trainer with "
            "a run_fn"
        )
    raise ValueError(
        f"estimator of module {module!r} is {_described(estimator)}, not tfx_tpu_trainer's "
        f"Estimator; {way_out}"
    )


def _described(value: Any) -> str:
    kind = type(value)
    return repr(value) if value is None else f"a {kind.__module__}.{kind.__qualname__}"


_WAY_TO_OURS = (
    "leave restore_tf_estimator on, so that tf.estimator is ours, or import it from there in the "
    "module"
)
