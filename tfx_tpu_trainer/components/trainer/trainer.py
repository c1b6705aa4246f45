"""Defines TpuTrainer, the TFX component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import tensorflow_model_analysis as tfma
from tfx import v1 as tfx
from tfx.v1.dsl import standard_annotations
from tfx.v1.dsl.experimental import RuntimeParameter

from tfx_tpu_trainer.components._tfx_private import (
    ChannelParameter,
    ComponentSpec,
    ExecutionParameter,
    ExecutorClassSpec,
    Placeholder,
    standard_component_specs,
    udf_utils,
)
from tfx_tpu_trainer.components.clusters._html_page import RunPage
from tfx_tpu_trainer.components.evaluation._data_slices import (
    parse_slicing_specs,
    slicing_specs_to_json,
)
from tfx_tpu_trainer.components.trainer.declared_arguments import (
    check_flag,
    check_inputs,
    check_module_file,
    check_steps,
    custom_config_as_json,
    declared_source,
)
from tfx_tpu_trainer.components.trainer.module_source import source_hash
from tfx_tpu_trainer.components.trainer.settings import TrainSettings
from tfx_tpu_trainer.components.trainer.trainer_executor import TpuTrainerExecutor
from tfx_tpu_trainer.components.trainer.values import execution_value, naming_the_nearest
from tfx_tpu_trainer.hardware import TpuSpec


class TpuTrainerSpec(ComponentSpec):
    """Inputs, outputs and parameters of a TpuTrainer."""

    PARAMETERS: ClassVar = {
        "train_args": ExecutionParameter(type=tfx.proto.TrainArgs),
        "eval_args": ExecutionParameter(type=tfx.proto.EvalArgs),
        # TFX replaces module_file by module_path ("name@wheel") when it packages the module.
        "module_path": ExecutionParameter(type=str, optional=True),
        "module_hash": ExecutionParameter(type=str, optional=True),
        "node": ExecutionParameter(type=str, optional=True),
        "module_file": ExecutionParameter(type=str, optional=True),
        "module": ExecutionParameter(type=str, optional=True),
        "trainer_fn": ExecutionParameter(type=str, optional=True),
        "restore_tf_estimator": ExecutionParameter(type=int, optional=True),
        "custom_config": ExecutionParameter(type=str, optional=True),
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
        "statistics": ChannelParameter(
            type=tfx.types.standard_artifacts.ExampleStatistics, optional=True
        ),
        "base_model": ChannelParameter(type=tfx.types.standard_artifacts.Model, optional=True),
        "hyperparameters": ChannelParameter(
            type=tfx.types.standard_artifacts.HyperParameters, optional=True
        ),
    }
    OUTPUTS: ClassVar = {
        "model": ChannelParameter(type=tfx.types.standard_artifacts.Model),
        "model_run": ChannelParameter(type=tfx.types.standard_artifacts.ModelRun),
        "evaluation": ChannelParameter(type=tfx.types.standard_artifacts.ModelEvaluation),
        "page": ChannelParameter(type=RunPage, optional=True),
    }
    TYPE_ANNOTATION = standard_annotations.Train


class TpuTrainer(tfx.types.BaseComponent):
    """Trains a graph-mode `model_fn`, or a compiled Keras model, with TPUEstimator on Transform's output.

    Use it instead of the stock `Trainer` when the model is an Estimator model_fn, when it runs on TPU cores (or on
    emulated ones), or when its own metrics decide whether it is pushed (see `EvalMetricsGate`).

    Outputs: `model` (SavedModel in `Format-Serving`, metrics in `eval_metrics.json`), `model_run`
    (checkpoints, TensorBoard events and the page of the training), `evaluation` (a ModelEvaluation of
    the eval split), `page` (the page again, as Kubeflow Pipelines and Vertex AI show it).

    Examples:
        In a pipeline the channels are outputs of Transform and SchemaGen:

        >>> from tfx import v1 as tfx
        >>> from tfx_tpu_trainer import TpuTrainer
        >>> artifacts = tfx.types.standard_artifacts
        >>> trainer = TpuTrainer(
        ...     examples=tfx.dsl.Channel(type=artifacts.Examples),
        ...     transform_graph=tfx.dsl.Channel(type=artifacts.TransformGraph),
        ...     schema=tfx.dsl.Channel(type=artifacts.Schema),
        ...     module="pipelines.taxi.model",
        ...     label_key="big_tip",
        ...     train_args=tfx.proto.TrainArgs(num_steps=1000),
        ...     train_batch_size=256,
        ...     tpu="v5e:2x4",
        ... )
        >>> sorted(trainer.outputs)
        ['evaluation', 'model', 'model_run', 'page']
        >>> trainer.tpu.num_replicas()
        8

    Every `int` and `str` parameter may be a `RuntimeParameter`, except `module` and `trainer_fn`, whose source is
    hashed when the pipeline is made, and `tpu`. Booleans take `RuntimeParameter(ptype=int)` with 0 or 1, `params`,
    `train_args`, `eval_args`, `slicing_specs` and `warmup_batch_sizes` one with a JSON string.
    """

    SPEC_CLASS = TpuTrainerSpec
    EXECUTOR_SPEC = ExecutorClassSpec(TpuTrainerExecutor)

    @naming_the_nearest
    def __init__(
        self,
        *,
        examples: tfx.types.BaseChannel,
        transform_graph: tfx.types.BaseChannel,
        schema: tfx.types.BaseChannel,
        raw_examples: tfx.types.BaseChannel | None = None,
        statistics: tfx.types.BaseChannel | None = None,
        label_key: str | RuntimeParameter | None = None,
        cache_input: bool | RuntimeParameter | None = None,
        module_file: str | RuntimeParameter | None = None,
        module: str | None = None,
        trainer_fn: str | None = None,
        restore_tf_estimator: bool | RuntimeParameter = True,
        custom_config: Mapping[str, Any] | RuntimeParameter | None = None,
        base_model: tfx.types.BaseChannel | None = None,
        hyperparameters: tfx.types.BaseChannel | None = None,
        params: Mapping[str, Any] | RuntimeParameter | None = None,
        train_args: tfx.proto.TrainArgs | RuntimeParameter | None = None,
        eval_args: tfx.proto.EvalArgs | RuntimeParameter | None = None,
        train_batch_size: int | RuntimeParameter = 64,
        eval_batch_size: int | RuntimeParameter | None = None,
        predict_batch_size: int | RuntimeParameter | None = None,
        iterations_per_loop: int | RuntimeParameter = 100,
        tf_random_seed: int | RuntimeParameter | None = None,
        tpu: TpuSpec | str | None = None,
        use_tpu: bool | RuntimeParameter | None = None,
        master: str | RuntimeParameter | None = None,
        num_shards: int | RuntimeParameter | None = None,
        num_cores_per_replica: int | RuntimeParameter | None = None,
        start_timeout_secs: int | RuntimeParameter = 7200,
        save_checkpoints_steps: int | RuntimeParameter | None = None,
        keep_checkpoint_max: int | RuntimeParameter = 5,
        save_summary_steps: int | RuntimeParameter = 100,
        log_step_count_steps: int | RuntimeParameter = 100,
        gradient_norms: bool | RuntimeParameter = False,
        histograms: bool | RuntimeParameter = False,
        profile_steps: tuple[int, int] | RuntimeParameter | None = None,
        slicing_specs: Sequence[tfma.SlicingSpec | Mapping[str, Any]] | RuntimeParameter = (),
        max_slices: int | RuntimeParameter = 50,
        eval_every_steps: int | RuntimeParameter | None = None,
        eval_every_secs: int | RuntimeParameter | None = None,
        best_metric: str | RuntimeParameter | None = None,
        best_metric_mode: str | RuntimeParameter = "max",
        early_stopping_patience: int | RuntimeParameter | None = None,
        export_to_cpu: bool | RuntimeParameter = True,
        export_to_tpu: bool | RuntimeParameter | None = None,
        export_saved_model_api_version: int | RuntimeParameter = 1,
        preflight: str | RuntimeParameter = "off",
        serving_check: str | RuntimeParameter = "error",
        serving_check_timeout: int | RuntimeParameter = 300,
        serving_model_name: str | RuntimeParameter = "model",
        warmup_batch_sizes: Sequence[int] | RuntimeParameter | None = None,
        resume: bool | RuntimeParameter = True,
        checkpoint_root: str | RuntimeParameter | None = None,
        save_input_position: bool | RuntimeParameter | None = None,
        stall_timeout_secs: int | RuntimeParameter = 1800,
        mlflow_tracking_uri: str | RuntimeParameter | None = None,
        mlflow_experiment: str | RuntimeParameter | None = None,
    ) -> None:
        """Declares a training.

        Args:
            examples: Transform's `transformed_examples`.
            transform_graph: Transform's `transform_graph`.
            schema: The schema of the raw data.
            raw_examples: ExampleGen's `examples`, the ones Transform read: real rows for the
                warm-up requests and for the check of the exported model. Defaults to `None`.
            statistics: StatisticsGen's `statistics` of the raw examples, which the training's page
                shows. Defaults to `None`.
            label_key: Name of the transformed feature that is the label. Required unless the module has an `input_fn`,
                its model_fn takes no labels, or the outputs of its Keras model have the names of the features that are
                their labels. Defaults to `None`.
            cache_input: Parse the training rows once and keep them for all epochs: in memory, up to
                a quarter of what is available, or else on local disk (TMPDIR), up to half of what
                is free. False parses them in every epoch. Only for modules without an `input_fn`.
                Defaults to `True` if `num_steps` reaches a second epoch.
            module_file: Path of a .py file that defines `model_fn(features, labels, mode, params)`, or
                `build_model(params)` that returns a compiled Keras model. TFX packages it as a wheel,
                together with the .py files next to it. Defaults to `None`.
            module: Import path of a module of this kind; replaces `module_file`. Its
                package must be importable where the trainer runs. Defaults to `None`.
            trainer_fn: Import path of a function `trainer_fn(trainer_fn_args, schema)`, as for the Estimator executor
                of TFX <= 1.15; replaces `module_file` and `module`, which may also name a module with such a function.
                The function makes the estimator itself, so parameters that would configure one are rejected; see
                docs/legacy.md. Defaults to `None`.
            restore_tf_estimator: Whether to restore `tf.estimator` and `tfma.export` while a module
                with a trainer_fn is imported and runs. Defaults to `True`.
            custom_config: JSON values for `fn_args.custom_config`. Defaults to `None`.
            base_model: A Model that provides the initial values of the variables. Defaults to
                `None`.
            hyperparameters: A Tuner's `best_hyperparameters`; they override all other params.
                Defaults to `None`.
            params: JSON values for the `params` of model_fn or build_model; they override the module's own
                `params`. With build_model, `weight_column` names the feature with the rows' weights. Defaults
                to `{}`.
            train_args: Splits (default: `train`) and `num_steps`, the global step to train to;
                `num_steps` is required. Defaults to `None`.
            eval_args: Splits (default: `eval`) and `num_steps`, the number of batches. Defaults to the whole split
                `eval`.
            train_batch_size: Rows of a training step, over all cores. Defaults to `64`.
            eval_batch_size: Rows of an evaluation batch. Defaults to `train_batch_size`.
            predict_batch_size: Rows of a prediction batch. Defaults to the evaluation's.
            iterations_per_loop: Training steps in one session call with `use_tpu`. Defaults to
                `100`.
            tf_random_seed: Seed of the graph and of the shuffling. Defaults to RunConfig's.
            tpu: The TPU slice to train on, a TpuSpec or a name ("v5e:2x4"). It sets `use_tpu` and
                `num_shards`, is checked against the batch sizes, and is requested from the cluster
                by `tfx-tpu-trainer compile`. Without such a TPU, emulate its cores with
                `master="emulated"` or TFX_TPU_TRAINER_EMULATE=1. Defaults to `None`.
            use_tpu: Train on TPU cores. `master` is their address; the environment variable TFX_TPU_TRAINER_EMULATE=1
                emulates them. Defaults to `True` if `tpu` is set.
            master: Address of the TPU's master, or "emulated" for emulated cores on this host.
                Defaults to `None`.
            num_shards: Number of model replicas. Defaults to that of `tpu`, else the engine chooses it.
            num_cores_per_replica: Number of cores that one replica is spread over. Defaults to one.
            start_timeout_secs: Seconds that each of several hosts waits for the others to start.
                Defaults to `7200`.
            save_checkpoints_steps: Steps between checkpoints. The last step is always saved.
                Defaults to after 60 seconds, then at intervals that double up to 600 seconds.
            keep_checkpoint_max: Number of checkpoints to keep; 0 keeps all. Defaults to `5`.
            save_summary_steps: Steps between summaries for TensorBoard; 0 writes none. Defaults to
                `100`.
            log_step_count_steps: Steps between log lines of loss and speed. Defaults to `100`.
            gradient_norms: Write the global gradient norm and each variable's with the summaries;
                see docs/tensorboard.md. Defaults to `False`.
            histograms: Write histograms of gradients and weights with the summaries. Defaults to
                `False`.
            profile_steps: The first and the last training step to profile for TensorBoard's profile
                plugin, as `(100, 105)`. Defaults to none.
            slicing_specs: Slices of the eval split to measure in addition to the whole, with the
                same metric_fn in the same pass: tfma.SlicingSpec, or dicts with `feature_keys` and
                `feature_values`. They name features of Transform's output, the label, or, with
                `raw_examples`, raw features. Defaults to `()`.
            max_slices: Largest number of slices per spec; the rows of all further values are
                measured together as `__OTHER__`. Defaults to `50`.
            eval_every_steps: Evaluate at every multiple of this step during training: the learning
                curve. Defaults to `None`.
            eval_every_secs: Seconds of training between evaluations; replaces `eval_every_steps`.
                Defaults to `None`.
            best_metric: Metric that selects the best checkpoint, which is kept and exported at the
                end. Defaults to none: the last checkpoint is exported.
            best_metric_mode: "max" if a higher value of `best_metric` is better, "min" if a lower
                one is. Defaults to `'max'`.
            early_stopping_patience: Number of consecutive evaluations without improvement after
                which training stops. Defaults to none: training runs to its last step.
            export_to_cpu: Write the metagraph `serve`. Defaults to `True`.
            export_to_tpu: Write the metagraph `serve`, `tpu`. A model that no TPU can run is rejected before the first
                step. Defaults to `True`; without `use_tpu`, a model that no TPU can run is exported without it, with a
                warning.
            export_saved_model_api_version: 1: the engine rewrites model_fn for the TPU; 2: model_fn
                does so itself. Defaults to `1`.
            preflight: Whether to compile the model for `tpu` before training. "error" fails the
                component if the model does not compile or does not fit, "warn" only logs it, "off"
                skips the compilation. Needs the extra `preflight`; see docs/preflight.md. Defaults
                to `'off'`.
            serving_check: Whether to check the exported model. "error" fails the training if the
                model fails its check, "warn" only logs it, "off" skips the check. Defaults to
                `'error'`.
            serving_check_timeout: Seconds that the check may take to load and run one metagraph.
                Defaults to `300`.
            serving_model_name: Name under which the model will be served. Defaults to `'model'`.
            warmup_batch_sizes: Numbers of rows in the warm-up requests. Defaults to the sizes to
                which the model pads its batches, or 1.
            resume: Let another attempt at the same training resume from its last checkpoint.
                Defaults to `True`.
            checkpoint_root: Folder that holds the checkpoints until the training has ended; it must
                belong to this pipeline only. Set it under Kubeflow and Vertex AI, where a new
                attempt otherwise trains from scratch. Defaults to `checkpoints`, next to the
                component's artifacts.
            save_input_position: Save the position of the training input with each checkpoint, so
                another attempt continues with the next rows. For a module with its own
                `input_fn`, set it to True yourself: state in the function's Python code is not
                saved. Defaults to `True` if the module has no `input_fn`.
            stall_timeout_secs: Seconds without a step, in training or evaluation, after which the
                attempt logs the stacks of all Python threads and ends, so another one can
                resume; 0 waits forever. The time of the first step includes building and compiling
                the model. Defaults to `1800`.
            mlflow_tracking_uri: MLflow store that gets the training as a run: its parameters, metrics, curves, page and
                model. Needs the extra `mlflow`; see docs/how-to/track-runs.md. Defaults to MLflow's own, the
                environment variable MLFLOW_TRACKING_URI, if `mlflow_experiment` is set, else to none.
            mlflow_experiment: Experiment of the run, which is made if it is missing. Defaults to the pipeline's name if
                `mlflow_tracking_uri` is set.

        Raises:
            TypeError: If a parameter does not exist, or an input is missing or of another type.
            ValueError: If a parameter is invalid; names the value and the fix.
        """
        # The settings are arguments of the same names (a test compares them), so they are picked by name. Assign
        # nothing above this line.
        arguments = locals()
        if isinstance(tpu, (RuntimeParameter, Placeholder)):
            raise ValueError(
                f"tpu={tpu!r} can't be a runtime parameter: the slice must be known when "
                "the pipeline is compiled; give its name, such as 'v5e:2x4'"
            )
        if missing := TrainSettings.model_fields.keys() - arguments.keys():
            raise TypeError(
                f"TpuTrainer has no argument for the settings {sorted(missing)}; add it"
            )
        settings = {name: arguments[name] for name in TrainSettings.model_fields}
        settings["params"] = {} if params is None else params
        settings["slicing_specs"] = _as_json_values(slicing_specs)
        source = declared_source(
            module_file=module_file, module=module, trainer_fn=trainer_fn, settings=settings
        )
        checked = _check(settings)
        self._tpu = settings["tpu"] = checked.tpu
        if not isinstance(use_tpu, (RuntimeParameter, Placeholder)):
            settings["use_tpu"] = checked.use_tpu
        if num_shards is None:
            settings["num_shards"] = checked.num_shards
        check_steps("train_args", train_args)
        check_steps("eval_args", eval_args)
        inputs = {name: arguments[name] for name in self.SPEC_CLASS.INPUTS}
        check_inputs(inputs)
        check_module_file(module_file)
        check_flag("restore_tf_estimator", restore_tf_estimator)
        spec = self.SPEC_CLASS(
            **inputs,
            train_args=train_args,
            eval_args=tfx.proto.EvalArgs() if eval_args is None else eval_args,
            module_file=module_file,
            module=module,
            trainer_fn=trainer_fn,
            module_hash=source_hash(source.module) if source and source.module else None,
            restore_tf_estimator=execution_value(restore_tf_estimator),
            custom_config=custom_config_as_json(custom_config),
            model=tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
            model_run=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelRun),
            evaluation=tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelEvaluation),
            page=tfx.dsl.Channel(type=RunPage),
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
        """The parameters, including this node's name, which Kubeflow's entry point does not pass."""
        return {**super().exec_properties, "node": self.id}

    @property
    def tpu(self) -> TpuSpec | None:
        """The TPU slice to train on."""
        return self._tpu

    @property
    def pod_tpu(self) -> TpuSpec | None:
        """The TPU slice whose nodes the component's own pod needs."""
        return self._tpu


def _as_json_values(specs: Any) -> Any:
    """Returns slicing specs in the form that execution properties store."""
    if isinstance(specs, (RuntimeParameter, Placeholder)):
        return specs
    return tuple(slicing_specs_to_json(parse_slicing_specs(specs)))


def _check(settings: Mapping[str, Any]) -> TrainSettings:
    """Checks the settings as far as they are known when a pipeline is made, and returns them."""
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
