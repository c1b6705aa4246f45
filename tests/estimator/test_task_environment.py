"""TF_CONFIG's errors and what they say; its values are in test_against_original.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tfx_tpu_trainer.estimator.task_environment import read_task_environment

CLUSTER = {"chief": ["h0:1"], "worker": ["h1:1", "h2:1"], "ps": ["h3:1"]}
LEGACY = {"master": ["h0:1"], "worker": ["h1:1"]}


def _read(monkeypatch, tf_config: Any):
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    return read_task_environment()


def _at(task_type: str, index: int) -> dict:
    return {"type": task_type, "index": index}


@pytest.mark.parametrize("text", [None, "", "{}"])
@pytest.mark.behaviour(65)
def test_without_tf_config_a_run_is_local(monkeypatch, text):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    place = read_task_environment()
    assert (place.task_type, place.task_id, place.is_chief) == ("worker", 0, True)
    assert (place.num_worker_replicas, place.num_ps_replicas) == (1, 0)
    assert (place.master, place.evaluation_master) == ("", "")
    assert place.cluster_spec.as_dict() == {}
    assert place.service is None
    assert place.model_dir is None


@pytest.mark.parametrize(
    ("job", "index", "global_id"),
    [("chief", 0, 0), ("worker", 0, 1), ("worker", 1, 2), ("ps", 0, 3)],
)
@pytest.mark.behaviour(66)
def test_a_task_of_a_cluster(monkeypatch, job, index, global_id):
    place = _read(monkeypatch, {"cluster": CLUSTER, "task": _at(job, index)})
    assert (place.task_type, place.task_id) == (job, index)
    assert place.master == f"grpc://{CLUSTER[job][index]}"
    assert place.is_chief is (job == "chief")
    assert (place.num_worker_replicas, place.num_ps_replicas) == (3, 1)
    assert place.global_id_in_cluster == global_id


@pytest.mark.behaviour(67)
def test_a_cluster_of_one_node_runs_locally(monkeypatch):
    place = _read(monkeypatch, {"cluster": {"chief": ["h0:1"]}, "task": _at("chief", 0)})
    assert (place.master, place.is_chief, place.num_worker_replicas) == ("", True, 1)


@pytest.mark.behaviour(68)
def test_the_evaluator_stands_outside_of_the_cluster(monkeypatch):
    place = _read(monkeypatch, {"cluster": CLUSTER, "task": _at("evaluator", 0)})
    assert place.cluster_spec.as_dict() == {}
    assert (place.master, place.is_chief, place.num_worker_replicas) == ("", False, 0)
    assert place.global_id_in_cluster is None


@pytest.mark.parametrize(
    ("tf_config", "says"),
    [
        ({"task": _at("ps", 0)}, "task type must be WORKER; got 'ps'"),
        ({"task": _at("worker", 2)}, "task index must be 0; got 2"),
        ({"cluster": CLUSTER, "task": {"index": 0}}, "task type must be set; got {'index': 0}"),
        ({"cluster": CLUSTER, "task": {"type": "worker"}}, "task index must be set"),
        ({"cluster": CLUSTER, "task": _at("worker", -1)}, "non-negative number; got -1"),
        ({"cluster": CLUSTER, "task": _at("worker", 2)}, "2 is not a valid task_id"),
        ({"cluster": CLUSTER, "task": _at("boss", 0)}, "boss is not a valid task_type"),
        ({"cluster": {"ps": ["h:1"]}, "task": _at("ps", 0)}, 'must have one "chief" node'),
        (
            {"cluster": {"chief": ["h:1", "i:1"]}, "task": _at("chief", 0)},
            r"must have only one \"chief\" node; it has \['h:1', 'i:1'\]",
        ),
        ({"cluster": {**CLUSTER, **LEGACY}, "task": _at("chief", 0)}, "use only one"),
        (
            {"cluster": LEGACY, "task": _at("evaluator", 0)},
            "task_type `evaluator` is not supported",
        ),
        ({"model_dir": ""}, "model_dir in TF_CONFIG should be non-empty"),
        ({"cluster": CLUSTER, "task": _at("worker", "two")}, "an integer; got 'two'"),
        ({"task": _at("worker", None)}, "must be an integer; got None"),
        ({"cluster": CLUSTER, "task": "worker"}, "must be like .*; got 'worker'"),
        ({"cluster": {"chief": "h0:1"}}, "must map each job to a list.*'chief': 'h0:1'"),
        ({"cluster": ["h0:1"]}, r"must map each job to a list.*\['h0:1'\]"),
        ([CLUSTER], "must be a JSON object; got"),
    ],
)
@pytest.mark.behaviour(63, 65, 66, 68)
def test_what_cannot_be_is_refused(monkeypatch, tf_config, says):
    with pytest.raises(ValueError, match=says):
        _read(monkeypatch, tf_config)


@pytest.mark.behaviour(64)
def test_service_must_be_a_dict(monkeypatch):
    assert _read(monkeypatch, {"service": {"any": 1}}).service == {"any": 1}
    with pytest.raises(TypeError, match="must be a dict"):
        _read(monkeypatch, {"service": ["any"]})


def test_tf_config_that_is_no_json_is_quoted(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{cluster")
    with pytest.raises(ValueError, match=r"TF_CONFIG is not JSON.*{cluster"):
        read_task_environment()
