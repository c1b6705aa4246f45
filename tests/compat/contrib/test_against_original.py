"""tfx_tpu_trainer.compat.contrib, held against what tf.contrib of TensorFlow 1.15 made of the same programs."""

import inspect
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from tests.compat.contrib import loops, published_networks, record_original
from tests.compat.contrib.graph_facts import facts_of
from tests.programs.fetching import CACHE, PACKAGES, REPOSITORY, Package, UnreachableError, install
from tfx_tpu_trainer.compat import contrib
from tfx_tpu_trainer.compat.contrib import slim

ORIGINAL = json.loads(record_original.RECORDING.read_text("utf-8"))


@pytest.mark.parametrize("name", record_original.CASES)
def test_variables_collections_and_numbers_are_those_of_tf_contrib(name):
    ours = facts_of(record_original.CASES[name], contrib)
    original = ORIGINAL["cases"][name]
    assert sorted(ours["variables"]) == sorted(original["variables"])
    assert ours["collections"] == original["collections"]
    assert ours["outputs"].keys() == original["outputs"].keys()
    for key, (shape, values) in original["outputs"].items():
        assert ours["outputs"][key][0] == shape, key
        if values and isinstance(values[0], str):
            assert ours["outputs"][key][1] == values, key
        else:
            np.testing.assert_allclose(
                ours["outputs"][key][1], values, rtol=2e-4, atol=2e-5, err_msg=key
            )


@pytest.mark.parametrize("name", loops.LOOPS)
def test_loops_end_with_the_numbers_and_files_of_tf_contrib(name):
    # Lists in place of tuples, as in the recording.
    assert json.loads(json.dumps(loops.LOOPS[name](contrib))) == ORIGINAL["loops"][name]


def _ours():
    return [
        (part, name)
        for part in contrib.__all__
        for name in getattr(contrib, part).__all__
        if callable(getattr(getattr(contrib, part), name))
    ]


def test_arguments_and_defaults_are_those_of_tf_contrib():
    compared = 0
    different = {}
    for part, name in _ours():
        original = ORIGINAL["signatures"].get(part, {}).get(name)
        if original is None:
            continue
        ours = record_original.signature_of(getattr(getattr(contrib, part), name))
        compared += 1
        if ours != original:
            different[f"{part}.{name}"] = (ours, original)
    assert not different
    assert compared > 15


def test_each_public_name_was_one_of_tf_contrib():
    assert [
        (part, name) for part, name in _ours() if name not in ORIGINAL["signatures"].get(part, ())
    ] == []


def test_the_public_functions_say_what_they_are_for():
    for part, name in _ours():
        assert inspect.getdoc(getattr(getattr(contrib, part), name)), (part, name)


v1 = tf.compat.v1
RECORDED = json.loads(published_networks.RECORDING.read_text("utf-8"))
SIZES = published_networks.SIZES
FETCHED = PACKAGES | {
    f"{name}=={version}": Package(name, version, digest, license_, "its network")
    for name, version, license_, digest in (
        (
            "bert-tensorflow",
            "1.0.1",
            "Apache-2.0",
            "3f35ada6769f91e88c69b11b24fde7ff2d61a9d8b3c2a29229c1fdaee50354a0",
        ),
        (
            "albert-tensorflow",
            "1.1",
            "Apache-2.0",
            "36ba735b95112597484c082bfa019bbf5b2e513a63627dce4949fdc43a67ba22",
        ),
        (
            "malaya",
            "3.9.0",
            "MIT",
            "e6213881eec18523d9bfdea1bf56f6a087d6c36eb866f7335d9348a6a58ce30f",
        ),
    )
}


def _variables() -> list[list]:
    return sorted(
        [each.op.name, each.shape.as_list(), each.dtype.base_dtype.name]
        for each in v1.global_variables()
    )


def _dense(x, units, name="dense"):
    return v1.layers.dense(x, units, name=name)


def _norm(x, scope=None):
    return contrib.layers.layer_norm(x, begin_norm_axis=-1, begin_params_axis=-1, scope=scope)


def _bert_like():
    """An encoder in BERT's scopes, with our layer_norm in place of contrib's."""
    width = SIZES["hidden_size"]
    with v1.variable_scope("bert"):
        with v1.variable_scope("embeddings"):
            table = v1.get_variable("word_embeddings", [SIZES["vocab_size"], width])
            types = v1.get_variable("token_type_embeddings", [16, width])
            places = v1.get_variable(
                "position_embeddings", [SIZES["max_position_embeddings"], width]
            )
            x = _norm(tf.gather(table, [[1, 2]]) + types[0] + places[:2])
        with v1.variable_scope("encoder"):
            for layer in range(SIZES["num_hidden_layers"]):
                with v1.variable_scope(f"layer_{layer}"):
                    with v1.variable_scope("attention"):
                        with v1.variable_scope("self"):
                            heads = [_dense(x, width, name) for name in ("query", "key", "value")]
                        with v1.variable_scope("output"):
                            x = _norm(x + _dense(tf.add_n(heads), width))
                    with v1.variable_scope("intermediate"):
                        wide = _dense(x, SIZES["intermediate_size"])
                    with v1.variable_scope("output"):
                        x = _norm(x + _dense(wide, width))
        with v1.variable_scope("pooler"):
            _dense(x[:, 0], width)
    with v1.variable_scope("cls/predictions"):
        with v1.variable_scope("transform"):
            _norm(_dense(x, width))
        v1.get_variable("output_bias", [SIZES["vocab_size"]])
    with v1.variable_scope("cls/seq_relationship"):
        v1.get_variable("output_weights", [2, width])
        v1.get_variable("output_bias", [2])


def _resnet_of_slim():
    """The ResNet of 50 layers, as slim's networks were written."""
    norm = {"decay": 0.997, "epsilon": 1e-5, "scale": True}
    with (
        slim.arg_scope([slim.conv2d], normalizer_fn=slim.batch_norm),
        slim.arg_scope([slim.batch_norm], **norm),
        v1.variable_scope("resnet_v1_50"),
    ):
        net = slim.conv2d(tf.zeros([1, 32, 32, 3]), 64, 7, stride=2, scope="conv1")
        for block, (units, depth) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 1):
            for unit in range(1, units + 1):
                with v1.variable_scope(f"block{block}/unit_{unit}/bottleneck_v1"):
                    shortcut = net
                    if unit == 1:
                        shortcut = slim.conv2d(
                            net, 4 * depth, 1, activation_fn=None, scope="shortcut"
                        )
                    net = slim.conv2d(net, depth, 1, scope="conv1")
                    net = slim.conv2d(net, depth, 3, scope="conv2")
                    net = slim.conv2d(net, 4 * depth, 1, activation_fn=None, scope="conv3")
                    net = tf.nn.relu(net + shortcut)
        slim.conv2d(net, 10, 1, activation_fn=None, normalizer_fn=None, scope="logits")


@pytest.mark.parametrize(
    ("network", "build"), [("bert", _bert_like), ("resnet_v1", _resnet_of_slim)]
)
def test_a_network_of_our_layers_has_the_published_names(network, build):
    with tf.Graph().as_default():
        build()
        assert _variables() == RECORDED[network]


def test_a_published_checkpoint_sets_our_layer_norm(tmp_path):
    """By init_from_checkpoint and an assignment map of names, as BERT's programs do."""
    with tf.Graph().as_default(), v1.Session() as session:
        for name, shape, dtype in RECORDED["bert"]:
            value = np.full(shape, 0.25 if name.endswith("beta") else 2.0, dtype)
            v1.Variable(value, name=name)
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, str(tmp_path / "bert_model.ckpt"))
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("bert"), v1.variable_scope("embeddings"):
            x = _norm(tf.constant([[1.0, -1.0] * 16]))
        known = {name for name, _ in tf.train.list_variables(path)}
        names = [each.op.name for each in v1.trainable_variables()]
        mapped = {name: name for name in names if name in known}
        assert len(mapped) == 2
        v1.train.init_from_checkpoint(path, mapped)
        session.run(v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(x), [[2.25, -1.75] * 16], rtol=1e-6)


def _fetched(requirement: str) -> pathlib.Path:
    package = FETCHED[requirement]
    folder = CACHE / f"{package.name}-{package.version}-{package.sha256[:12]}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as partial:
            site = pathlib.Path(partial) / "site"
            try:
                install(package, site)
            except UnreachableError as error:
                pytest.skip(str(error))
            if not folder.exists():
                site.rename(folder)
    return folder


@pytest.mark.sweep
@pytest.mark.parametrize("network", published_networks.FILES)
def test_a_published_program_makes_its_published_variables(tmp_path, network):
    """Unedited, with `compat --repair`."""
    requirement, needed, beside = published_networks.FILES[network]
    source = _fetched(requirement) / needed
    copy = shutil.copytree if source.is_dir() else shutil.copy
    copy(source, tmp_path / beside)
    program = shutil.copy(published_networks.__file__, tmp_path)
    command = [sys.executable, "-m", "tfx_tpu_trainer.compat", "--repair", program, network]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("TF_USE_LEGACY_KERAS", None)
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads(ended.stdout.strip().splitlines()[-1]) == RECORDED[network]
