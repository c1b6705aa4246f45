"""`preflight()`: a model, its input and a slice to a report, by the real compiler; the page docs/preflight.md."""

import json
import pathlib
import re

import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tfx_tpu_trainer.components.user_module._module import UserModule
from tfx_tpu_trainer.components.user_module._preflight_model import FeatureSpec, model_of_module
from tfx_tpu_trainer.estimator.tpu import (
    CrossShardOptimizer,
    RunConfig,
    TPUEstimator,
    TPUEstimatorSpec,
)
from tfx_tpu_trainer.preflight import (
    CompilerOptions,
    PreflightModel,
    PreflightUnavailableError,
    preflight,
)
from tfx_tpu_trainer.workbench.cli.preflight import preflight as command

v1 = tf.compat.v1
COLUMNS = 256


def dense_model(features, labels, mode, params):
    kernel = v1.get_variable("kernel", [COLUMNS, params["units"]])
    hidden = tf.matmul(features, kernel)
    if mode == "infer":
        return TPUEstimatorSpec(mode, predictions={"hidden": hidden})
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(hidden, axis=1) - labels))
    if mode == "eval":
        metrics = (lambda loss: {"again": v1.metrics.mean(loss)}, [tf.reshape(loss, [1])])
        return TPUEstimatorSpec(mode, loss=loss, eval_metrics=metrics)
    optimizer = CrossShardOptimizer(v1.train.AdamOptimizer(0.1))
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params):
    row = (tf.zeros([COLUMNS]), tf.zeros([]))
    return (
        tf.data.Dataset.from_tensors(row).repeat().batch(params["batch_size"], drop_remainder=True)
    )


def test_a_report_of_all_steps():
    report = preflight(dense_model, input_fn, tpu="v5e:2x4", batch_size=1024, params={"units": 128})
    assert report.ok, report.summary()
    assert (report.model, report.tpu, report.num_replicas) == ("dense_model", "v5e:2x4", 8)
    assert report.tensorflow == tf.__version__ and report.compiler.startswith("libtpu 0.")
    train, evaluate, predict = report.steps
    assert [step.name for step in report.steps] == ["train", "eval", "predict"]
    assert {step.batch_size for step in report.steps} == {1024}
    parameters = COLUMNS * 128
    assert {step.parameter_count for step in report.steps} == {parameters}
    # The kernel with two moments, the powers of Adam's betas and the global step.
    assert train.variable_bytes == 4 * (3 * parameters + 2) + 8
    # The product of each replica's 128 rows; its gradient is another as large.
    product = 2 * 128 * parameters
    assert predict.flops == pytest.approx(product, rel=0.05)
    assert train.flops == pytest.approx(2 * product, rel=0.2)
    assert train.collective_bytes == 4 * parameters
    assert evaluate.collective_bytes == predict.collective_bytes == 0
    # Kernel and features are read, the predictions are written.
    assert predict.bytes_accessed >= 4 * (parameters + 128 * COLUMNS + 128 * 128)
    assert train.bytes_accessed >= 4 * (2 * 3 * parameters + 128 * COLUMNS)


def test_an_estimator_brings_its_params_and_config(tmp_path):
    estimator = TPUEstimator(
        dense_model,
        config=RunConfig(model_dir=str(tmp_path / "model")),
        params={"units": 128},
        train_batch_size=8,
    )
    report = preflight(
        estimator,
        {"predict": input_fn},
        tpu="v5p:2x2x1",
        batch_size={"predict": 64},
        steps=["predict"],
        name="dense",
    )
    assert report.ok and report.model == "dense" and report.num_replicas == 4
    assert not (tmp_path / "model").exists()


NO_INPUT = "Step 'train' needs an input function and a batch size"


@pytest.mark.parametrize(
    "changed",
    [
        case("preflight", f"`preflight({given})`", *says, values=changed)
        for given, changed, *says in (
            (
                "steps=['train', 'serve']",
                {"steps": ["train", "serve"]},
                "'serve']: give any of train, eval, predict",
            ),
            ("steps=[]", {"steps": []}, "give any of train, eval, predict"),
            (
                "batch_size=63, tpu='v5e:2x4'",
                {"batch_size": 63},
                "batch size of train 63 must be divisible by the 8 replicas of v5e:2x4: 56 or 64",
            ),
            ("batch_size={'eval': 64}, steps=['train']", {"batch_size": {"eval": 64}}, NO_INPUT),
            ("{'eval': input_fn}, steps=['train']", {"input_fn": {"eval": input_fn}}, NO_INPUT),
            ("input_fn=None", {"input_fn": None}, "input_fn=None: give the function"),
            (
                "model='dense'",
                {"model": "dense"},
                "model='dense': give a model_fn, a TPUEstimator or",
            ),
            ("tpu='v5e:3x3'", {"tpu": "v5e:3x3"}, "v5e has no slice '3x3'; nearest: v5e:2x4"),
            (
                "PreflightModel(...), input_fn",
                {"model": PreflightModel(model_fn=dense_model, input_fns={"train": input_fn})},
                "are those of the PreflightModel: leave them out",
            ),
        )
    ],
)
def test_arguments_that_do_not_hold(changed, refused):
    given = {
        "model": dense_model,
        "input_fn": input_fn,
        "tpu": "v5e:2x4",
        "batch_size": 64,
        "steps": ["train"],
        **changed,
    }
    with refused(ValueError):
        preflight(**given)


@row(
    "preflight",
    "`CompilerOptions(libtpu_path='no/libtpu.so')`",
    "libtpu.so does not exist there. Give the file",
)
def test_without_a_compiler_nothing_is_traced(refused):
    def never(params):
        raise AssertionError

    options = CompilerOptions(libtpu_path="no/libtpu.so")
    with refused(PreflightUnavailableError):
        preflight(dense_model, never, tpu="v5e:2x4", batch_size=64, options=options)


def _module(**values) -> UserModule:
    return UserModule(**{"name": "some_model", "model_fn": dense_model, **values})


SPEC = FeatureSpec(
    features={"x": tf.TensorSpec([3]), "y": tf.TensorSpec([])},
    label_key="y",
    vocabulary_sizes={"company": 37},
)


def test_a_module_gets_the_params_that_a_trainer_would_give():
    model = model_of_module(_module(params={"a": 1, "b": 2}), spec=SPEC, params={"b": 3})
    assert model.params == {"vocabulary_sizes": {"company": 37}, "a": 1, "b": 3}
    assert model.name == "some_model" and set(model.input_fns) == {"train", "eval", "predict"}


def test_a_module_s_own_input_fn_is_used_where_there_is_no_spec():
    def of_mode(params, mode):
        return mode

    model = model_of_module(_module(input_fn=of_mode))
    given = {step: function(params={}) for step, function in model.input_fns.items()}
    assert given == {"train": "train", "eval": "eval", "predict": "eval"}


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        case("preflight", f"a module {given}", *says, values=(values, spec))
        for given, values, spec, *says in (
            (
                "without input_fn, and no feature spec",
                {},
                None,
                "has no input_fn, so the input of model_fn is unknown: give a Transform output or",
            ),
            (
                "whose input_fn takes fn_args",
                {"input_fn": lambda params, fn_args: None},
                None,
                "takes fn_args, which only a pipeline has",
            ),
            (
                "whose params are a function of fn_args",
                {"params": lambda fn_args: {}},
                SPEC,
                "is a function of fn_args, which only a pipeline has",
            ),
            (
                "whose model_fn takes labels, and a feature spec without a label",
                {},
                FeatureSpec(features=SPEC.features),
                "takes labels: name the feature that is the label",
            ),
        )
    ],
)
def test_what_only_a_pipeline_has_is_asked_for(values, spec, refused):
    with refused(ValueError):
        model_of_module(_module(**values), spec=spec)


DOCS = pathlib.Path(__file__).parents[2] / "docs" / "preflight.md"


def _listings(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_listing_makes_a_report(capsys):
    (listing,) = _listings("python")
    names: dict[str, object] = {"__name__": "listing"}
    exec(compile(listing, str(DOCS), "exec"), names)
    assert names["report"].ok
    need, seconds, part = capsys.readouterr().out.split()
    assert int(need) > 4 * 784 * 128 * 3 and float(seconds) > 0
    assert part in ("compute", "memory", "collectives")


def test_the_feature_spec_is_one():
    (listing,) = _listings("json")
    assert FeatureSpec.from_json(json.loads(listing)).label_key == "liked"


def test_every_option_is_told_of_and_no_other():
    told = set(re.findall(r"`--(\w+)", DOCS.read_text(encoding="utf-8")))
    assert told == {option.opts[0].removeprefix("--") for option in command.params}
