"""What an Estimator is before and between its runs."""

import copy
import functools
import os
import re

import pytest
import tensorflow as tf

from tests.bad_input import row
from tests.estimator import linear_model
from tests.estimator._engine.log_lines import log_lines
from tests.estimator.export.saved_model_facts import read_facts
from tests.estimator.places.strategy import strategy_runs
from tests.estimator.tpu import on_cores
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import estimator as plain
from tfx_tpu_trainer import estimator as tfe
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, RunConfig, tpu
from tfx_tpu_trainer.estimator.places.host import OnHost
from tfx_tpu_trainer.estimator.places.strategy.place import UnderStrategy
from tfx_tpu_trainer.estimator.tpu.cores.emulated import OnEmulatedCores
from tfx_tpu_trainer.estimator.tpu.cores.trace import trace_on_cores

v1 = tf.compat.v1


def _model_fn(features, labels, mode, params, config):
    return features, labels, mode, params, config


@pytest.mark.parametrize(
    ("argument", "of_config"),
    [("a/b", None), (None, "a/b"), ("a/b", "a/b")],
    ids=["argument", "config", "both"],
)
@pytest.mark.behaviour(21, 22, 25)
def test_the_model_folder(argument, of_config):
    estimator = Estimator(_model_fn, argument, RunConfig(model_dir=of_config))
    assert estimator.model_dir == "a/b"
    assert estimator.config.model_dir == "a/b"


@pytest.mark.behaviour(21)
@row(
    "estimator", "`model_dir` and another one in the config", "with different values", "'a'", "'b'"
)
def test_two_model_folders_are_refused(refused):
    with refused(ValueError):
        Estimator(_model_fn, "a", RunConfig(model_dir="b"))


@pytest.mark.parametrize("given", [None, ""])
@pytest.mark.behaviour(23)
def test_without_a_model_folder_a_temporary_one_is_made(given, caplog):
    with log_lines(caplog) as logged:
        estimator = Estimator(_model_fn, given)
    assert f"Using temporary folder as model directory: {estimator.model_dir}" in logged
    try:
        assert os.path.isdir(estimator.model_dir)
        assert os.listdir(estimator.model_dir) == []
    finally:
        os.rmdir(estimator.model_dir)


@pytest.mark.behaviour(24)
def test_params_are_copied_in_and_out():
    given = {"layers": [4, 2]}
    estimator = Estimator(_model_fn, "m", params=given)
    given["layers"].append(1)
    estimator.params["layers"].append(3)
    assert estimator.params == {"layers": [4, 2]}
    assert Estimator(_model_fn, "m").params == {}


@pytest.mark.behaviour(25)
def test_config_is_copied_out():
    estimator = Estimator(_model_fn, "m", RunConfig(tf_random_seed=3))
    config = estimator.config
    assert config is not estimator.config
    config.session_config.intra_op_parallelism_threads = 5
    assert estimator.config.session_config.intra_op_parallelism_threads == 0
    assert config.tf_random_seed == 3


@pytest.mark.behaviour(27)
def test_a_session_config_is_made_or_kept():
    assert Estimator(_model_fn, "m").config.session_config.allow_soft_placement
    given = v1.ConfigProto(intra_op_parallelism_threads=2)
    config = RunConfig(session_config=given)
    assert Estimator(_model_fn, "m", config).config.session_config == given


@pytest.mark.behaviour(30)
def test_model_fn_has_params_bound():
    estimator = Estimator(lambda features: None, "m")
    assert callable(estimator.model_fn)
    seen = []

    def model_fn(features, labels, mode, params, config):
        seen.append((features, labels, mode, params, config.model_dir))
        return EstimatorSpec(mode, predictions=tf.constant([1.0]))

    estimator = Estimator(model_fn, "m", params={"rate": 1})
    with tf.Graph().as_default():
        spec = estimator.model_fn(1, 2, "infer", RunConfig(model_dir="other"))
    assert isinstance(spec, EstimatorSpec)
    assert seen == [(1, 2, "infer", {"rate": 1}, "other")]


@pytest.mark.parametrize("config", ["config", {"model_dir": "m"}])
@row("estimator", "a config that is not a RunConfig", "config must be an instance of `RunConfig`")
def test_a_config_of_another_type_is_refused(config, refused):
    with refused(ValueError):
        Estimator(_model_fn, config=config)


@row("estimator", "`Estimator(None)`", "model_fn must be provided")
def test_no_model_fn_is_refused(refused):
    with refused(ValueError):
        Estimator(None)


@pytest.mark.parametrize("member", ["train", "evaluate", "predict", "export_saved_model", "params"])
@pytest.mark.behaviour(29)
@row(
    "estimator",
    "a subclass that overrides a member of Estimator",
    "cannot override members of Estimator",
    "Mine",
)
def test_members_may_not_be_overridden(member, refused):
    subclass = type("Mine", (Estimator,), {member: lambda self: None})
    with refused(ValueError) as raised:
        subclass(_model_fn, "m")
    assert re.search(f"cannot override members of Estimator.*Mine.*'{member}'", str(raised.value))


@pytest.mark.parametrize("member", ["latest_checkpoint", "model_fn", "my_own", "__init__"])
@pytest.mark.behaviour(29)
def test_the_api_may_be_extended(member):
    def own(self, *args):
        if member == "__init__":
            Estimator.__init__(self, *args)

    estimator = type("Mine", (Estimator,), {member: own})(_model_fn, "m")
    assert estimator.model_dir == "m"


@pytest.mark.behaviour(29)
def test_a_member_of_a_class_between_may_not_be_overridden_either():
    between = type("Between", (Estimator,), {"train": lambda self: None})
    subclass = type("Mine", (between,), {})
    with pytest.raises(ValueError, match="Between"):
        subclass(_model_fn, "m")


@pytest.mark.parametrize("allow", [lambda self: None, staticmethod(lambda _: None)])
def test_a_subclass_may_ask_for_no_check_of_its_members(allow):
    """The original: "You're on your own if you cleverly override" it; AdaNet 0.9 does, on every Estimator."""
    members = {"train": lambda self: "mine", "_assert_members_are_not_overridden": allow}
    assert type("Mine", (Estimator,), members)(_model_fn, "m").train() == "mine"


@pytest.mark.parametrize("module", [plain, tpu])
def test_a_library_may_wrap_the_model_fn_of_an_estimator(tmp_path, module):
    """As Neural Structured Learning's `add_adversarial_regularization` does."""
    of_cores = linear_model.model_fn_for(tpu)

    def original(features, labels, mode, params):
        spec = of_cores(features, labels, mode, params)
        return spec if module is tpu else spec.as_estimator_spec()

    config = module.RunConfig(model_dir=str(tmp_path))
    if module is tpu:
        options = {"use_tpu": False, "train_batch_size": 4}
        estimator = tpu.TPUEstimator(original, config=config, **options)
    else:
        estimator = Estimator(original, config=config, params={"batch_size": 4})
    assert estimator._model_fn is original
    seen = []

    def wrapped(features, labels, mode, params):
        seen.append(mode)
        return original(features, labels, mode, params)

    estimator._model_fn = wrapped
    estimator.train(linear_model.input_fn, steps=2)
    assert estimator.get_variable_value("global_step") == 2
    assert seen == ["train"]


@pytest.mark.behaviour(312)
def test_the_attributes_of_an_export_are_read_at_each_export(tmp_path):
    """The original's attributes, which public scripts that export BERT set before the export."""
    with_text = functools.partial(_with_text, linear_model.model_fn_for(tpu))
    estimator = on_cores.make(tmp_path, with_text, use_tpu=False)
    estimator.train(on_cores.train_input_fn, steps=1)
    receiver_fn = plain.export.build_raw_serving_input_receiver_fn({"x": tf.TensorSpec([None, 3])})

    def tags_of_export():
        path = estimator.export_saved_model(str(tmp_path / "exported"), receiver_fn)
        return [facts["tags"] for facts in read_facts(path.decode())]

    with pytest.raises(ValueError, match=r"no TPU can run .* which handles strings"):
        tags_of_export()
    estimator._export_to_tpu = False
    assert tags_of_export() == [["serve"]]
    estimator._export_to_cpu = False
    with pytest.raises(ValueError, match="One of export_to_cpu and export_to_tpu must be true"):
        tags_of_export()
    estimator._export_to_tpu, estimator._model_fn = True, linear_model.model_fn_for(tpu)
    assert tags_of_export() == [["serve", "tpu"]]
    estimator._export_saved_model_api_version = 3
    with pytest.raises(ValueError, match="must be 1 or 2, got: 3"):
        tags_of_export()


def _with_text(model_fn, features, labels, mode, params):
    spec = model_fn(features, labels, mode, params)
    if mode != "infer":
        return spec
    names = tf.constant(["low", "high"])
    return spec._replace(
        predictions={"name": tf.gather(names, tf.cast(spec.predictions["y"] > 0, tf.int32))}
    )


@pytest.mark.parametrize("module", [plain, tpu])
def test_other_attributes_that_programs_set_count_from_the_next_call_on(tmp_path, module):
    """As in TensorFlow 2.15.1: `_params` is changed in place or replaced, `_model_dir` and `_config` are replaced."""
    seen = []

    def model_fn(features, labels, mode, params):
        seen.append(params.get("rate"))
        spec = linear_model.model_fn_for(tpu)(features, labels, mode, {})
        return spec if module is tpu else spec.as_estimator_spec()

    config = module.RunConfig(model_dir=str(tmp_path / "first"))
    params = {"rate": 1}
    if module is tpu:
        options = {"use_tpu": False, "train_batch_size": 4, "eval_batch_size": 4}
        estimator = tpu.TPUEstimator(model_fn, config=config, params=params, **options)
    else:
        estimator = Estimator(model_fn, config=config, params={"batch_size": 4, **params})
    estimator.train(linear_model.endless_input_fn, steps=2)
    estimator._params["rate"] = 2
    assert estimator.evaluate(linear_model.input_fn)["global_step"] == 2
    estimator._params = {"batch_size": 4} if module is plain else None
    estimator._model_dir = str(tmp_path / "second")
    assert estimator.evaluate(linear_model.input_fn)["global_step"] == 0
    estimator._config = estimator.config.replace(save_checkpoints_steps=1)
    estimator.train(linear_model.endless_input_fn, steps=3)
    assert on_cores.checkpoint_steps(tmp_path / "first") == [0, 2]
    assert on_cores.checkpoint_steps(tmp_path / "second") == [0, 1, 2, 3]
    estimator._warm_start_settings = plain.WarmStartSettings(str(tmp_path / "first"))
    estimator._model_dir = str(tmp_path / "third")
    estimator.train(linear_model.endless_input_fn, steps=1)
    assert on_cores.checkpoint_steps(tmp_path / "third") == [0, 1]
    assert seen == [1, 2, None, None, None]


def test_a_subclass_can_make_the_global_step_of_a_graph_of_its_own():
    with tf.Graph().as_default() as graph:
        made = Estimator(_model_fn, "m")._create_and_assert_global_step(graph)
        assert made is tf.compat.v1.train.get_global_step()


@pytest.mark.behaviour(214)
def test_eval_dir():
    estimator = Estimator(_model_fn, "m")
    assert estimator.eval_dir() == os.path.join("m", "eval")
    assert estimator.eval_dir("test") == os.path.join("m", "eval_test")


@pytest.mark.behaviour(278, 279)
def test_before_training(tmp_path):
    estimator = Estimator(_model_fn, tmp_path)
    assert estimator.latest_checkpoint() is None
    for read in (estimator.get_variable_names, lambda: estimator.get_variable_value("w")):
        with pytest.raises(ValueError, match="Could not find trained model"):
            read()


@pytest.mark.behaviour(278)
def test_variables_of_the_latest_checkpoint(tmp_path):
    def model_fn(features, mode):
        loss = tf.reduce_sum(linear_model.outputs_of(features))
        still = v1.train.GradientDescentOptimizer(0.0)
        train_op = still.minimize(loss, v1.train.get_global_step())
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = Estimator(model_fn, tmp_path)
    input_fn = functools.partial(linear_model.input_fn, {"batch_size": 4})
    estimator.train(lambda: input_fn().map(lambda features, labels: features), steps=2)
    assert estimator.get_variable_names() == ["global_step", "linear/bias", "linear/weights"]
    assert estimator.get_variable_value("global_step") == 2
    bias, weights = estimator.get_variable_value(["linear/bias", "linear/weights:0"])
    assert bias == linear_model.BIAS
    assert weights.tolist() == linear_model.WEIGHTS.tolist()
    with pytest.raises(tf.errors.NotFoundError, match="Key absent not found in checkpoint"):
        estimator.get_variable_value("absent")


def test_an_estimators_config_survives_copying():
    config = Estimator(_model_fn, "m", RunConfig(keep_checkpoint_max=2)).config
    assert copy.deepcopy(config).keep_checkpoint_max == 2


class _SeesGraph(v1.train.SessionRunHook):
    """Keeps which of its methods see the session's graph as the default one, with its global step."""

    def __init__(self):
        self.seen = {}

    def begin(self):
        self._graph = v1.get_default_graph()
        self._look("begin", self._graph)

    def after_create_session(self, session, coord):
        self._look("after_create_session", session.graph)

    def before_run(self, run_context):
        self._look("before_run", run_context.session.graph)
        return v1.train.SessionRunArgs(v1.train.get_global_step())

    def after_run(self, run_context, run_values):
        self._look("after_run", run_context.session.graph)
        self.step = int(run_values.results)

    def end(self, session):
        self._look("end", session.graph)

    def _look(self, method, graph):
        is_default = v1.get_default_graph() is graph is self._graph
        has_step = v1.train.get_global_step() is not None
        self.seen[method] = is_default and has_step and not tf.executing_eagerly()


def _at(place, folder):
    if place == "strategy":
        estimator = strategy_runs.make(folder, strategy_runs.mirrored())
        return estimator, strategy_runs.eval_input_of(2)
    return on_cores.linear(folder, use_tpu=place == "cores"), linear_model.input_fn


@mostly_swept("place", ["host", "cores", "strategy"], kept=["host", "cores"])
@pytest.mark.behaviour(264)
def test_every_method_of_a_hook_sees_the_graph_of_its_session(tmp_path, place):
    estimator, input_fn = _at(place, tmp_path)
    hooks = {mode: _SeesGraph() for mode in ("train", "evaluate", "predict")}
    train_input_fn = (
        strategy_runs.train_input_of() if place == "strategy" else on_cores.train_input_fn
    )
    estimator.train(train_input_fn, steps=2, hooks=[hooks["train"]])
    estimator.evaluate(input_fn, hooks=[hooks["evaluate"]])
    outside = v1.get_default_graph()
    for _ in estimator.predict(input_fn, hooks=[hooks["predict"]]):
        assert v1.get_default_graph() is outside
    methods = ("begin", "after_create_session", "before_run", "after_run", "end")
    for mode, hook in hooks.items():
        assert (mode, hook.seen) == (mode, dict.fromkeys(methods, True))
    assert hooks["predict"].step == 2


MODES = ("train", "eval", "infer")


def _never_called(features, labels, mode, params):
    raise AssertionError("no place calls model_fn before it is asked to plan")


def _places(estimator: tfe.Estimator) -> list[type]:
    return [type(estimator._calls.place(lambda params: None, mode)) for mode in MODES]


def test_each_mode_has_its_own_place(tmp_path):
    folder, strategy = str(tmp_path), tf.distribute.OneDeviceStrategy("/cpu:0")
    plain = tfe.Estimator(_never_called, config=tfe.RunConfig(folder), params={"rate": 1})
    assert _places(plain) == [OnHost] * 3
    config = tfe.RunConfig(folder, train_distribute=strategy)
    assert _places(tfe.Estimator(_never_called, config=config, params={"rate": 1})) == [
        UnderStrategy,
        OnHost,
        OnHost,
    ]


@pytest.mark.parametrize(
    ("options", "places"),
    [
        ({"use_tpu": False}, [OnHost] * 3),
        ({"eval_on_tpu": False}, [OnEmulatedCores, OnHost, OnEmulatedCores]),
        ({}, [OnEmulatedCores] * 3),
    ],
)
def test_use_tpu_and_eval_on_tpu_say_which_modes_run_on_cores(options, places, tmp_path):
    config = tpu.RunConfig(master="emulated", model_dir=str(tmp_path), log_step_count_steps=None)
    estimator = tpu.TPUEstimator(_never_called, config=config, train_batch_size=8, **options)
    assert all(map(issubclass, _places(estimator), places))


def test_only_calls_with_embeddings_are_wrapped(tmp_path):
    config = tpu.RunConfig(master="emulated", model_dir=str(tmp_path))
    estimator = tpu.TPUEstimator(_never_called, config=config, train_batch_size=8)
    place = estimator._calls.on_emulated_cores(lambda params: None, "train")
    assert place.core_call.trace is trace_on_cores
