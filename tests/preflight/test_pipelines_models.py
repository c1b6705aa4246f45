"""The taxi and the digits model: training, evaluation, prediction and serving compile for real slices."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf

from pipelines.digits import model as digits
from pipelines.taxi import model as taxi
from tests.pipelines.test_models import DIGITS_PARAMS, TAXI_PARAMS, digits_batch, taxi_batch
from tests.preflight.lowered import CHECK_ONLY
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import ModeKeys, export
from tfx_tpu_trainer.estimator.tpu import RunConfig, TPUEstimator
from tfx_tpu_trainer.hardware import find_slice
from tfx_tpu_trainer.preflight._compiling import compile_steps
from tfx_tpu_trainer.preflight._engine_steps import input_fn_of_specs, lower_engine_step
from tfx_tpu_trainer.preflight._hlo_module import HloModule
from tfx_tpu_trainer.preflight._results import LoweredStep
from tfx_tpu_trainer.preflight._saved_models import lower_saved_model

v1 = tf.compat.v1

ROWS_OF_A_CORE = 16
TARGETS = ("v5e:1x1", "v5e:2x4", "v4:2x2x1", "v5p:2x2x1")

pytestmark = pytest.mark.matrix


@dataclasses.dataclass(frozen=True)
class Model:
    """A model of the pipelines.

    Attributes:
        model_fn: Its model_fn.
        params: Its params.
        batch: Returns a batch of NumPy arrays.
        parameters: Elements of its trained variables, by the formula.
    """

    model_fn: Callable[..., Any]
    params: Mapping[str, Any]
    batch: Callable[[], tuple[dict[str, Any], Any]]
    parameters: int


def _taxi_parameters() -> int:
    sizes = taxi.id_sizes(TAXI_PARAMS["vocabulary_sizes"])
    numbers, width = 3, TAXI_PARAMS["embedding_size"]
    crosses = sum(sizes[first] * sizes[second] for first, second in taxi.CROSSES)
    layers = [width * len(sizes) + numbers, *TAXI_PARAMS["hidden_units"], 1]
    deep = sum((first + 1) * second for first, second in itertools.pairwise(layers))
    return numbers + 1 + sum(sizes.values()) * (1 + width) + crosses + deep


def _digits_parameters() -> int:
    filters, hidden = DIGITS_PARAMS["filters"], DIGITS_PARAMS["hidden_units"]
    convolutions = (9 + 1) * filters + (9 * filters + 1) * 2 * filters
    return convolutions + (16 * 2 * filters + 1) * hidden + (hidden + 1) * digits.DIGITS


MODELS = {
    "taxi": Model(taxi.model_fn, TAXI_PARAMS, taxi_batch, _taxi_parameters()),
    "digits": Model(digits.model_fn, DIGITS_PARAMS, digits_batch, _digits_parameters()),
}


def specs(rows: Any) -> Any:
    return tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape[1:], a.dtype), rows)


@functools.cache
def lowered(name: str, mode: str, replicas: int) -> LoweredStep:
    model = MODELS[name]
    features, labels = model.batch()
    return lower_engine_step(
        model.model_fn,
        input_fn_of_specs(specs(features), None if mode == "infer" else specs(labels)),
        mode,
        batch_size=ROWS_OF_A_CORE * replicas,
        num_replicas=replicas,
        params=model.params,
    )


# Of a taxi run's own export and prediction, tests/workbench/cli/test_demo_e2e.py is in `make test`.
@pytest.fixture(scope="module", params=["digits", pytest.param("taxi", marks=pytest.mark.sweep)])
def serving(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model's name and its serving step."""
    model = MODELS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, _export_and_lower(model, folder)


def _export_and_lower(model: Model, folder: pathlib.Path) -> LoweredStep:
    estimator = TPUEstimator(
        model.model_fn,
        config=RunConfig(model_dir=str(folder / "checkpoints"), log_step_count_steps=None),
        params=model.params,
        use_tpu=False,
        eval_on_tpu=False,
        train_batch_size=ROWS_OF_A_CORE,
    )
    features, labels = model.batch()
    estimator.train(lambda params: tf.data.Dataset.from_tensors((features, labels)), steps=1)
    raw = {
        name: tf.TensorSpec([None, *rows.shape[1:]], rows.dtype, name)
        for name, rows in features.items()
    }

    def receiver_fn() -> export.ServingInputReceiver:
        placeholders = {
            name: v1.placeholder(spec.dtype, spec.shape, name) for name, spec in raw.items()
        }
        return export.ServingInputReceiver(placeholders, placeholders)

    path = estimator.export_saved_model(str(folder / "versions"), receiver_fn).decode()
    (step,) = lower_saved_model(path, batch_size=ROWS_OF_A_CORE)
    return step


@mostly_swept(("name", "target"), itertools.product(MODELS, TARGETS), kept=[("taxi", "v5e:2x4")])
def test_training_and_evaluation_compile(name, target):
    model, replicas = MODELS[name], find_slice(target).num_devices
    train = lowered(name, ModeKeys.TRAIN, replicas)
    evaluate = lowered(name, ModeKeys.EVAL, replicas)
    compiled = compile_steps([train, evaluate], target, CHECK_ONLY)
    for step, result in zip((train, evaluate), compiled):
        assert result.problem is None, str(result.problem)
        assert (step.parameter_count, step.rows) == (model.parameters, ROWS_OF_A_CORE)
        assert 0 < result.need_bytes < result.limit_bytes / 100
    # The gradients of all parameters, once; evaluation sums nothing.
    sums = [each.collective_bytes for each in compiled]
    assert sums == [4 * model.parameters, 0]
    assert train.variable_bytes == 3 * 4 * model.parameters + 2 * 4 + 8
    assert evaluate.variable_bytes == 4 * model.parameters
    (host,) = [finding for finding in evaluate.findings if finding.kind == "host_op"]
    assert host.message.startswith("eval_metrics runs on the host")


@mostly_swept("target", TARGETS, kept=["v5e:1x1"])
def test_serving_compiles(serving, target):
    name, step = serving
    assert step.problem is None, str(step.problem)
    assert step.name == "serve:serving_default"
    assert step.parameter_count == MODELS[name].parameters
    (compiled,) = compile_steps([step], target, CHECK_ONLY)
    assert compiled.problem is None, str(compiled.problem)


@mostly_swept("name", MODELS, kept=["digits"])
def test_prediction_compiles(name):
    step = lowered(name, ModeKeys.PREDICT, 8)
    assert step.name == "predict"
    (compiled,) = compile_steps([step], "v5e:2x4", CHECK_ONLY)
    assert compiled.problem is None, str(compiled.problem)
    inputs = {each.op_name for each in HloModule(step.hlo).parameters()}
    assert any(each.startswith("features[") for each in inputs)
