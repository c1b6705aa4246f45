import functools
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tfx_tpu_trainer.compat import contrib
from tfx_tpu_trainer.estimator import (
    Estimator,
    EstimatorSpec,
    RunConfig,
    VocabInfo,
    WarmStartSettings,
    tpu,
)
from tfx_tpu_trainer.estimator._warm_start import as_warm_start_settings, warm_start

v1 = tf.compat.v1

TRAINED = {"linear/weights": [7.0, 8.0, 9.0], "linear/bias": 3.0, "steps_seen": 50.0}


def _save(folder: pathlib.Path, values: dict, *, step: int = 40) -> str:
    """Writes a checkpoint; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in {**values, "global_step": np.int64(step)}.items():
            v1.get_variable(name, initializer=np.asarray(value, getattr(value, "dtype", "float32")))
        session.run(v1.global_variables_initializer())
        return v1.train.Saver().save(session, str(folder / "model.ckpt"), global_step=step)


def _save_model(folder: pathlib.Path, values: dict) -> str:
    """Writes a SavedModel; returns its folder."""
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in values.items():
            v1.get_variable(name, initializer=np.asarray(value, "float32"))
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, ["serve"])
        builder.save()
    return str(folder)


def _model_fn(features, labels, mode):
    """The linear model and a variable that is not trained."""
    outputs = linear_model.outputs_of(features)
    seen = v1.get_variable("steps_seen", initializer=0.0, trainable=False)
    train_op = tf.group(
        v1.train.get_global_step().assign_add(1), seen.assign_add(1, read_value=False)
    )
    loss = tf.reduce_mean(tf.square(outputs - labels)) if labels is not None else None
    return EstimatorSpec(mode, loss=loss, train_op=train_op, predictions={"y": outputs})


def _first_values(folder: pathlib.Path, warm_start_from) -> dict[str, np.ndarray]:
    """Variables after one step that leaves the trainable ones alone."""
    estimator = Estimator(_model_fn, model_dir=folder, warm_start_from=warm_start_from)
    estimator.train(functools.partial(linear_model.input_fn, {"batch_size": 4}), steps=1)
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def _check_values(values: dict, **expected) -> None:
    for name, value in expected.items():
        name = name.replace("__", "/")
        np.testing.assert_allclose(values[name], value, err_msg=name)


@pytest.mark.parametrize(
    "kind", ["checkpoint", "folder", "path", "bytes", "saved_model", "settings of a path"]
)
@pytest.mark.behaviour(283, 284)
def test_trainable_variables_are_loaded_and_the_global_step_is_not(tmp_path, kind):
    checkpoint = _save(tmp_path / "old", TRAINED)
    source = {
        "checkpoint": lambda: checkpoint,
        "folder": lambda: str(tmp_path / "old"),
        "path": lambda: tmp_path / "old",
        "settings of a path": lambda: WarmStartSettings(pathlib.Path(checkpoint)),
        "bytes": lambda: checkpoint.encode(),
        "saved_model": lambda: _save_model(tmp_path / "saved_model", TRAINED),
    }[kind]()
    values = _first_values(tmp_path / "new", source)
    _check_values(values, linear__weights=[7, 8, 9], linear__bias=3)
    _check_values(values, global_step=1, steps_seen=1)


@pytest.mark.parametrize(
    ("selected", "weights", "bias", "seen"),
    [
        (".*", [7, 8, 9], 3, 0),
        (".*weights", [7, 8, 9], linear_model.BIAS, 0),
        ([".*"], [7, 8, 9], 3, 50),
        (["linear/bias", "steps"], linear_model.WEIGHTS, 3, 50),
        (("linear/bias", "steps"), linear_model.WEIGHTS, 3, 50),
        (None, linear_model.WEIGHTS, linear_model.BIAS, 0),
    ],
    ids=["all_trainable", "regex", "list_all", "list_some", "tuple_some", "none"],
)
@pytest.mark.behaviour(285)
def test_settings_select(tmp_path, selected, weights, bias, seen):
    # A list goes over the global step as well, which the first checkpoint must then have.
    settings = WarmStartSettings(_save(tmp_path / "old", TRAINED, step=0), selected)
    values = _first_values(tmp_path / "new", settings)
    _check_values(values, linear__weights=weights, linear__bias=bias, steps_seen=seen + 1)


@pytest.mark.behaviour(290)
def test_variables_may_have_had_other_names(tmp_path):
    old = {"w": TRAINED["linear/weights"], "linear/bias": 3.0}
    settings = WarmStartSettings(
        _save(tmp_path / "old", old), var_name_to_prev_var_name={"linear/weights": "w"}
    )
    values = _first_values(tmp_path / "new", settings)
    _check_values(values, linear__weights=[7, 8, 9], linear__bias=3)


@pytest.mark.behaviour(290)
def test_rows_follow_a_vocabulary_that_changed(tmp_path):
    old_words, new_words = tmp_path / "old.txt", tmp_path / "new.txt"
    old_words.write_text("a\nb\nc\n")
    new_words.write_text("c\nd\na\n")
    old = {"table": np.float32([[1, 1], [2, 2], [3, 3]])}
    settings = WarmStartSettings(
        _save(tmp_path / "old", old),
        vars_to_warm_start=None,
        var_name_to_vocab_info={
            "table": VocabInfo(
                new_vocab=str(new_words),
                new_vocab_size=3,
                num_oov_buckets=0,
                old_vocab=str(old_words),
                backup_initializer=v1.random_uniform_initializer(-5.0, -5.0),
            )
        },
    )

    def model_fn(features, mode):
        table = v1.get_variable("table", [3, 2], initializer=v1.zeros_initializer())
        return EstimatorSpec(mode, predictions=tf.gather(table, features))

    estimator = Estimator(model_fn, model_dir=tmp_path / "new", warm_start_from=settings)
    rows = list(estimator.predict(lambda: tf.data.Dataset.range(3).batch(3)))
    np.testing.assert_array_equal(rows, [[3, 3], [-5, -5], [1, 1]])


@pytest.mark.behaviour(286)
def test_a_checkpoint_in_the_model_folder_wins(tmp_path):
    _first_values(tmp_path / "new", None)
    values = _first_values(tmp_path / "new", _save(tmp_path / "old", TRAINED))
    _check_values(values, linear__weights=linear_model.WEIGHTS, global_step=2)


@pytest.mark.behaviour(287)
def test_predict_and_evaluate_warm_start_too(tmp_path):
    checkpoint = _save(tmp_path / "old", TRAINED)
    estimator = Estimator(
        _model_fn, config=RunConfig(model_dir=tmp_path / "new"), warm_start_from=checkpoint
    )
    features, labels = linear_model.rows(4)
    weights, bias = np.float32([7, 8, 9]), 3.0
    input_fn = functools.partial(linear_model.input_fn, {"batch_size": 4}, count=4)
    predicted = [row["y"] for row in estimator.predict(input_fn)]
    np.testing.assert_allclose(predicted, linear_model.output(features, weights, bias), rtol=1e-5)
    loss = linear_model.loss((features, labels), weights, bias)
    assert estimator.evaluate(input_fn)["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    "missing",
    [
        case(
            "checkpoints",
            f"`WarmStartSettings({missing!r})`",
            f"`ckpt_to_initialize_from` MUST be set in WarmStartSettings; got {missing!r}",
            values=missing,
        )
        for missing in (None, "")
    ],
)
@pytest.mark.behaviour(290)
def test_settings_need_a_checkpoint(missing, refused):
    with refused(ValueError):
        WarmStartSettings(missing)


@pytest.mark.parametrize(
    "selected",
    [
        case(
            "checkpoints",
            f"`WarmStartSettings(..., vars_to_warm_start={selected!r})`",
            f"vars_to_warm_start={selected!r}: '(' is not a regular expression",
            values=selected,
        )
        for selected in ("(", ["linear", "("])
    ],
)
def test_what_selects_variables_is_a_regular_expression(selected, refused):
    with refused(ValueError):
        WarmStartSettings("old", selected)


@pytest.mark.parametrize("selected", ["lineer", ["linear/bias", "lineer"]])
def test_an_expression_that_selects_nothing_is_told(tmp_path, caplog, selected):
    settings = WarmStartSettings(_save(tmp_path / "old", TRAINED), selected)
    _first_values(tmp_path / "new", settings)
    told = [line for line in caplog.messages if line.startswith("vars_to_warm_start")]
    assert len(told) == 1
    assert "no variable's name begins with 'lineer'; there are " in told[0]
    assert "linear/bias, linear/weights" in told[0]


def _cut(path):
    index = pathlib.Path(f"{path}.index")
    index.write_bytes(index.read_bytes()[:20])


@pytest.mark.parametrize(
    ("harm", "given", "error"),
    [
        case(
            "checkpoints",
            "a checkpoint to warm-start from that is not there",
            "The passed save_path is not a valid checkpoint: ",
            "its folder has model.ckpt-40",
            values=(None, "old/model.ckpt-7", tf.errors.NotFoundError),
        ),
        case(
            "checkpoints",
            "a folder to warm-start from without checkpoints",
            "Could not find trained model in model_dir: ",
            "Train first, or name the folder of a trained model",
            values=(None, ".", ValueError),
        ),
        case(
            "checkpoints",
            "a checkpoint to warm-start from that was cut off",
            "The checkpoint",
            "model.ckpt-40 can't be read (",
            values=(_cut, "old/model.ckpt-40", tf.errors.DataLossError),
        ),
        case(
            "checkpoints",
            "a folder to warm-start from with a checkpoint that was cut off",
            "The checkpoint",
            "model.ckpt-40 can't be read (",
            values=(_cut, "old", tf.errors.DataLossError),
        ),
    ],
)
def test_what_cannot_be_warm_started_from_is_named(tmp_path, harm, given, error, refused):
    path = _save(tmp_path / "old", TRAINED)
    if harm:
        harm(path)
    with refused(error):
        _first_values(tmp_path / "new", str(tmp_path / given))


@row(
    "checkpoints",
    "a checkpoint of other shapes to warm-start from",
    "Shape of variable linear/weights:0 ((3,)) doesn't match with shape of tensor linear/weights ([2])",
    "The checkpoint to warm-start from is",
    "or name the variables to take, WarmStartSettings(vars_to_warm_start=...)",
)
def test_other_shapes_are_refused_with_the_checkpoint(tmp_path, refused):
    path = _save(tmp_path / "old", {**TRAINED, "linear/weights": [7.0, 8.0]})
    with refused(ValueError):
        _first_values(tmp_path / "new", path)


def test_settings_are_a_named_tuple():
    settings = WarmStartSettings("c", "a.*")
    assert settings == ("c", "a.*", {}, {})
    assert as_warm_start_settings(settings) is settings
    assert as_warm_start_settings(None) is None


@pytest.mark.parametrize(
    "value",
    [
        case(
            "estimator",
            f"`warm_start_from={value!r}`",
            "warm_start_from must be a string or a WarmStartSettings, instead got",
            type(value).__name__,
            values=value,
        )
        for value in (3, ["c"], {"ckpt_to_initialize_from": "c"})
    ],
)
@pytest.mark.behaviour(20)
def test_another_type_is_refused(value, refused):
    with refused(ValueError):
        as_warm_start_settings(value)


@pytest.mark.parametrize("field", ["new_vocab", "old_vocab"])
@row(
    "checkpoints",
    "a vocabulary of a warm start that is not there",
    "var_name_to_vocab_info['linear/weights']: ",
    "gone.txt' does not exist; give the file of the vocabulary.",
)
def test_a_vocabulary_that_is_not_there_is_named(tmp_path, field, refused):
    path = _save(tmp_path / "first", TRAINED)
    (tmp_path / "there.txt").write_text("a\nb\nc\n")
    files = {name: str(tmp_path / "there.txt") for name in ("new_vocab", "old_vocab")}
    files[field] = str(tmp_path / "gone.txt")
    info = VocabInfo(new_vocab_size=3, num_oov_buckets=0, **files)
    settings = WarmStartSettings(path, var_name_to_vocab_info={"linear/weights": info})
    with tf.Graph().as_default():
        v1.get_variable("linear/weights", [3])
        with refused(tf.errors.NotFoundError) as raised:
            warm_start(settings)
    assert field in str(raised.value)


def _save_ones(folder: pathlib.Path, names) -> str:
    folder.mkdir()
    with tf.Graph().as_default(), v1.Session() as session:
        for name in names:
            v1.get_variable(name, initializer=np.ones(3, "float32"))
        v1.train.create_global_step()
        session.run(v1.global_variables_initializer())
        return v1.train.Saver().save(session, str(folder / "model.ckpt"))


def _outputs(features, *, norm_scope=None):
    with v1.variable_scope("encoder"):
        weight = v1.get_variable("weight", [3], initializer=v1.zeros_initializer())
        return contrib.layers.layer_norm(features * weight, scope=norm_scope)


def _input_fn(params=None):
    size = params["batch_size"] if params else 4
    rows = tf.data.Dataset.from_tensors(np.float32([1, 2, 3])).repeat(32)
    return rows.batch(size, drop_remainder=True)


NAMES = ["encoder/weight", "encoder/LayerNorm/beta", "encoder/LayerNorm/gamma"]
SLOTS = [
    "encoder/weight/Adam",
    "encoder/weight/Adam_1",
    "beta1_power",
    "encoder/LayerNorm/beta/Momentum",
]


def _told(caught) -> list[str]:
    return [line for line in caught if "initialized from the checkpoint" in line]


def _train(
    caplog, folder, *, checkpoint=None, mapped=None, norm_scope=None, warm_start_from=None, cores=0
):
    """Trains a step with Adam; returns the lines on checkpoints."""

    def model_fn(features, labels=None, mode=None, params=None):
        del labels, params
        loss = tf.reduce_mean(tf.square(_outputs(features, norm_scope=norm_scope) - 1.0))
        optimizer = v1.train.AdamOptimizer()

        def scaffold():
            v1.train.init_from_checkpoint(checkpoint, mapped)
            return v1.train.Scaffold()

        step = v1.train.get_global_step()
        if cores:
            train_op = tpu.CrossShardOptimizer(optimizer).minimize(loss, step)
            return tpu.TPUEstimatorSpec(
                mode, loss=loss, train_op=train_op, scaffold_fn=scaffold if checkpoint else None
            )
        if checkpoint:
            v1.train.init_from_checkpoint(checkpoint, mapped)
        return EstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

    if cores:
        config = tpu.RunConfig(
            master="emulated", model_dir=str(folder), tpu_config=tpu.TPUConfig(num_shards=cores)
        )
        estimator = tpu.TPUEstimator(
            model_fn, config=config, train_batch_size=8, warm_start_from=warm_start_from
        )
    else:
        estimator = Estimator(model_fn, model_dir=folder, warm_start_from=warm_start_from)
    caplog.clear()
    with log_lines(caplog) as caught:
        estimator.train(_input_fn if cores else functools.partial(_input_fn, None), steps=1)
    return _told(caught)


@pytest.mark.parametrize("cores", [0, 2])
def test_variables_without_a_counterpart_are_told_once_on_both_sides(caplog, tmp_path, cores):
    checkpoint = _save_ones(tmp_path / "old", [*NAMES, *SLOTS, "cls/bias"])
    (line,) = _train(
        caplog,
        tmp_path / "new",
        checkpoint=checkpoint,
        mapped={"encoder/weight": "encoder/weight"},
        norm_scope="Norm",
        cores=cores,
    )
    assert line == (
        f"Variables initialized from the checkpoint {checkpoint}: 1. 2 of the model's 3 are not: "
        "encoder/Norm/beta, encoder/Norm/gamma. 3 of the checkpoint's 4 are not used: cls/bias, "
        "encoder/LayerNorm/beta, encoder/LayerNorm/gamma."
    )


def test_nothing_is_told_where_all_variables_match(caplog, tmp_path):
    checkpoint = _save_ones(tmp_path / "old", [*NAMES, *SLOTS])
    assert _train(caplog, tmp_path / "new", checkpoint=checkpoint, mapped={"/": "/"}) == []
    assert _train(caplog, tmp_path / "warm", warm_start_from=checkpoint) == []
    assert _train(caplog, tmp_path / "cold") == []


def test_warm_start_tells_what_it_leaves(caplog, tmp_path):
    checkpoint = _save_ones(tmp_path / "old", [*NAMES, *(f"more/{number}" for number in range(9))])
    (line,) = _train(
        caplog, tmp_path / "new", warm_start_from=WarmStartSettings(checkpoint, ".*weight")
    )
    assert f"{checkpoint}: 1. " in line
    assert "2 of the model's 3 are not: encoder/LayerNorm/beta, encoder/LayerNorm/gamma." in line
    assert "11 of the checkpoint's 12 are not used: encoder/LayerNorm/beta" in line
    assert line.endswith("more/0, more/1, more/2 and 6 more.")


def test_a_resumed_training_does_not_tell_it_again(caplog, tmp_path):
    checkpoint = _save_ones(tmp_path / "old", NAMES)
    train = functools.partial(
        _train, caplog, tmp_path / "new", warm_start_from=WarmStartSettings(checkpoint, ".*weight")
    )
    assert len(train()) == 1
    assert train() == []
