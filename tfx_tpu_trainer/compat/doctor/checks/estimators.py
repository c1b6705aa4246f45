"""Checks how TPUEstimators are made, fed, run and exported, which meanings changed, and TFX's Trainers."""

import ast
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding
from tfx_tpu_trainer.compat.doctor._program import Call, Program
from tfx_tpu_trainer.compat.doctor.checks import (
    Context,
    is_false,
    is_none,
    note,
    text_of,
    to_edit,
    works,
)

_THEME: Final = "tpu"
_RESERVED: Final = ("batch_size", "context")


def check_tpu_estimators(context: Context) -> Iterator[Finding]:
    """Checks each TPUEstimator's arguments."""
    for call in context.tpu_estimators:
        yield from _reserved_params(context, call)
        if call.has_spread:
            continue
        if call.argument("config", 2) is None or is_none(call.argument("config", 2)):
            yield _edit(
                call,
                "config must be given, of type tpu.RunConfig: without it the constructor fails.",
                "config=tpu.RunConfig(model_dir=..., tpu_config=tpu.TPUConfig(iterations_per_loop=100))",
            )
        if call in context.on_cores:
            yield from _batch_sizes(context, call)
            yield from _embeddings(context, call)
    yield from _plain_run_configs(context)


def _edit(call: Call, says: str, edit: str) -> Finding:
    return to_edit(call.place, theme=_THEME, name="TPUEstimator", says=says, edit=edit)


def _reserved_params(context: Context, call: Call) -> Iterator[Finding]:
    params = call.argument("params", 3)
    if not isinstance(params, ast.Dict):
        return
    for key in params.keys:
        if key is not None and text_of(key) in _RESERVED:
            yield to_edit(
                context.program.place(key),
                theme=_THEME,
                name=f"params[{context.program.written(key)}]",
                says="The key is reserved: TPUEstimator sets it itself, and raises a ValueError.",
                edit="train_batch_size=..., eval_batch_size=... in the constructor, and not in params",
            )


def _batch_sizes(context: Context, call: Call) -> Iterator[Finding]:
    if not _given(call, "train_batch_size", 5):
        yield _edit(
            call,
            "use_tpu without train_batch_size: the constructor fails.",
            "train_batch_size=..., the rows of a step over all cores (or use_tpu=False)",
        )
    evaluated = _called(context, "evaluate") or bool(context.api_calls("EvalSpec"))
    on_tpu = not is_false(call.argument("eval_on_tpu", 9))
    if evaluated and on_tpu and not _given(call, "eval_batch_size", 6):
        yield _edit(
            call,
            EVALUATION_ON_CPU,
            "eval_batch_size=... to evaluate on the cores, or eval_on_tpu=False to stay on the CPU",
        )
    if _called(context, "predict") and not _given(call, "predict_batch_size", 7):
        yield _edit(
            call,
            PREDICT_ON_CPU,
            "predict_batch_size=... to predict on the cores, or a second TPUEstimator with use_tpu=False and the "
            "same model_dir",
        )


def _embeddings(context: Context, call: Call) -> Iterator[Finding]:
    spec = call.argument("embedding_config_spec", 13)
    if spec is None or is_none(spec):
        return
    yield note(
        context.program.place(spec),
        theme="embeddings",
        name="embedding_config_spec",
        says=(
            "Tables of the spec train on emulated cores, under a tf.distribute strategy of one process, and with "
            "use_tpu=False as ordinary embedding columns. On TPU hardware that is a TPUStrategy, not tested on TPUs; "
            "a TPU's session raises a ValueError."
        ),
        edit=(
            "for TPU hardware: RunConfig(train_distribute=tf.distribute.TPUStrategy(...)) in the place of a master"
        ),
    )


def _plain_run_configs(context: Context) -> Iterator[Finding]:
    """Reports a tf.estimator.RunConfig inside a TPUEstimator's call."""
    for call in context.tpu_estimators:
        config = call.argument("config", 2)
        if not isinstance(config, ast.Call):
            continue
        name = context.program.name_of(config.func)
        if name.endswith("estimator.RunConfig") and ".tpu" not in name:
            yield to_edit(
                context.program.place(config),
                theme=_THEME,
                name="RunConfig",
                says="A TPUEstimator takes a tpu.RunConfig, not an Estimator's: a ValueError.",
                edit="tpu.RunConfig(..., tpu_config=tpu.TPUConfig(...))",
            )


def _given(call: Call, keyword: str, position: int) -> bool:
    value = call.argument(keyword, position)
    return value is not None and not is_none(value)


def _called(context: Context, method: str) -> bool:
    """Returns whether an estimator's method is called with an input function."""
    return any(
        call.attribute == method
        and isinstance(call.node.func, ast.Attribute)
        and (call.argument("input_fn") is not None or context.given_input_fn(call) is not None)
        for call in context.program.calls
    )


_SCHEDULE: Final = "schedule"


def check_schedules(context: Context) -> Iterator[Finding]:
    """Checks TrainSpec, EvalSpec, train() and evaluate()."""
    if not context.on_cores:
        return
    for call in context.api_calls("TrainSpec"):
        steps = call.argument("max_steps", 1)
        if not call.has_spread and (steps is None or is_none(steps)):
            yield to_edit(
                call.place,
                theme=_SCHEDULE,
                name="TrainSpec",
                says="Training on cores needs an end: without max_steps it is a ValueError.",
                edit="max_steps=...",
            )
    for call in context.api_calls("EvalSpec"):
        if is_none(call.argument("steps", 1)):
            yield works(
                call.place,
                theme=_SCHEDULE,
                name="EvalSpec(steps=None)",
                says=(
                    "The original refused it on cores. Here it runs to the end of the input, and "
                    "a short last batch counts."
                ),
            )
    for call in context.program.calls:
        if call.attribute != "train" or context.given_input_fn(call) is None or call.has_spread:
            continue
        if context.api_name(call):
            continue
        if call.argument("steps", 2) is None and call.argument("max_steps", 3) is None:
            yield to_edit(
                call.place,
                theme=_SCHEDULE,
                name=".train()",
                says="Training on cores needs an end: without steps it is a ValueError.",
                edit="max_steps=..., or steps=...",
            )


_EXPORT: Final = "export"
_EXPORTS: Final = (
    "export_savedmodel",
    "export_saved_model",
    "experimental_export_all_saved_models",
)


def check_exports(context: Context) -> Iterator[Finding]:
    """Checks calls that export."""
    one_graph = all(is_false(each.argument("export_to_tpu", 10)) for each in context.tpu_estimators)
    for call in context.program.calls:
        if call.attribute not in _EXPORTS or not isinstance(call.node.func, ast.Attribute):
            continue
        if context.tpu_estimators and not one_graph:
            yield note(
                call.place,
                theme=_EXPORT,
                name=f".{call.attribute}()",
                says=ONE_GRAPH,
                edit="export_to_tpu=False in the constructor for the CPU graph only",
            )
        if call.attribute == "export_savedmodel":
            yield works(
                call.place,
                theme=_EXPORT,
                name=".export_savedmodel()",
                says=(
                    "Every estimator has the old name, even those on which the original hid it; "
                    "export_saved_model is the newer one."
                ),
            )


_CLUSTERS: Final = "clusters"


def check_resolvers(context: Context) -> Iterator[Finding]:
    """Checks calls that make or query resolvers."""
    resolvers = [each for each in context.program.calls if each.attribute == "TPUClusterResolver"]
    for call in resolvers:
        yield note(
            call.place,
            theme=_CLUSTERS,
            name="TPUClusterResolver",
            says=(
                "It looks a TPU's name up in the cloud, and fails at once if no such TPU exists. With "
                "TFX_TPU_TRAINER_EMULATE=1, tpu.TPUClusterResolver of tfx_tpu_trainer.estimator finds "
                "emulated cores, as `python -m tfx_tpu_trainer.compat` does for TensorFlow's own; "
                'TPUClusterResolver("local") works everywhere.'
            ),
        )
        for argument in call.node.keywords:
            if argument.arg == "tpu_names":
                yield to_edit(
                    context.program.place_of_keyword(argument),
                    theme=_CLUSTERS,
                    name="tpu_names",
                    says="The argument became tpu, which takes one name.",
                    edit="tpu=name",
                )
    if not resolvers:
        return
    for call in context.program.calls:
        if call.attribute == "get_master" and isinstance(call.node.func, ast.Attribute):
            place = context.program.place_of_last_part(call.node.func)
            yield to_edit(
                call.place,
                theme=_CLUSTERS,
                name=".get_master()",
                says="A resolver's get_master() became master().",
                edit=".master()",
                edits=(place.replaced_by("master"),),
            )


# Classes of TPUEstimator's own module, which a program has no other reason to define.
_CLASSES: Final = frozenset(
    {
        "TPUEstimatorSpec",
        "TPUInfeedOutfeedSessionHook",
        "TPUInfeedOutfeedSessionHookForPrediction",
        "_Inputs",
        "_InputPipeline",
        "_InputsWithStoppingSignals",
        "_ModelFnWrapper",
        "_OpQueueContext",
        "_OpSignalOnceQueueContext",
        "_OutfeedHostCall",
        "_OutfeedHostCallHook",
        "_SetEvalIterationsHook",
        "_StopSignals",
        "_StoppingPredictHook",
        "_TPUStopAtStepHook",
    }
)
_ENOUGH: Final = 3


def copied_estimator(program: Program) -> Finding | None:
    """Reports a program that is a copy of TPUEstimator's module."""
    classes = {each.name: each for each in program.tree.body if isinstance(each, ast.ClassDef)}
    estimator = classes.get("TPUEstimator")
    if estimator is None or len(_CLASSES & set(classes)) < _ENOUGH:
        return None
    return to_edit(
        program.place(estimator),
        theme=_THEME,
        name="class TPUEstimator",
        says=(
            "A copy of TensorFlow's TPUEstimator, built on private modules that no longer exist. "
            "Ours may already do what it changed: hooks, eval_on_tpu, host_call and metrics of a "
            "short last batch."
        ),
        edit="from tfx_tpu_trainer.estimator.tpu import TPUEstimator where this module is imported: use ours instead",
    )


EVALUATION_ON_CPU: Final = (
    "Evaluation without eval_batch_size. In TensorFlow 1.4 that meant evaluation on the CPU, "
    "even with use_tpu=True; since then use_tpu alone decides, and evaluate() raises a ValueError "
    "here."
)
PREDICT_ON_CPU: Final = (
    "Prediction without predict_batch_size. In TensorFlow 1.4 predict() always ran on the CPU; "
    "since then use_tpu decides, and predict() raises a ValueError here."
)
ONE_GRAPH: Final = (
    "In TensorFlow 1.4 an export of a TPUEstimator had one graph, for CPUs. Since then it has "
    "two, tagged ['serve'] and ['serve', 'tpu']: name the tags when you load it, "
    'tf.saved_model.load(path, tags=["serve"]).'
)


_TFX_THEME: Final = "tfx"
_COMPONENT: Final = "TpuTrainer(module_file=...)"


def check_legacy_modules(context: Context) -> Iterator[Finding]:
    """Finds a trainer_fn, and components that use one."""
    for function in context.program.functions:
        if function.name == "trainer_fn" and function.outer is None:
            if len(function.parameters) >= 2:
                yield works(
                    function.place,
                    theme=_TFX_THEME,
                    name="trainer_fn",
                    says=(
                        "A module for the Trainer of TFX <= 1.15; tfx_tpu_trainer.components.trainer runs "
                        f"it unchanged: {_COMPONENT} instead of Trainer, in the pipeline."
                    ),
                )
            else:
                yield to_edit(
                    function.place,
                    theme=_TFX_THEME,
                    name="trainer_fn",
                    says="trainer_fn is called with two arguments.",
                    edit="def trainer_fn(trainer_fn_args, schema)",
                )
    for call in context.program.calls:
        if call.attribute != "Trainer" or not call.name.startswith("tfx."):
            continue
        for argument in call.node.keywords:
            if argument.arg == "trainer_fn":
                yield to_edit(
                    context.program.place_of_keyword(argument),
                    theme=_TFX_THEME,
                    name="Trainer(trainer_fn=...)",
                    says="TFX 1.16 removed the executor of estimators, so its Trainer takes no trainer_fn.",
                    edit=f"tfx_tpu_trainer.components.trainer.{_COMPONENT}, or TpuTrainer(trainer_fn=...)",
                )
