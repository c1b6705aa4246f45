"""The slices that a job asks for, and the evaluation's input that they are found in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_model_analysis as tfma
import tensorflow_transform as tft

from tfx_tpu_trainer.component.slicing import Slicing
from tfx_tpu_trainer.component.train_job import TrainJob
from tfx_tpu_trainer.estimator import ModeKeys, tpu
from tfx_tpu_trainer.estimator.user_calls import call_input_fn
from tfx_tpu_trainer.evaluation.slicing_specs import features_of, parse_slicing_specs
from tfx_tpu_trainer.inputs import RawEvaluationInput
from tfx_tpu_trainer.inputs.user_module import UserModule

# As many as the engine takes where num_shards says nothing.
_DEFAULT_CORES = 8

EvalInputFn = Callable[..., tf.data.Dataset]


@dataclasses.dataclass(frozen=True)
class SlicedInput:
    """Slices, and the input that they are found in.

    Attributes:
        slicing: The slices.
        eval_input_fn: The input function, raw features included where they are sliced by.
    """

    slicing: Slicing
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
    ) -> SlicedInput | None:
        """Finds the slices that a job asks for, by reading its eval splits once.

        Args:
            job: What was asked for.
            module: The user's module.
            eval_input_fn: The evaluation's input function.
            params: model_fn's params.
            config: The configuration of the evaluation.

        Returns:
            The slices; `None` where none are asked for.

        Raises:
            ValueError: A feature that is to be sliced by is not there.
        """
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
            # The input may be endless. On cores a step may take a batch for each of them.
            cores = (settings.num_shards or _DEFAULT_CORES) if settings.use_tpu else 1
            return dataset.take(job.eval_steps * cores)

        slicing = Slicing.find(
            specs,
            read_once,
            max_slices=settings.max_slices,
            label_key=settings.label_key,
        )
        return cls(slicing, eval_input_fn)

    def input_fn(self) -> EvalInputFn:
        """Gives the input function of an evaluation that measures the slices."""
        return self.slicing.input_fn(self.eval_input_fn)


def _with_raw_features(
    job: TrainJob, specs: Sequence[tfma.SlicingSpec], eval_input_fn: EvalInputFn
) -> EvalInputFn:
    """Reads the raw examples in place of Transform's where specs name raw features."""
    output = tft.TFTransformOutput(job.transform_graph_path)
    named = {name for spec in specs for name in features_of(spec)}
    # Of two features of one name the transformed one is meant, as it is to the stock Evaluator.
    raw = sorted(named & set(output.raw_feature_spec()) - set(output.transformed_feature_spec()))
    if not raw or not job.raw_eval_files:
        return eval_input_fn
    return RawEvaluationInput(
        transform_graph_path=job.transform_graph_path,
        file_patterns=job.raw_eval_files,
        label_key=job.settings.label_key,
        raw_features=raw,
    ).eval_fn()
