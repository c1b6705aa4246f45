"""What the estimators' export methods give to model_fn, take from it, and need."""

import logging
import os
import resource
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case
from tests.estimator.export import recorded_serving, saved_model_facts, small_export
from tfx_tpu_trainer.estimator import Estimator, EstimatorSpec, WarmStartSettings, export, tpu

v1 = tf.compat.v1

ROWS = recorded_serving.ROWS
RECEIVER_FN = recorded_serving.receiver_fn(export)


class Model:
    """A model_fn that notes what it is called with."""

    def __init__(self, scale=1.0):
        self.calls = []
        self.scale = scale

    def __call__(self, features, labels, mode, params):
        self.calls.append({"mode": mode, "labels": labels, "params": params})
        (y,) = recorded_serving.network(features["x"])
        y = self.scale * y[:, 0]
        if mode == "infer":
            return tpu.TPUEstimatorSpec(mode, predictions={"y": y})
        loss = tf.reduce_mean(tf.square(y - labels))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def make(folder, model=None, **arguments):
    config = tpu.RunConfig(
        model_dir=str(folder / "model"), master=arguments.pop("master", ""), tf_random_seed=1
    )
    return tpu.TPUEstimator(
        model or Model(),
        config=config,
        **{"use_tpu": False, "train_batch_size": 4, "params": {"rate": 1}, **arguments},
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    make(folder, Model(scale=3.0)).train(recorded_serving.input_fn, max_steps=2)
    return folder


@pytest.mark.behaviour(310)
def test_a_folder_named_by_the_second_as_bytes(trained, tmp_path):
    before = int(time.time())
    path = make(trained).export_saved_model(str(tmp_path / "deep" / "base"), RECEIVER_FN)
    assert isinstance(path, bytes)
    parent, version = os.path.split(path.decode())
    assert parent == str(tmp_path / "deep" / "base")
    assert before <= int(version) <= time.time()
    assert os.listdir(parent) == [version]


@pytest.mark.parametrize(
    ("base", "options"),
    [
        case("exports", f"`export_saved_model({given})`", *says, values=(base, options))
        for given, base, options, *says in (
            (
                "None",
                None,
                {},
                "export_dir_base=None is not a path: give the folder of the versions",
            ),
            ("5", 5, {}, "export_dir_base=5 is not a path: give the folder of the versions"),
            (r"'a\0b'", "a\0b", {}, r"export_dir_base='a\x00b' is not a path: give the folder"),
            (
                "'foo://a/b'",
                "foo://a/b",
                {},
                "export_dir_base='foo://a/b': this TensorFlow can't open foo://",
            ),
            (
                "assets_extra=['a']",
                "a",
                {"assets_extra": ["a"]},
                "assets_extra must be a dict of a path below assets.extra/ -> a file, got: ['a']",
            ),
            (
                "assets_extra={'a': '/nope'}",
                "a",
                {"assets_extra": {"a": "/nope"}},
                "assets_extra['a'] must be a file, got: '/nope'",
            ),
            (
                "assets_extra={'../../a': __file__}",
                "a",
                {"assets_extra": {"../../a": __file__}},
                "A key of assets_extra must be a path below assets.extra/, got: '../../a'",
            ),
            (
                "checkpoint_path='nope'",
                "a",
                {"checkpoint_path": "nope"},
                "Couldn't find trained model at nope: this checkpoint does not exist. Train first, or",
            ),
        )
    ],
)
def test_an_export_that_cannot_be_writes_nothing(
    trained, tmp_path, monkeypatch, base, options, refused
):
    monkeypatch.chdir(tmp_path)
    with refused(ValueError):
        make(trained).export_saved_model(base, RECEIVER_FN, **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "tags"),
    [
        ({}, [["serve"], ["serve", "tpu"]]),
        ({"export_to_tpu": False}, [["serve"]]),
        ({"export_to_cpu": False}, [["serve", "tpu"]]),
    ],
)
@pytest.mark.behaviour(311, 312, 313, 347)
def test_graphs_by_the_flags(trained, tmp_path, flags, tags):
    """No TPU, no batch size and no input_fn is needed, whatever use_tpu says."""
    estimator = make(trained, use_tpu=True, **flags)
    path = estimator.export_saved_model(str(tmp_path), RECEIVER_FN).decode()
    assert [graph["tags"] for graph in saved_model_facts.read_facts(path)] == tags
    assert set(dict(tf.train.list_variables(f"{path}/variables/variables"))) == {
        "global_step",
        "weights",
    }


@pytest.mark.behaviour(314)
def test_both_flags_off(trained, tmp_path):
    estimator = make(trained, export_to_cpu=False, export_to_tpu=False)
    with pytest.raises(ValueError, match="One of export_to_cpu and export_to_tpu must be true"):
        estimator.export_saved_model(str(tmp_path), RECEIVER_FN)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.behaviour(322, 323, 324, 325, 326)
def test_what_model_fn_gets(trained, tmp_path, version):
    """Version 1 says use_tpu=False for both graphs, version 2 True for the second."""
    model = Model()
    estimator = make(
        trained,
        model,
        eval_batch_size=2,
        predict_batch_size=2,
        export_saved_model_api_version=version,
    )
    estimator.export_saved_model(str(tmp_path), RECEIVER_FN)
    assert [(call["mode"], call["labels"]) for call in model.calls] == [("infer", None)] * 2
    assert [call["params"] for call in model.calls] == [
        {"rate": 1, "use_tpu": False},
        {"rate": 1, "use_tpu": version == 2},
    ]
    assert estimator.params == {"rate": 1}


@pytest.mark.behaviour(348)
def test_both_graphs_give_what_predict_gives(trained, tmp_path):
    def input_fn(params):
        return tf.data.Dataset.from_tensors({"x": tf.constant(ROWS)})

    estimator = make(trained, Model(scale=3.0))
    expected = [row["y"] for row in estimator.predict(input_fn)]
    path = estimator.export_saved_model(str(tmp_path), RECEIVER_FN).decode()
    np.testing.assert_allclose(recorded_serving.serve(path), expected, atol=1e-6)
    on_tpu = small_export.serve_tpu_graph(path, {"x": ROWS})["y"]
    np.testing.assert_allclose(on_tpu, expected, atol=1e-6)


@pytest.mark.behaviour(342)
def test_the_checkpoint_named_and_else_the_latest(trained, tmp_path):
    estimator = make(trained, export_to_tpu=False)
    first, latest = (f"{trained}/model/model.ckpt-{step}" for step in (0, 2))
    answers = {
        checkpoint: recorded_serving.serve(
            estimator.export_saved_model(
                str(tmp_path), RECEIVER_FN, checkpoint_path=checkpoint
            ).decode()
        )
        for checkpoint in (first, latest, None)
    }
    np.testing.assert_allclose(answers[first], np.sum(ROWS, axis=1), atol=1e-6)  # ones
    assert answers[latest] == answers[None]
    assert not np.allclose(answers[latest], answers[first])


@pytest.mark.behaviour(345)
def test_the_old_name_warns_and_keeps_default_attributes(trained, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    path = make(trained).export_savedmodel(str(tmp_path), RECEIVER_FN).decode()
    assert "it has been renamed, use export_saved_model instead." in caplog.text
    facts = saved_model_facts.read_facts(path)
    assert [graph["tags"] for graph in facts] == [["serve"], ["serve", "tpu"]]
    assert all(graph["default_attributes"] for graph in facts)
    caplog.clear()
    stripped = make(trained).export_savedmodel(str(tmp_path), RECEIVER_FN, strip_default_attrs=True)
    facts = saved_model_facts.read_facts(stripped.decode())
    assert not any(graph["default_attributes"] for graph in facts)


@pytest.mark.behaviour(343, 344, 345)
def test_the_old_name_takes_the_other_arguments_by_place(trained, tmp_path):
    source = tmp_path / "note.txt"
    source.write_text("note")
    path = make(trained).export_savedmodel(
        str(tmp_path / "exports"),
        RECEIVER_FN,
        {"note.txt": str(source)},
        True,
        f"{trained}/model/model.ckpt-0",
    )
    assert sorted(os.listdir(path)) == [b"assets.extra", b"saved_model.pbtxt", b"variables"]
    with open(f"{path.decode()}/assets.extra/note.txt", encoding="utf-8") as file:
        assert file.read() == "note"
    np.testing.assert_allclose(
        recorded_serving.serve(path.decode()), np.sum(ROWS, axis=1), atol=1e-6
    )


@pytest.mark.behaviour(350)
def test_a_plain_estimators_model_for_tpus(trained, tmp_path):
    def model_fn(features, labels, mode, params):
        (y,) = recorded_serving.network(features["x"])
        return EstimatorSpec(mode, predictions={"y": params["scale"] * y[:, 0]})

    estimator = Estimator(model_fn, model_dir=str(trained / "model"), params={"scale": 2.0})
    path = tpu.export_estimator_savedmodel(
        estimator, str(tmp_path), RECEIVER_FN, checkpoint_path=f"{trained}/model/model.ckpt-0"
    ).decode()
    of_host, of_tpu = saved_model_facts.read_facts(path)
    assert (of_host["tags"], of_tpu["tags"]) == (["serve"], ["serve", "tpu"])
    assert of_tpu["tpu_calls"] == 1
    expected = 2 * np.sum(ROWS, axis=1)
    np.testing.assert_allclose(recorded_serving.serve(path), expected, atol=1e-6)
    on_tpu = small_export.serve_tpu_graph(path, {"x": ROWS})["y"]
    np.testing.assert_allclose(on_tpu, expected, atol=1e-6)


@pytest.mark.behaviour(351)
def test_a_session_configuration_without_soft_placement_is_used(trained, tmp_path):
    """A variable that asks for a GPU is restored with soft placement, and not without."""

    def model_fn(features, labels, mode, params):
        with tf.device("/device:GPU:0"):
            (y,) = recorded_serving.network(features["x"])
        return tpu.TPUEstimatorSpec(mode, predictions={"y": y[:, 0]})

    path = make(trained, model_fn).export_saved_model(str(tmp_path), RECEIVER_FN)
    assert saved_model_facts.read_facts(path.decode())[0]["tags"] == ["serve"]
    strict = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(
            model_dir=str(trained / "model"),
            session_config=v1.ConfigProto(allow_soft_placement=False),
        ),
        use_tpu=False,
    )
    with pytest.raises(
        ValueError,
        match=r"^Could not restore the checkpoint .*GPU:0.*Set allow_soft_placement=True in the session_config",
    ):
        strict.export_saved_model(str(tmp_path), RECEIVER_FN)


class TestNothingToExport:
    @pytest.mark.behaviour(340)
    def test_no_checkpoint(self, tmp_path):
        with pytest.raises(ValueError, match=f"Couldn't find trained model at {tmp_path}/model"):
            make(tmp_path).export_saved_model(str(tmp_path / "exports"), RECEIVER_FN)
        assert not (tmp_path / "exports").exists()

    @pytest.mark.behaviour(340)
    def test_an_empty_checkpoint_file(self, trained, tmp_path):
        """What a full disk leaves: the files are there, and nothing is in them."""
        for suffix in ("index", "data-00000-of-00001"):
            (tmp_path / f"model.ckpt-1.{suffix}").write_bytes(b"")
        with pytest.raises(tf.errors.DataLossError, match=r"model\.ckpt-1 can't be read"):
            make(trained).export_saved_model(
                str(tmp_path / "exports"), RECEIVER_FN, checkpoint_path=f"{tmp_path}/model.ckpt-1"
            )
        assert not (tmp_path / "exports").exists() or os.listdir(tmp_path / "exports") == []

    @pytest.mark.parametrize("given", [None, {"x": "a tensor"}])
    @pytest.mark.behaviour(340)
    def test_no_receiver_function(self, trained, tmp_path, given):
        message = (
            rf"An input_receiver_fn must be defined\. That of mode 'infer' is {given!r}, which "
        )
        with pytest.raises(ValueError, match=message):
            make(trained).export_saved_model(str(tmp_path), given)

    @pytest.mark.parametrize("as_folder", [True, False])
    @pytest.mark.behaviour(288, 340)
    def test_a_warm_start_stands_in_for_a_checkpoint(self, trained, tmp_path, as_folder):
        source = trained / "model" if as_folder else trained / "model" / "model.ckpt-2"
        estimator = make(tmp_path, warm_start_from=WarmStartSettings(str(source)))
        path = estimator.export_saved_model(str(tmp_path / "exports"), RECEIVER_FN).decode()
        weights = tf.train.load_variable(f"{trained}/model/model.ckpt-2", "weights")
        np.testing.assert_allclose(recorded_serving.serve(path), (ROWS @ weights)[:, 0], atol=1e-6)


class TestFoldersThatCannotBeWritten:
    @pytest.mark.parametrize("limit", [0, 100, 2000, 9000])
    def test_a_full_disk_leaves_nothing(self, trained, tmp_path, limit):
        """Files end at so many bytes, as on a disk that fills up: in one file or another."""
        model = Model()

        def model_fn(features, labels, mode, params):
            tf.constant(np.arange(2000.0, dtype=np.float32))  # 8,000 bytes of the graph
            return model(features, labels, mode, params)

        estimator = make(trained, model_fn)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(
                RuntimeError, match=f"Can't export to {tmp_path}.*its disk must have room"
            ):
                estimator.export_saved_model(str(tmp_path), RECEIVER_FN)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert os.listdir(tmp_path) == []
        assert recorded_serving.serve(
            estimator.export_saved_model(str(tmp_path), RECEIVER_FN).decode()
        )

    @pytest.mark.parametrize("base", ["file", "file/below"])
    def test_a_file_in_the_way(self, trained, tmp_path, base):
        (tmp_path / "file").write_text("not a folder")
        with pytest.raises(RuntimeError, match=rf"Can't export to {tmp_path}/{base}: "):
            make(trained).export_saved_model(f"{tmp_path}/{base}", RECEIVER_FN)
        assert (tmp_path / "file").read_text() == "not a folder"

    def test_a_folder_that_nobody_may_write(self, trained):
        with pytest.raises(RuntimeError, match=r"Can't export to /proc/exports: .*writable"):
            make(trained).export_saved_model("/proc/exports", RECEIVER_FN)
