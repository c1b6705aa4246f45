"""A TPU that a program names is answered where TPU cores are emulated, and only there."""

from __future__ import annotations

import copy

import pytest
import tensorflow as tf

from tests.bad_input import case
from tfx_tpu_trainer import compat
from tfx_tpu_trainer.estimator.places.choice import emulated_replicas
from tfx_tpu_trainer.estimator.tpu import RunConfig


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", "4")
    with compat.install(emulate=True):
        yield


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    "program",
    [
        "import tensorflow as tf; found = tf.distribute.cluster_resolver",
        "import tensorflow.compat.v1 as tf; found = tf.distribute.cluster_resolver",
        "from tensorflow.compat.v1.distribute import cluster_resolver as found",
        "from tensorflow.compat.v2.distribute import cluster_resolver as found",
    ],
)
def test_a_named_tpu_is_answered(program):
    names: dict = {}
    exec(program, names)
    resolver = names["found"].TPUClusterResolver("tpu-of-nobody", zone="here", project="mine")
    assert isinstance(resolver, names["found"].TPUClusterResolver)
    assert resolver.master() == resolver.get_master() == ""
    assert resolver.cluster_spec().as_dict() == {}
    assert resolver.num_accelerators() == {"TPU": 4}
    metadata = resolver.get_tpu_system_metadata()
    assert (metadata.num_cores, metadata.num_hosts, metadata.num_of_cores_per_host) == (4, 1, 4)
    assert "tpu-of-nobody" in repr(resolver)


@pytest.mark.usefixtures("emulated")
def test_a_run_config_takes_it():
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="tpu-of-nobody")
    config = copy.deepcopy(RunConfig(cluster=resolver))
    assert config.master == config.evaluation_master == ""
    assert config.cluster_spec.as_dict() == {}


@pytest.mark.usefixtures("emulated")
def test_connect_gives_one():
    connected = tf.distribute.cluster_resolver.TPUClusterResolver.connect("tpu-of-nobody")
    assert connected.num_accelerators() == {"TPU": 4}


def test_without_emulation_it_is_tensorflows():
    theirs = tf.distribute.cluster_resolver.TPUClusterResolver
    with compat.install(emulate=False):
        assert tf.distribute.cluster_resolver.TPUClusterResolver is theirs


def test_the_environment_decides_where_nothing_is_said(monkeypatch):
    theirs = tf.distribute.cluster_resolver.TPUClusterResolver
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    with compat.install():
        assert tf.distribute.cluster_resolver.TPUClusterResolver is not theirs
    assert tf.distribute.cluster_resolver.TPUClusterResolver is theirs


def test_replicas_of_the_environment(monkeypatch):
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", raising=False)
    assert emulated_replicas() == 8
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", "2")
    assert emulated_replicas() == 2


@pytest.mark.parametrize(
    "text",
    [
        case(
            "doctor",
            f"`TFX_TPU_TRAINER_EMULATED_REPLICAS={text}`",
            f"TFX_TPU_TRAINER_EMULATED_REPLICAS must be an integer from 1 to 1024; got '{text}'",
            values=text,
        )
        for text in ("0", "-1", "1025", "many", "1.5", "²")
    ],
)
def test_replicas_that_are_none(monkeypatch, text, refused):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", text)
    with refused(ValueError):
        emulated_replicas()
