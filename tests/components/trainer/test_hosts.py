"""Which part of a training a process has, as its environment says."""

from __future__ import annotations

import json

import pytest

from tests import bad_input
from tfx_tpu_trainer.components.trainer.hosts import ALONE, Host, Role, read_host
from tfx_tpu_trainer.estimator import RunConfig

CLUSTER = {
    "chief": ["localhost:1"],
    "worker": ["localhost:2", "localhost:3"],
    "ps": ["localhost:4", "localhost:5"],
}
CHIEF_ALONE = {"chief": ["localhost:1"]}


def _set(monkeypatch, kind, index=0, cluster=None):
    config = {"cluster": cluster or CLUSTER, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def _slice(monkeypatch, number, hosts="a,b,c"):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", hosts)
    monkeypatch.setenv("TPU_WORKER_ID", number)


def test_a_process_is_alone_by_default():
    assert read_host() == Host(Role.CHIEF, is_alone=True, in_cluster=False, reader=0, readers=1)


@pytest.mark.parametrize(
    ("kind", "index", "role", "reader", "readers"),
    [
        ("chief", 0, Role.CHIEF, 0, 3),
        ("worker", 0, Role.WORKER, 1, 3),
        ("worker", 1, Role.WORKER, 2, 3),
        ("ps", 1, Role.PS, 0, 1),
        ("evaluator", 0, Role.EVALUATOR, 0, 1),
    ],
)
def test_tasks_of_a_cluster(monkeypatch, kind, index, role, reader, readers):
    _set(monkeypatch, kind, index)
    assert read_host() == Host(role, False, True, reader, readers)
    assert read_host().is_chief == (kind == "chief")


def test_a_cluster_of_one_is_no_cluster(monkeypatch):
    # Vertex AI describes even a single machine that way.
    _set(monkeypatch, "chief", cluster=CHIEF_ALONE)
    assert read_host() == Host()


@bad_input.row(
    "tf_config",
    "`TpuTrainer` with a chief, a worker and no parameter server",
    'TF_CONFIG has 2 workers, the chief included, and no "ps"',
    'Add at least one "ps"',
)
def test_workers_without_common_variables_are_refused(monkeypatch, refused):
    _set(monkeypatch, "worker", cluster={"chief": ["localhost:1"], "worker": ["localhost:2"]})
    with refused(ValueError):
        read_host()


@pytest.mark.parametrize(
    ("number", "role"), [("0", Role.CHIEF), ("1", Role.TPU_HOST), ("2", Role.TPU_HOST)]
)
def test_hosts_of_a_tpu_slice(monkeypatch, number, role):
    _slice(monkeypatch, number)
    assert read_host() == Host(role, is_alone=False)


def test_a_slice_of_one_host_is_alone(monkeypatch):
    _slice(monkeypatch, "0", hosts="localhost")
    assert read_host() == Host()


@pytest.mark.parametrize(
    "number",
    [
        bad_input.case(
            "tf_config",
            f"`TPU_WORKER_ID={number}` and 3 names in `TPU_WORKER_HOSTNAMES`",
            f"TPU_WORKER_ID={number!r} is not the number of one of the 3 hosts",
            "set it to this host's number",
            values=number,
        )
        for number in ["", "3", "x", "-1", "²"]
    ],
)
def test_a_host_that_is_not_in_the_slice_is_refused(monkeypatch, number, refused):
    _slice(monkeypatch, number)
    with refused(ValueError):
        read_host()


def test_what_runs_alone_sees_no_cluster(monkeypatch):
    _set(monkeypatch, "worker")
    assert RunConfig().task_type == "worker" and RunConfig().num_ps_replicas == 2
    alone = RunConfig(tf_config=ALONE)
    assert alone.is_chief and alone.num_ps_replicas == 0 and not alone.master
    assert alone.replace(tf_random_seed=1).is_chief
