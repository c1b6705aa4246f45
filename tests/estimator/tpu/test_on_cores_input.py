"""How input_fn's rows travel to emulated TPU cores, and what input_fn and model_fn are told."""

import collections
import re

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix

BATCH = 16


def _tensors(params, context):
    """The part of the global batch that a call of a per-core input_fn gives, as tensors."""
    index = context.current_input_fn_deployment()[1]
    features, labels = linear_model.rows(BATCH)
    part = slice(index * params["batch_size"], (index + 1) * params["batch_size"])
    return {"x": tf.constant(features[part])}, tf.constant(labels[part])


def _hosts_part(params, context):
    """The batches of a host: with two, each reads its half of every global batch."""
    _, index, calls, _ = context.current_input_fn_deployment()
    features, labels = (
        part.reshape(-1, calls, BATCH // calls, *part.shape[1:])[:, index].reshape(
            -1, *part.shape[1:]
        )
        for part in linear_model.rows(BATCH)
    )
    dataset = tf.data.Dataset.from_tensor_slices(({"x": features}, labels)).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


# mode, cores -> batch size of input_fn, its calls, batch size of model_fn, replicas of a call.
TRAIN_CASES = [
    ("PER_SHARD_V1", 4, 4, 4, 4, 1),
    ("PER_SHARD_V1", 16, 1, 16, 1, 1),
    ("PER_HOST_V1", 4, 16, 1, 4, 4),
    ("PER_HOST_V1", 16, 8, 2, 1, 8),
    ("PER_HOST_V2", 4, 4, 1, 4, 4),
    ("PER_HOST_V2", 16, 1, 2, 1, 8),
    ("BROADCAST", 4, 16, 1, 16, 4),
    ("BROADCAST", 16, 16, 1, 16, 16),
]
# Each way, and once two hosts; the others are for `make test-all`.
QUICK = [("PER_SHARD_V1", 4), ("PER_HOST_V1", 4), ("PER_HOST_V2", 16), ("BROADCAST", 4)]


@pytest.mark.parametrize(
    ("mode", "number", "given", "calls", "model", "replicas"),
    [
        pytest.param(*case, marks=() if case[:2] in QUICK else pytest.mark.sweep)
        for case in TRAIN_CASES
    ],
)
@pytest.mark.behaviour(73, 75, 76, 77, 91, 100, 128, 129, 131)
def test_training_input(tmp_path, mode, number, given, calls, model, replicas):
    seen, hosts, rows = [], [], []

    def input_fn(params):
        context = params["context"]
        _, index, all_calls, feeds = context.current_input_fn_deployment()
        assert (context.num_replicas, context.num_hosts) == (number, (number + 7) // 8)
        assert context.num_of_replicas_per_host == number // context.num_hosts
        seen.append((params["batch_size"], index, all_calls, feeds))
        hosts.append(context.current_host)
        return (_tensors if mode == "PER_SHARD_V1" else _hosts_part)(params, context)

    def model_fn(features, labels, mode, params):
        assert params["batch_size"] == features["x"].shape[0] == labels.shape[0] == model
        assert params["use_tpu"] is True
        spec = linear_model.model_fn_for(tpu)(features, labels, mode, params)
        return spec._replace(host_call=(on_cores.recorder(rows, 0), [features["x"]]))

    estimator = on_cores.make(
        tmp_path,
        model_fn,
        cores=number,
        train_batch_size=BATCH,
        fed=getattr(tpu.InputPipelineConfig, mode),
    )
    estimator.train(input_fn, steps=1)
    assert seen == [(given, index, calls, replicas) for index in range(calls)]
    assert hosts == [index * ((number + 7) // 8) // calls for index in range(calls)]
    features, labels = linear_model.rows(BATCH)
    ((x,),) = rows
    np.testing.assert_array_equal(x, features)
    ((_, weights, _),) = linear_model.descend([(features, labels)])
    np.testing.assert_allclose(estimator.get_variable_value("linear/weights"), weights, rtol=1e-5)


INPUT_CASES = [
    ({"per_host_input_for_training": on_cores.PER_SHARD_V1}, 16, 4),
    ({"per_host_input_for_training": on_cores.PER_HOST_V1}, 16, 4),
    ({"per_host_input_for_training": on_cores.PER_HOST_V2}, 4, 4),
    ({"per_host_input_for_training": on_cores.BROADCAST}, 16, 16),
    ({"eval_training_input_configuration": on_cores.SLICED}, 16, 4),
    (
        {
            "per_host_input_for_training": on_cores.BROADCAST,
            "eval_training_input_configuration": on_cores.SLICED,
        },
        16,
        4,
    ),
]


# Evaluation and prediction take their input in the same way: each case is for one of them, mostly the quicker.
@pytest.mark.parametrize(
    ("mode", "config", "given", "model"),
    [
        pytest.param(
            mode, *case, marks=() if (number == 4) == (mode == "eval") else pytest.mark.sweep
        )
        for mode in ("eval", "infer")
        for number, case in enumerate(INPUT_CASES)
    ],
)
@pytest.mark.behaviour(72, 74, 75, 76, 77, 78, 130)
def test_evaluation_and_prediction_input(tmp_path, mode, config, given, model):
    seen = []

    def input_fn(params, mode):
        seen.append((mode, params["batch_size"], params["context"].current_host))
        return linear_model.input_fn(params, count=21)

    def model_fn(features, labels, mode, params):
        seen.append((mode, params["batch_size"]))
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    estimator = on_cores.make(
        tmp_path,
        model_fn,
        cores=4,
        train_batch_size=1,
        eval_batch_size=BATCH,
        predict_batch_size=BATCH,
        tpu_options=config,
    )
    result = on_cores.run(estimator, mode, input_fn)
    assert seen == [(mode, given, 0), (mode, model)]
    features, labels = linear_model.rows(21)
    if mode == "eval":
        error = np.abs(linear_model.output(features) - labels)
        assert result["mae"] == pytest.approx(np.mean(error), rel=1e-5)
    else:
        assert len(result) == 21


@pytest.mark.behaviour(80)
def test_sliced_on_the_host_trains_but_does_not_evaluate(tmp_path):
    estimator = on_cores.linear(tmp_path, use_tpu=False, fed=on_cores.SLICED)
    estimator.train(linear_model.endless_input_fn, steps=1)
    for mode in ("eval", "infer"):
        with pytest.raises(ValueError, match="SLICED mode only works on use_tpu = True"):
            on_cores.run(estimator, mode)


@mostly_swept("mode", on_cores.MODES, kept=["eval"])
@pytest.mark.behaviour(81, 82, 83)
@row(
    "estimator",
    "a batch that the cores do not divide",
    "batch size 10 must be divisible by number of replicas 4: 8 and",
)
def test_a_batch_that_the_cores_do_not_divide(tmp_path, mode, refused):
    name = {"infer": "predict"}.get(mode, mode)
    estimator = on_cores.linear(tmp_path, cores=4, **{f"{name}_batch_size": 10})
    with refused(ValueError) as raised:
        on_cores.run(estimator, mode)
    assert f"{name} batch size 10 must be divisible by number of replicas 4: 8 and 12 are." in str(
        raised.value
    )
    estimator = on_cores.linear(tmp_path, cores=4, **{f"{name}_batch_size": 3})
    with pytest.raises(ValueError, match="size 3 must be divisible by number of replicas 4: 4 is"):
        on_cores.run(estimator, mode)
    whole = on_cores.linear(tmp_path, cores=4, fed=on_cores.BROADCAST, **{f"{name}_batch_size": 10})
    on_cores.run(whole, mode)


@pytest.mark.behaviour(84)
def test_sliced_with_an_indivisible_batch_fails_in_the_split(tmp_path):
    estimator = on_cores.linear(tmp_path, cores=4, eval_batch_size=10, fed=on_cores.SLICED)
    with pytest.raises(ValueError, match="can't be cut into 4 equal pieces"):
        estimator.evaluate(linear_model.input_fn)


@pytest.mark.parametrize(
    ("mode", "name", "call"), [("eval", "eval", "evaluate"), ("infer", "predict", "predict")]
)
@pytest.mark.behaviour(85, 86)
@row(
    "estimator",
    "`evaluate` or `predict` on cores without a batch size",
    "_batch_size in ",
    "cannot be `None` if ",
)
def test_a_mode_without_a_batch_size(tmp_path, mode, name, call, refused):
    estimator = on_cores.linear(tmp_path, **{f"{name}_batch_size": None})
    with refused(ValueError) as raised:
        on_cores.run(estimator, mode)
    assert re.search(
        f"{name}_batch_size in .* cannot be `None` if .{call} is running", str(raised.value)
    )


@mostly_swept("mode", on_cores.MODES, kept=["train"])
@pytest.mark.behaviour(97, 98, 101, 102)
def test_what_the_context_tells_whom(tmp_path, mode):
    def input_fn(params):
        with pytest.raises(RuntimeError, match="must not be called from input_fn"):
            _ = params["context"].device_assignment
        return (on_cores.train_input_fn if mode == "train" else linear_model.input_fn)(params)

    def model_fn(features, labels, mode, params):
        context = params["context"]
        assert (context.num_replicas, context.num_hosts, context.device_assignment) == (2, 1, None)
        for refused in (lambda: context.current_host, context.current_input_fn_deployment):
            with pytest.raises(RuntimeError, match="must not be called from model_fn"):
                refused()
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    on_cores.run(on_cores.make(tmp_path, model_fn), mode, input_fn)


@pytest.mark.behaviour(114)
def test_each_call_of_a_per_core_input_fn_keeps_its_own_context(tmp_path):
    # A lift: in the original one dict serves all calls, and a late reader sees the last core's.
    kept = []

    def input_fn(params):
        kept.append(params)
        return _tensors(params, params["context"])

    on_cores.linear(tmp_path, cores=4, fed=on_cores.PER_SHARD_V1, train_batch_size=BATCH).train(
        input_fn, steps=1
    )
    assert [p["context"].current_input_fn_deployment()[1] for p in kept] == [0, 1, 2, 3]


@pytest.mark.behaviour(120)
@row(
    "estimator",
    "a Dataset for input per core",
    "`input_fn` returning `Dataset`  is not yet supported in per-Core",
)
def test_per_core_input_refuses_a_dataset(tmp_path, refused):
    with refused(TypeError):
        on_cores.linear(tmp_path, fed=on_cores.PER_SHARD_V1).train(on_cores.train_input_fn, steps=1)


@mostly_swept("mode", on_cores.MODES, kept=["eval"])
@pytest.mark.behaviour(121)
def test_per_host_v2_needs_a_dataset(tmp_path, mode):
    estimator = on_cores.linear(tmp_path, fed=on_cores.PER_HOST_V2)
    tensors = ({"x": tf.zeros([4, 3])}, tf.zeros([4]))
    with pytest.raises(
        TypeError, match=r"^`input_fn` must return a `Dataset` for the PER_HOST_V2 input"
    ):
        on_cores.run(estimator, mode, lambda params: tensors)


Pair = collections.namedtuple("Pair", ["left", "right"])


@pytest.mark.behaviour(124)
def test_nested_structures_reach_every_core(tmp_path):
    def input_fn(params):
        features, labels = linear_model.rows()
        nested = Pair({"a": features, "b": (labels, features)}, features[:, :1])
        dataset = tf.data.Dataset.from_tensor_slices((nested, {"l": (labels,)}))
        return dataset.repeat().batch(params["batch_size"], drop_remainder=True)

    def model_fn(features, labels, mode, params):
        assert isinstance(features, Pair)
        x = features.left["b"][1]
        assert features.left["a"].shape == x.shape == [4, 3]
        return linear_model.model_fn_for(tpu)({"x": x}, labels["l"][0], mode, params)

    estimator = on_cores.make(tmp_path, model_fn)
    estimator.train(input_fn, steps=2)
    on_cores.assert_descended(estimator, 2)


@pytest.mark.behaviour(125, 145)
def test_labels_may_be_absent_but_not_unwanted(tmp_path):
    def model_fn(features, mode, params):
        loss = tf.reduce_mean(linear_model.outputs_of(features))
        optimizer = tpu.CrossShardOptimizer(v1.train.GradientDescentOptimizer(0.1))
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def without_labels(params):
        return on_cores.train_input_fn(params).map(lambda features, labels: features)

    on_cores.make(tmp_path, model_fn).train(without_labels, steps=1)
    with pytest.raises(ValueError, match="model_fn does not take labels"):
        on_cores.make(tmp_path, model_fn).train(on_cores.train_input_fn, steps=1)


@pytest.mark.behaviour(126, 127)
def test_small_features_keep_their_keys_and_need_no_packing(tmp_path):
    names = ["a", "b", "c", "d", "_concatenated_small_features_float32"]

    def input_fn(params):
        features, labels = linear_model.rows()
        columns = {name: features[:, :1] + i for i, name in enumerate(names)}
        dataset = tf.data.Dataset.from_tensor_slices((columns, labels)).repeat()
        return dataset.batch(params["batch_size"], drop_remainder=True)

    def model_fn(features, labels, mode, params):
        shapes = {name: tensor.shape.as_list() for name, tensor in features.items()}
        assert shapes == {name: [4, 1] for name in names}
        x = tf.concat([features["c"]] * 3, axis=1)
        return linear_model.model_fn_for(tpu)({"x": x}, labels, mode, params)

    on_cores.make(tmp_path, model_fn).train(input_fn, steps=1)


@pytest.mark.behaviour(132)
def test_batch_axis_splits_the_axis_that_it_names(tmp_path):
    def input_fn(params):
        dataset = on_cores.train_input_fn(params)
        return dataset.map(lambda f, labels: ({"x": tf.transpose(f["x"])}, labels))

    def model_fn(features, labels, mode, params):
        if mode == "train":
            assert (features["x"].shape, labels.shape) == ([3, 4], [4])
        x = tf.transpose(features["x"])
        return linear_model.model_fn_for(tpu)({"x": x}, labels, mode, params)

    estimator = on_cores.make(tmp_path, model_fn, batch_axis=[1, 0])
    estimator.train(input_fn, steps=3)
    on_cores.assert_descended(estimator, 3)
    evaluated = estimator.evaluate_result(
        lambda params: linear_model.input_fn(params).map(
            lambda f, labels: ({"x": tf.transpose(f["x"])}, labels)
        )
    )
    assert evaluated.num_examples == linear_model.ROWS


@mostly_swept(
    "mode",
    [on_cores.PER_HOST_V1, on_cores.PER_HOST_V2, on_cores.BROADCAST],
    kept=[on_cores.PER_HOST_V1],
)
@pytest.mark.behaviour(134, 135)
@row(
    "estimator", "batches of unknown size on cores", "must have static shape", "drop_remainder=True"
)
def test_training_on_batches_of_unknown_size_is_refused(tmp_path, mode, refused):
    with refused(ValueError):
        on_cores.linear(tmp_path, fed=mode).train(linear_model.endless_input_fn, steps=1)


@pytest.mark.behaviour(134)
@row(
    "estimator",
    "a batch that can't be cut for the cores",
    "can't be cut into 2 equal pieces along axis 0",
)
def test_a_host_batch_that_does_not_cut_evenly_is_refused(tmp_path, refused):
    def input_fn(params):
        return on_cores.train_input_fn({"batch_size": 7})

    with refused(ValueError):
        on_cores.linear(tmp_path).train(input_fn, steps=1)


@mostly_swept("mode", on_cores.MODES, kept=["train"])
@pytest.mark.parametrize("which", ["features", "labels"])
@pytest.mark.behaviour(119, 136)
def test_other_unknown_dimensions_are_refused(tmp_path, mode, which):
    def unknown(tensor):
        return tf.ensure_shape(tf.py_function(lambda t: t, [tensor], tensor.dtype), [None, None])

    def input_fn(params):
        dataset = on_cores.train_input_fn(params)
        if which == "features":
            return dataset.map(lambda f, labels: ({"x": unknown(f["x"])}, labels))
        return dataset.map(lambda f, labels: (f, unknown(labels[:, None])))

    with pytest.raises(ValueError, match=f"^The {which} to the model returned by input_fn must"):
        on_cores.run(on_cores.linear(tmp_path), mode, input_fn)


@pytest.mark.parametrize("sparse", [True, False])
@row(
    "estimator",
    "sparse or ragged features on cores",
    "can't be passed to TPU cores: features['other'], float32",
    "dense in input_fn",
    "in Transform",
)
def test_sparse_and_ragged_features_are_refused_with_advice(tmp_path, sparse, refused):
    def input_fn(params):
        def add(features, labels):
            x = features["x"]
            other = tf.sparse.from_dense(x) if sparse else tf.RaggedTensor.from_tensor(x)
            return {**features, "other": other}, labels

        return on_cores.train_input_fn(params).map(add)

    with refused(ValueError):
        on_cores.linear(tmp_path).train(input_fn, steps=1)


@pytest.mark.behaviour(138)
def test_queue_runners_are_a_warning(tmp_path, caplog):
    def input_fn(params):
        row = [
            v1.train.input_producer(part, shuffle=False, num_epochs=params["epochs"]).dequeue()
            for part in linear_model.rows(16)
        ]
        # Its queue has a summary of the v1 API, which is of the host.
        x, labels = v1.train.batch(row, params["batch_size"])
        return {"x": x}, labels

    estimator = on_cores.linear(tmp_path, params={"epochs": 3})
    with log_lines(caplog) as logged:
        estimator.train(input_fn, steps=3)
    assert any(
        line.startswith("Input pipeline contains one or more QueueRunners. It could be slow and")
        for line in logged
    )
    result = on_cores.linear(tmp_path, params={"epochs": 1}).evaluate_result(input_fn)
    assert (result.global_step, result.num_examples) == (3, 16)


def test_without_num_shards_there_are_eight_emulated_cores(tmp_path, monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append((params["context"].num_replicas, params["batch_size"]))
        return linear_model.model_fn_for(tpu)(features, labels, mode, params)

    config = tpu.RunConfig(model_dir=str(tmp_path), master="grpc://tpu.example:8470")
    estimator = tpu.TPUEstimator(model_fn, config=config, train_batch_size=16)
    estimator.train(on_cores.train_input_fn, steps=1)
    assert seen == [(8, 2)]
