"""TpuTrainer: the TFX component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow_model_analysis as tfma
from tfx import v1 as tfx
from tfx.v1.dsl import standard_annotations
from tfx.v1.dsl.experimental import RuntimeParameter

from tfx_tpu_trainer.component.legacy.declared import declared_source
from tfx_tpu_trainer.component.module_source import source_hash
from tfx_tpu_trainer.component.settings import TrainSettings, execution_value
from tfx_tpu_trainer.component.tfx_private import (
    ChannelParameter,
    ComponentSpec,
    ExecutionParameter,
    ExecutorClassSpec,
    Placeholder,
    json_utils,
    standard_component_specs,
    udf_utils,
)
from tfx_tpu_trainer.component.trainer_executor import TpuTrainerExecutor
from tfx_tpu_trainer.evaluation.slicing_specs import parse_slicing_specs, slicing_specs_to_json
from tfx_tpu_trainer.hardware import TpuSpec


class TpuTrainerSpec(ComponentSpec):
    """Inputs, outputs and parameters of a TpuTrainer."""

    PARAMETERS: ClassVar = {
        "train_args": ExecutionParameter(type=tfx.proto.TrainArgs),
        "eval_args": ExecutionParameter(type=tfx.proto.EvalArgs),
        # TFX replaces module_file by module_path ("name@wheel") when it packages the module.
        "module_file": ExecutionParameter(type=str, optional=True),
        "module_path": ExecutionParameter(type=str, optional=True),
        "module": ExecutionParameter(type=str, optional=True),
        "module_hash": ExecutionParameter(type=str, optional=True),
        "trainer_fn": ExecutionParameter(type=str, optional=True),
        "restore_tf_estimator": ExecutionParameter(type=int, optional=True),
        "custom_config": ExecutionParameter(type=str, optional=True),
        "node": ExecutionParameter(type=str, optional=True),
        **{
            name: ExecutionParameter(type=kind, optional=True)
            for name, kind in TrainSettings.execution_types().items()
        },
    }
    INPUTS: ClassVar = {
        "examples": ChannelParameter(type=tfx.types.standard_artifacts.Examples),
        "transform_graph": ChannelParameter(type=tfx.types.standard_artifacts.TransformGraph),
        "schema": ChannelParameter(type=tfx.types.standard_artifacts.Schema),
        "raw_examples": ChannelParameter(type=tfx.types.standard_artifacts.Examples, optional=True),
        "base_model": ChannelParameter(type=tfx.types.standard_artifacts.Model, optional=True),
        "hyperparameters": ChannelParameter(
            type=tfx.types.standard_artifacts.HyperParameters, optional=True
        ),
    }
    OUTPUTS: ClassVar = {
        "model": ChannelParameter(type=tfx.types.standard_artifacts.Model),
        "model_run": ChannelParameter(type=tfx.types.standard_artifacts.ModelRun),
        "evaluation": ChannelParameter(type=tfx.types.standard_artifacts.ModelEvaluation),
    }
    TYPE_ANNOTATION = standard_annotations.Train


class TpuTrainer(tfx.types.BaseComponent):
    """Trains a graph-mode `model_fn` with TPUEstimator on Transform's output.

    Use it in place of the stock `Trainer` when the model is an Estimator model_fn, when it is to
    run on TPU cores (or on emulated ones), or when its own eval_metrics are to decide about a
    push (see `EvalMetricsGate`).

    Outputs: `model` (SavedModel in `Format-Serving`, metrics in `eval_metrics.json`), `model_run`
    (checkpoints and TensorBoard events), `evaluation` (a ModelEvaluation of the eval split).

    ```python
    trainer = TpuTrainer(
        examples=transform.outputs["transformed_examples"],
        transform_graph=transform.outputs["transform_graph"],
        schema=schema_gen.outputs["schema"],
        module="pipelines.taxi.model",
        label_key="tips_xf",
        train_args=tfx.proto.TrainArgs(num_steps=1000),
        train_batch_size=256,
    )
    ```

    Every `int` and `str` parameter may be a `RuntimeParameter`, except `module` and `trainer_fn`, whose
    source is hashed when the pipeline is made, and `tpu`. Booleans take `RuntimeParameter(ptype=int)` with 0 or 1,
    `params`, `train_args`, `eval_args`, `slicing_specs` and `warmup_batch_sizes` one with a JSON text.
    """

    SPEC_CLASS = TpuTrainerSpec
    EXECUTOR_SPEC = ExecutorClassSpec(TpuTrainerExecutor)

    def __init__(
        self,
        *,
        examples: tfx.types.BaseChannel,
        transform_graph: tfx.types.BaseChannel,
        schema: tfx.types.BaseChannel,
        raw_examples: tfx.types.BaseChannel | None = None,
        base_model: tfx.types.BaseChannel | None = None,
        hyperparameters: tfx.types.BaseChannel | None = None,
        module_file: str | RuntimeParameter | None = None,
        module: str | None = None,
        trainer_fn: str | None = None,
        restore_tf_estimator: bool | RuntimeParameter = True,
        custom_config: Mapping[str, Any] | RuntimeParameter | None = None,
        label_key: str | RuntimeParameter | None = None,
        params: Mapping[str, Any] | RuntimeParameter | None = None,
        train_args: tfx.proto.TrainArgs | RuntimeParameter | None = None,
        eval_args: tfx.proto.EvalArgs | RuntimeParameter | None = None,
        train_batch_size: int | RuntimeParameter = 64,
        eval_batch_size: int | RuntimeParameter | None = None,
        predict_batch_size: int | RuntimeParameter | None = None,
        tpu: TpuSpec | str | None = None,
        use_tpu: bool | RuntimeParameter | None = None,
        master: str | RuntimeParameter | None = None,
        num_shards: int | RuntimeParameter | None = None,
        num_cores_per_replica: int | RuntimeParameter | None = None,
        iterations_per_loop: int | RuntimeParameter = 100,
        save_checkpoints_steps: int | RuntimeParameter | None = None,
        keep_checkpoint_max: int | RuntimeParameter = 5,
        save_summary_steps: int | RuntimeParameter = 100,
        log_step_count_steps: int | RuntimeParameter = 100,
        tf_random_seed: int | RuntimeParameter | None = None,
        export_to_cpu: bool | RuntimeParameter = True,
        export_to_tpu: bool | RuntimeParameter = True,
        export_saved_model_api_version: int | RuntimeParameter = 1,
        preflight: str | RuntimeParameter = "off",
        serving_check: str | RuntimeParameter = "error",
        serving_check_timeout: int | RuntimeParameter = 300,
        serving_model_name: str | RuntimeParameter = "model",
        warmup_batch_sizes: Sequence[int] | RuntimeParameter | None = None,
        slicing_specs: Sequence[tfma.SlicingSpec | Mapping[str, Any]] | RuntimeParameter = (),
        max_slices: int | RuntimeParameter = 50,
        eval_every_steps: int | RuntimeParameter | None = None,
        eval_every_secs: int | RuntimeParameter | None = None,
        best_metric: str | RuntimeParameter | None = None,
        best_metric_mode: str | RuntimeParameter = "max",
        early_stopping_patience: int | RuntimeParameter | None = None,
        resume: bool | RuntimeParameter = True,
        checkpoint_root: str | RuntimeParameter | None = None,
    ):
        """Declares a training.

        Args:
            examples: Transform's `transformed_examples`.
            transform_graph: Transform's `transform_graph`.
            schema: The schema of the raw data.
            raw_examples: ExampleGen's `examples`, which Transform has read: real rows for the
                warm-up requests and for the check of the exported model.
            base_model: A Model to take the first values of the variables from.
            hyperparameters: A Tuner's `best_hyperparameters`; its values win over all other
                params.
            module_file: Path of a .py file that defines `model_fn`. TFX packages it, with the
                .py files beside it, as a wheel.
            module: Import path of a module that defines `model_fn`, in place of `module_file`.
                Its package must be importable where the trainer runs.
            trainer_fn: Import path of a function `trainer_fn(trainer_fn_args, schema)`, as the
                Estimator executor of TFX <= 1.15 took it, in place of `module_file` and `module`,
                which may also name a module with such a function. It makes the estimator itself, so
                the parameters that would shape one are refused; see docs/legacy.md.
            restore_tf_estimator: Whether a module with a trainer_fn finds `tf.estimator` and
                `tfma.export` in their places, while it is imported and runs.
            custom_config: JSON values for `fn_args.custom_config`.
            label_key: Transformed feature that is the label. Needed unless the module has an
                `input_fn`, or its model_fn takes no labels.
            params: JSON values for model_fn's `params`; they win over the module's own `params`.
            train_args: Splits (default: `train`) and `num_steps`, the global step to train to;
                `num_steps` must be set.
            eval_args: Splits (default: `eval`) and `num_steps`, the number of batches (default:
                all).
            train_batch_size: Rows of a training step, over all cores.
            eval_batch_size: Rows of an evaluation batch; default: `train_batch_size`.
            predict_batch_size: Rows of a prediction batch; default: the evaluation's.
            tpu: The TPU slice to train on, as a TpuSpec or by its name ("v5e:2x4"). It decides
                `use_tpu` and `num_shards`, is checked against the batch sizes, and is what the
                runners of `kubeflow/` ask a cluster for. Where there is no such TPU, its cores
                are emulated with `master="emulated"` or TFX_TPU_TRAINER_EMULATE=1.
            use_tpu: Train on TPU cores; `master`, or the environment variable
                TFX_TPU_TRAINER_EMULATE=1, says where they are. Default: whether there is a `tpu`.
            master: Address of the TPU's master, or "emulated" for emulated cores on this host.
            num_shards: Number of model replicas; default: those of `tpu`, or the engine decides.
            num_cores_per_replica: Cores that one replica is spread over; default: one.
            iterations_per_loop: Training steps in one session call with `use_tpu`.
            save_checkpoints_steps: Steps between checkpoints; default: every 600 seconds. The
                last step is always saved.
            keep_checkpoint_max: Checkpoints kept; 0 keeps all.
            save_summary_steps: Steps between summaries; 0 writes none.
            log_step_count_steps: Steps between log lines of loss and speed.
            tf_random_seed: Seed of the graph and of the shuffling; default: RunConfig's.
            export_to_cpu: Write the metagraph `serve`.
            export_to_tpu: Write the metagraph `serve`, `tpu`.
            export_saved_model_api_version: 1, or 2 for a model_fn that rewrites itself.
            preflight: "error" ends the component before anything is trained where the model does
                not compile for `tpu` or does not fit it, "warn" only says so in the log. Needs the
                extra `preflight`.
            serving_check: "error" fails the training where the exported model fails its check,
                "warn" only says so in the log, "off" checks nothing.
            serving_check_timeout: Seconds that the check may take for one metagraph.
            serving_model_name: Name under which the model will be served.
            warmup_batch_sizes: Rows of the warm-up requests; default: the sizes that the model
                pads its batches to, or 1.
            slicing_specs: Slices of the eval split that are measured beside the whole, by the same
                metric_fn in the same pass: tfma.SlicingSpec, or dicts with `feature_keys` and
                `feature_values`. They name features of Transform's output, the label, or, with
                `raw_examples`, raw features.
            max_slices: Most slices of one spec; the rows of further values are measured together
                as `__OTHER__`.
            eval_every_steps: Evaluate at every multiple of this step during training.
            eval_every_secs: Evaluate after so many seconds of training, in place of steps.
            best_metric: Metric by which the best checkpoint is kept, and exported at the end;
                default: the last one is exported.
            best_metric_mode: "max" if a higher value is better, "min" if a lower one is.
            early_stopping_patience: Evaluations in a row without a better value after which
                training stops; default: it goes to its end.
            resume: Let another attempt at the same training go on from its last checkpoint.
            checkpoint_root: Folder, the pipeline's own, where checkpoints are until the training
                has ended; default: `checkpoints` beside the component's artifacts. Under Kubeflow
                and Vertex it must be set, else a new attempt trains from the start.

        Raises:
            ValueError: A parameter doesn't fit; names the value and the fix.
        """
        if isinstance(tpu, (RuntimeParameter, Placeholder)):
            raise ValueError(
                f"tpu={tpu!r} can't be a runtime parameter: a cluster is asked for the slice when "
                "the pipeline is compiled; give its name, such as 'v5e:2x4'"
            )
        settings = {
            "label_key": label_key,
            "params": {} if params is None else params,
            "train_batch_size": train_batch_size,
            "eval_batch_size": eval_batch_size,
            "predict_batch_size": predict_batch_size,
            "tpu": tpu,
            "use_tpu": use_tpu,
            "master": master,
            "num_shards": num_shards,
            "num_cores_per_replica": num_cores_per_replica,
            "iterations_per_loop": iterations_per_loop,
            "save_checkpoints_steps": save_checkpoints_steps,
            "keep_checkpoint_max": keep_checkpoint_max,
            "save_summary_steps": save_summary_steps,
            "log_step_count_steps": log_step_count_steps,
            "tf_random_seed": tf_random_seed,
            "export_to_cpu": export_to_cpu,
            "export_to_tpu": export_to_tpu,
            "export_saved_model_api_version": export_saved_model_api_version,
            "preflight": preflight,
            "serving_check": serving_check,
            "serving_check_timeout": serving_check_timeout,
            "serving_model_name": serving_model_name,
            "warmup_batch_sizes": warmup_batch_sizes,
            "slicing_specs": _as_json_values(slicing_specs),
            "max_slices": max_slices,
            "eval_every_steps": eval_every_steps,
            "eval_every_secs": eval_every_secs,
            "best_metric": best_metric,
            "best_metric_mode": best_metric_mode,
            "early_stopping_patience": early_stopping_patience,
            "resume": resume,
            "checkpoint_root": checkpoint_root,
        }
        source = declared_source(
            module_file=module_file, module=module, trainer_fn=trainer_fn, settings=settings
        )
        checked = _check(settings)
        self._tpu = settings["tpu"] = checked.tpu
        if not isinstance(use_tpu, (RuntimeParameter, Placeholder)):
            settings["use_tpu"] = checked.use_tpu
        if num_shards is None:
            settings["num_shards"] = checked.num_shards
        _check_steps(train_args)
        spec = self.SPEC_CLASS(
            examples=examples,
            transform_graph=transform_graph,
            schema=schema,
            raw_examples=raw_examples,
            base_model=base_model,
            hyperparameters=hyperparameters,
            module_file=module_file,
            module=module,
            module_hash=source_hash(source.module) if source and source.module else None,
            trainer_fn=trainer_fn,
            restore_tf_estimator=execution_value(restore_tf_estimator),
            custom_config=_as_custom_config(custom_config),
            train_args=train_args,
            eval_args=tfx.proto.EvalArgs() if eval_args is None else eval_args,
            model=tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
            model_run=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelRun),
            evaluation=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelEvaluation),
            **{name: execution_value(value) for name, value in settings.items()},
        )
        super().__init__(spec=spec)
        if module_file and udf_utils.should_package_user_modules():
            udf_utils.add_user_module_dependency(
                self,
                standard_component_specs.MODULE_FILE_KEY,
                standard_component_specs.MODULE_PATH_KEY,
            )

    @property
    def exec_properties(self) -> dict[str, Any]:
        """The parameters, with the name of this node: Kubeflow's entry point doesn't tell it."""
        return {**super().exec_properties, "node": self.id}

    @property
    def tpu(self) -> TpuSpec | None:
        """The TPU slice that it trains on."""
        return self._tpu

    @property
    def pod_tpu(self) -> TpuSpec | None:
        """The TPU slice on whose nodes its own pod must run."""
        return self._tpu


def _as_custom_config(config: Any) -> Any:
    """Gives a custom_config as the stock Trainer stores it."""
    if isinstance(config, (RuntimeParameter, Placeholder)):
        return config
    if config is not None and not isinstance(config, Mapping):
        raise ValueError(f"custom_config={config!r} is not valid; give a dict of JSON values")
    return json_utils.dumps(None if config is None else dict(config))


def _as_json_values(specs: Any) -> Any:
    """Gives slicing specs in the form that execution properties store."""
    if isinstance(specs, (RuntimeParameter, Placeholder)):
        return specs
    return tuple(slicing_specs_to_json(parse_slicing_specs(specs)))


def _check(settings: Mapping[str, Any]) -> TrainSettings:
    """Checks the settings as far as they are known when a pipeline is made, and gives those."""
    known, deferred = {}, set()
    for name, value in settings.items():
        if isinstance(value, RuntimeParameter):
            if value.ptype is None:
                raise ValueError(
                    f"{name}: RuntimeParameter {value.name!r} has no type; give it "
                    f"ptype={TrainSettings.execution_types()[name].__name__}"
                )
            value = value.default
            if value is None:
                deferred.add(name)
        elif isinstance(value, Placeholder):
            deferred.add(name)
        known[name] = value
    return TrainSettings.parse(known, deferred=deferred, source="TpuTrainer")


def _check_steps(train_args: Any) -> None:
    # A runtime parameter is checked when the trainer runs.
    if train_args is None or isinstance(train_args, tfx.proto.TrainArgs):
        steps = 0 if train_args is None else train_args.num_steps
        if steps <= 0:
            raise ValueError(
                f"TpuTrainer: train_args.num_steps={steps}: the number of training steps must be "
                "set; give train_args=tfx.proto.TrainArgs(num_steps=...)"
            )
