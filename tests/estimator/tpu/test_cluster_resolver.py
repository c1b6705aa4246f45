"""A TPU that a program names, under plain Python: emulated where the environment says so, else one line."""

from __future__ import annotations

import copy
import urllib.error
import urllib.request

import pytest
import tensorflow as tf

from tests.bad_input import row
from tfx_tpu_trainer.estimator import tpu

TENSORFLOWS = tf.distribute.cluster_resolver.TPUClusterResolver


@pytest.fixture
def no_cloud(monkeypatch):
    """A machine whose metadata server can't be reached: nothing waits for a real one."""

    def urlopen(*_, **__):
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.delenv("TFX_TPU_TRAINER_EMULATE", raising=False)


@row(
    "estimator",
    "`TPUClusterResolver('my-tpu')` where there is no Google Cloud",
    "TPUClusterResolver(tpu='my-tpu'): the TPU can't be looked up",
    "TFX_TPU_TRAINER_EMULATE=1",
)
@pytest.mark.usefixtures("no_cloud")
def test_a_tpu_that_can_t_be_looked_up_is_one_line(refused):
    with refused(urllib.error.URLError):
        tpu.TPUClusterResolver("my-tpu")
    with pytest.raises(urllib.error.URLError, match="'my-tpu'") as raised:
        tpu.TPUClusterResolver.connect(tpu="my-tpu")
    # Nothing of urllib's: a traceback ends here.
    assert raised.value.__suppress_context__
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("no_cloud")
@pytest.mark.parametrize(
    ("named", "master"), [("local", ""), ("grpc://10.0.0.2:8470", "grpc://10.0.0.2:8470")]
)
def test_what_needs_no_cloud_is_as_tensorflow_has_it(named, master):
    resolver = tpu.TPUClusterResolver(named)
    assert isinstance(resolver, TENSORFLOWS)
    assert resolver.master() == TENSORFLOWS(named).master() == master
    assert tpu.RunConfig(cluster=resolver).master == master


def test_emulated_cores_answer_any_name(monkeypatch):
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATE", "1")
    monkeypatch.setenv("TFX_TPU_TRAINER_EMULATED_REPLICAS", "4")
    for resolver in (
        tpu.TPUClusterResolver("tpu-of-nobody", zone="here", project="mine"),
        tpu.TPUClusterResolver.connect("tpu-of-nobody"),
        copy.deepcopy(tpu.TPUClusterResolver(tpu="tpu-of-nobody")),
    ):
        assert isinstance(resolver, tpu.TPUClusterResolver)
        assert resolver.master() == ""
        assert resolver.num_accelerators() == {"TPU": 4}
        assert tpu.RunConfig(cluster=resolver).master == ""
