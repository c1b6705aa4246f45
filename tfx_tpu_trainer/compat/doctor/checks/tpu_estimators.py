"""How TPUEstimators are made, and what of it meant something else in TensorFlow 1.4."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, Verdict
from tfx_tpu_trainer.compat.doctor._parts import Call
from tfx_tpu_trainer.compat.doctor.checks import history
from tfx_tpu_trainer.compat.doctor.checks.context import Context, is_false, is_none, text_of

_THEME: Final = "tpu"
_RESERVED: Final = ("batch_size", "context")


def check_tpu_estimators(context: Context) -> Iterator[Finding]:
    """Looks at the arguments of each TPUEstimator."""
    for call in context.tpu_estimators:
        yield from _reserved_params(context, call)
        if call.has_spread:
            continue
        if call.argument("config", 2) is None or is_none(call.argument("config", 2)):
            yield _edit(
                context,
                call,
                "config must be given, of type tpu.RunConfig: without it the constructor fails.",
                "config=tpu.RunConfig(model_dir=..., tpu_config=tpu.TPUConfig(iterations_per_loop=100))",
            )
        if call in context.on_cores:
            yield from _batch_sizes(context, call)
            yield from _embeddings(context, call)
    yield from _plain_run_configs(context)


def _edit(context: Context, call: Call, says: str, edit: str) -> Finding:
    return context.finding(
        call.place, Verdict.EDIT, theme=_THEME, name="TPUEstimator", says=says, edit=edit
    )


def _reserved_params(context: Context, call: Call) -> Iterator[Finding]:
    params = call.argument("params", 3)
    if not isinstance(params, ast.Dict):
        return
    for key in params.keys:
        if key is not None and text_of(key) in _RESERVED:
            yield context.finding(
                context.program.place(key),
                Verdict.EDIT,
                theme=_THEME,
                name=f"params[{context.program.written(key)}]",
                says="The key is reserved: TPUEstimator sets it itself, so it is a ValueError.",
                edit="train_batch_size=..., eval_batch_size=... in the constructor, and no such key in params",
            )


def _batch_sizes(context: Context, call: Call) -> Iterator[Finding]:
    if not _given(call, "train_batch_size", 5):
        yield _edit(
            context,
            call,
            "use_tpu without train_batch_size: the constructor fails.",
            "train_batch_size=..., the rows of a step over all cores (or use_tpu=False)",
        )
    evaluated = _called(context, "evaluate") or bool(context.api_calls("EvalSpec"))
    on_tpu = not is_false(call.argument("eval_on_tpu", 9))
    if evaluated and on_tpu and not _given(call, "eval_batch_size", 6):
        yield _edit(
            context,
            call,
            history.EVALUATION_ON_CPU,
            "eval_batch_size=... to evaluate on the cores, or eval_on_tpu=False to stay on the CPU",
        )
    if _called(context, "predict") and not _given(call, "predict_batch_size", 7):
        yield _edit(
            context,
            call,
            history.PREDICT_ON_CPU,
            "predict_batch_size=... to predict on the cores, or a second TPUEstimator with use_tpu=False and the "
            "same model_dir",
        )


def _embeddings(context: Context, call: Call) -> Iterator[Finding]:
    spec = call.argument("embedding_config_spec", 13)
    if spec is None or is_none(spec):
        return
    yield context.finding(
        context.program.place(spec),
        Verdict.NOTE,
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
    """A tf.estimator.RunConfig that is written into a TPUEstimator's call."""
    for call in context.tpu_estimators:
        config = call.argument("config", 2)
        if not isinstance(config, ast.Call):
            continue
        name = context.program.name_of(config.func)
        if name.endswith("estimator.RunConfig") and ".tpu" not in name:
            yield context.finding(
                context.program.place(config),
                Verdict.EDIT,
                theme=_THEME,
                name="RunConfig",
                says="A TPUEstimator takes a tpu.RunConfig, not an Estimator's: a ValueError.",
                edit="tpu.RunConfig(..., tpu_config=tpu.TPUConfig(...))",
            )


def _given(call: Call, keyword: str, position: int) -> bool:
    value = call.argument(keyword, position)
    return value is not None and not is_none(value)


def _called(context: Context, method: str) -> bool:
    """Whether a method of an estimator is called with an input function."""
    return any(
        call.attribute == method
        and isinstance(call.node.func, ast.Attribute)
        and (call.argument("input_fn") is not None or context.given_input_fn(call) is not None)
        for call in context.program.calls
    )
