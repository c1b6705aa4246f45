"""TF_CONFIG's errors and what they say; its values are in test_against_original.py."""

import json
import math
from typing import Any

import pytest

from tests import bad_input
from tfx_tpu_trainer.estimator._task_environment import read_task_environment
from tfx_tpu_trainer.estimator.tpu import TPUConfig

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


def refusal(given, tf_config, *says):
    return bad_input.case("tf_config", given, *says, values=(tf_config,))


@pytest.mark.parametrize(
    "tf_config",
    [
        refusal(
            "the task `ps:0` and no cluster",
            {"task": _at("ps", 0)},
            "task type must be WORKER; got 'ps'. Add the cluster",
        ),
        refusal(
            "the task `worker:2` and no cluster",
            {"task": _at("worker", 2)},
            "task index must be 0; got 2. Add the cluster",
        ),
        refusal(
            "a task without its type",
            {"cluster": CLUSTER, "task": {"index": 0}},
            "task type must be set; got {'index': 0}. Add one of ['chief', 'evaluator', 'ps'",
        ),
        refusal(
            "a task without its index",
            {"cluster": CLUSTER, "task": {"type": "worker"}},
            "task index must be set; got {'type': 'worker'}. Add the task's number",
        ),
        refusal(
            "the index -1",
            {"cluster": CLUSTER, "task": _at("worker", -1)},
            "non-negative number; got -1 in TF_CONFIG. Count from 0",
        ),
        refusal(
            "the index 2, of 2 workers",
            {"cluster": CLUSTER, "task": _at("worker", 2)},
            "2 is not a valid task_id for task_type worker",
            "TF_CONFIG",
            "correct the index: it counts from 0",
        ),
        refusal(
            "a task of a type that the cluster has not",
            {"cluster": CLUSTER, "task": _at("boss", 0)},
            "boss is not a valid task_type",
            "TF_CONFIG",
            "correct the type",
        ),
        refusal(
            "a task whose type is a list",
            {"cluster": CLUSTER, "task": _at(["chief"], 0)},
            "['chief'] is not a valid task_type",
            "correct the type",
        ),
        refusal(
            "a cluster without a chief",
            {"cluster": {"ps": ["h:1"]}, "task": _at("ps", 0)},
            "must have one \"chief\" node; it has {'ps': ['h:1']}. Add its address",
        ),
        refusal(
            "two chiefs",
            {"cluster": {"chief": ["h:1", "i:1"]}, "task": _at("chief", 0)},
            "must have only one \"chief\" node; it has ['h:1', 'i:1']. Make the others workers",
        ),
        refusal(
            "a chief and a master",
            {
                "cluster": {"chief": ["h0:1"], "master": ["h5:1"], "worker": ["h1:1"]},
                "task": _at("chief", 0),
            },
            "job `chief` is not supported: use only one. TF_CONFIG has {'",
        ),
        refusal(
            "an evaluator beside a master",
            {"cluster": LEGACY, "task": _at("evaluator", 0)},
            "task_type `evaluator` is not supported",
            'Call it "chief" in TF_CONFIG',
        ),
        refusal(
            "an empty `model_dir`",
            {"model_dir": ""},
            "model_dir in TF_CONFIG should be non-empty; leave it out",
        ),
        refusal(
            "a `model_dir` that is a number",
            {"model_dir": 5},
            "model_dir in TF_CONFIG is 5; give a string, or leave it out",
        ),
        refusal(
            "a `session_master` that is a list",
            {"session_master": ["h0:1"]},
            "session_master in TF_CONFIG is ['h0:1']; give a string, or leave it out",
        ),
        *(
            refusal(
                f"the index {shown}",
                {"cluster": CLUSTER, "task": _at("worker", index)},
                f"Task index must be an integer; got {index!r} in TF_CONFIG. Give the task's number",
            )
            for shown, index in {
                '"two"': "two",
                '"²"': "²",
                "0.7": 0.7,
                "1e999": math.inf,
                "true": True,
                "[1]": [1],
            }.items()
        ),
        refusal(
            "the index `null` and no cluster",
            {"task": _at("worker", None)},
            "must be an integer; got None in TF_CONFIG. Give the task's number",
        ),
        refusal(
            "a task that is text",
            {"cluster": CLUSTER, "task": "worker"},
            'must be like {"type": "worker", "index": 0}; got \'worker\'',
        ),
        refusal(
            "tasks by name in place of number",
            {"cluster": {"chief": {"first": "h0:1"}}},
            "must map each job to a list of \"host:port\"; got {'chief': {'first'",
        ),
        refusal(
            "an address without a port",
            {"cluster": {**CLUSTER, "worker": ["h1:1", "h2"]}, "task": _at("chief", 0)},
            "The address of worker:1 in TF_CONFIG is 'h2'; give \"host:port\"",
        ),
        refusal(
            "an address with a URL's scheme",
            {"cluster": {**CLUSTER, "ps": ["grpc://h3:1"]}, "task": _at("chief", 0)},
            "The address of ps:0 in TF_CONFIG is 'grpc://h3:1'; give \"host:port\"",
        ),
        refusal(
            "port 99999",
            {"cluster": {**CLUSTER, "ps": ["h3:99999"]}, "task": _at("chief", 0)},
            "The address of ps:0 in TF_CONFIG is 'h3:99999'",
            "a port from 0 to 65535",
        ),
        refusal(
            "two tasks of one type at one address",
            {"cluster": {**CLUSTER, "worker": ["h1:1", "h1:1"]}, "task": _at("chief", 0)},
            "worker:0 and worker:1 in TF_CONFIG have the same address, 'h1:1'; give each task a unique one",
        ),
        refusal(
            "a chief and a parameter server at one address",
            {"cluster": {**CLUSTER, "ps": ["h0:1"]}, "task": _at("ps", 0)},
            "chief:0 and ps:0 in TF_CONFIG have the same address, 'h0:1'; give each task a unique one",
        ),
        refusal("a JSON list", [CLUSTER], "TF_CONFIG must be a JSON object such as", "got '[{"),
    ],
)
@pytest.mark.behaviour(63, 65, 66, 68)
def test_what_cannot_be_is_refused(monkeypatch, tf_config, refused):
    with refused(ValueError):
        _read(monkeypatch, tf_config)


@pytest.mark.parametrize(
    "tf_config",
    [
        refusal(
            "an address instead of a list of them",
            {"cluster": {"chief": "h0:1"}},
            "must map each job to a list of \"host:port\"; got {'chief': 'h0:1'}",
        ),
        refusal(
            "a cluster that is a list",
            {"cluster": ["h0:1"]},
            "must map each job to a list of \"host:port\"; got ['h0:1']",
        ),
        refusal(
            "an address that is a number",
            {"cluster": {"chief": [2222]}},
            "must map each job to a list of \"host:port\"; got {'chief': [2222]}",
        ),
    ],
)
def test_a_cluster_of_another_type_is_refused(monkeypatch, tf_config, refused):
    with refused(TypeError):
        _read(monkeypatch, tf_config)


@pytest.mark.parametrize(
    ("tf_config", "says"),
    [
        ({"service": [1], "model_dir": ""}, "model_dir in TF_CONFIG should be non-empty"),
        ({"cluster": {"ps": ["h1"]}, "task": "ps"}, 'must have one "chief" node'),
        ({"cluster": {"chief": []}, "task": "ps"}, 'must have one "chief" node'),
        ({"cluster": {"chief": ["h0"]}}, "task type must be set"),
        ({"cluster": {"chief": ["h0"]}, "task": _at("chief", 1)}, "not a valid task_id"),
    ],
)
def test_the_checks_come_in_the_originals_order(monkeypatch, tf_config, says):
    with pytest.raises(ValueError, match=says):
        _read(monkeypatch, tf_config)


def test_port_0_is_any_that_is_free(monkeypatch):
    cluster = {"chief": ["h0:0"], "ps": ["h0:0"], "worker": ["h0:0", "h1:0"]}
    place = _read(monkeypatch, {"cluster": cluster, "task": _at("worker", 1)})
    assert (place.master, place.num_worker_replicas) == ("grpc://h1:0", 3)


def test_a_cluster_may_name_some_of_its_tasks(monkeypatch):
    cluster = {"chief": ["h0:1"], "worker": {"1": "h2:1"}}
    place = _read(monkeypatch, {"cluster": cluster, "task": _at("worker", 1)})
    # As in the original, which counts the tasks that are named.
    assert (place.master, place.num_worker_replicas) == ("grpc://h2:1", 2)


@pytest.mark.parametrize("address", ["[::1]:2222", "10.0.0.1:65535", "pod-0.taxi.ns.svc:1"])
def test_an_address_may_be_a_name_or_a_number(monkeypatch, address):
    place = _read(
        monkeypatch, {"cluster": {"chief": [address], "ps": ["h:1"]}, "task": _at("chief", 0)}
    )
    assert place.master == f"grpc://{address}"


@pytest.mark.parametrize("index", ["1", 1.0])
@pytest.mark.behaviour(66)
def test_an_index_may_be_any_form_of_the_number(monkeypatch, index):
    assert _read(monkeypatch, {"cluster": CLUSTER, "task": _at("worker", index)}).task_id == 1


@pytest.mark.behaviour(64)
@bad_input.row(
    "tf_config",
    "a `service` that is a list",
    "it must be a dict. Given <class 'list'>: ['any']. Leave it out",
)
def test_service_must_be_a_dict(monkeypatch, refused):
    assert _read(monkeypatch, {"service": {"any": 1}}).service == {"any": 1}
    with refused(TypeError):
        _read(monkeypatch, {"service": ["any"]})


@pytest.mark.parametrize(
    "text",
    [
        bad_input.case(
            "tf_config",
            "text that is not valid JSON",
            "TF_CONFIG is not JSON (",
            "'{cluster'; set it to the value from the cluster's manager, or unset it",
            values="{cluster",
        ),
        bad_input.case(
            "tf_config",
            "JSON nested 100,000 deep",
            "TF_CONFIG is not JSON (maximum recursion depth",
            "'...; set it to the value from the cluster's manager, or unset it",
            values="[" * 100_000,
        ),
    ],
)
@pytest.mark.parametrize("read", [read_task_environment, TPUConfig])
def test_tf_config_that_is_no_json_is_quoted(monkeypatch, text, read, refused):
    monkeypatch.setenv("TF_CONFIG", text)
    with refused(ValueError) as raised:
        read()
    assert len(str(raised.value)) < 500
