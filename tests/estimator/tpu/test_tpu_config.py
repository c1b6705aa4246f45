import json
import re

import numpy as np
import pytest

from tests.bad_input import case, row
from tfx_tpu_trainer.estimator.tpu import InputPipelineConfig, TPUConfig
from tfx_tpu_trainer.estimator.tpu._run_config import parse_iterations_per_loop


@pytest.fixture(autouse=True)
def _no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.mark.behaviour(31)
def test_defaults():
    config = TPUConfig()
    assert config.iterations_per_loop == 2
    assert config.num_shards is None
    assert config.num_cores_per_replica is None
    assert config.per_host_input_for_training == InputPipelineConfig.PER_HOST_V1
    assert config.tpu_job_name is None
    assert config.initial_infeed_sleep_secs is None
    assert config.input_partition_dims is None
    assert config.eval_training_input_configuration == InputPipelineConfig.PER_HOST_V1
    assert config.experimental_host_call_every_n_steps == 1
    assert config.experimental_allow_per_host_v2_parallel_get_next is False
    assert config.experimental_feed_hook is None


@pytest.mark.behaviour(32)
def test_input_pipeline_values():
    names = ("PER_SHARD_V1", "PER_HOST_V1", "PER_HOST_V2", "BROADCAST", "SLICED")
    assert [getattr(InputPipelineConfig, name) for name in names] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        (True, InputPipelineConfig.PER_HOST_V1),
        (False, InputPipelineConfig.PER_SHARD_V1),
        (InputPipelineConfig.BROADCAST, InputPipelineConfig.BROADCAST),
    ],
)
@pytest.mark.behaviour(33)
def test_per_host_input(given, meaning):
    assert TPUConfig(per_host_input_for_training=given).per_host_input_for_training == meaning


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        (1, (1, "count")),
        (250, (250, "count")),
        ("40", (40, "count")),
        (np.int64(7), (7, "count")),
        ("30s", (30, "seconds")),
        ("60m", (3600, "seconds")),
        ("2h", (7200, "seconds")),
    ],
)
@pytest.mark.behaviour(34, 35)
def test_iterations_per_loop(given, meaning):
    assert TPUConfig(iterations_per_loop=given).iterations_per_loop == given
    assert parse_iterations_per_loop(given) == meaning


@pytest.mark.parametrize(
    "given", [0, -1, 1.5, 2.0, "0", "-5", "05", "1.5", "0s", "5d", "s", "", "5 s", "5|", None, True]
)
@pytest.mark.behaviour(34, 36)
@row(
    "estimator",
    "`TPUConfig(iterations_per_loop='5 s')` and other texts",
    "Invalid TPUConfig `iterations_per_loop` value",
)
def test_other_iterations_per_loop_are_refused(given, refused):
    with refused(ValueError):
        TPUConfig(iterations_per_loop=given)


@pytest.mark.parametrize("given", [1.0, "8", True, [8]])
@pytest.mark.behaviour(37)
@row("estimator", "`TPUConfig(num_shards='8')`", "num_shards must be int")
def test_num_shards_must_be_an_integer(given, refused):
    with refused(TypeError):
        TPUConfig(num_shards=given)


@pytest.mark.parametrize("given", [0, -8])
@pytest.mark.behaviour(37)
@row("estimator", "`TPUConfig(num_shards=0)`", "num_shards must be positive; got ")
def test_num_shards_must_be_positive(given, refused):
    with refused(ValueError) as raised:
        TPUConfig(num_shards=given)
    assert re.search(f"num_shards must be positive; got {given}", str(raised.value))


@pytest.mark.parametrize("given", [5, {"x": [1, 2]}, "ab", []])
@row(
    "estimator",
    "`TPUConfig(input_partition_dims={...})`, no list",
    "input_partition_dims must be a list/tuple with one or two elements, for features and labels; got ",
)
def test_input_partition_dims_must_be_a_list(given, refused):
    with refused(ValueError) as raised:
        TPUConfig(
            num_cores_per_replica=2,
            per_host_input_for_training=InputPipelineConfig.PER_HOST_V2,
            input_partition_dims=given,
        )
    assert str(raised.value).endswith(f"got {given!r}.")


@pytest.mark.parametrize(("given", "error"), [("2", TypeError), (2.5, TypeError), (0, ValueError)])
@row(
    "estimator",
    "`TPUConfig(experimental_host_call_every_n_steps=0)`",
    "TPUConfig experimental_host_call_every_n_steps must be ",
)
def test_host_calls_come_every_whole_number_of_steps(given, error, refused):
    with refused(error):
        TPUConfig(experimental_host_call_every_n_steps=given)


@pytest.mark.parametrize("given", [1, 2, 4, 8, 16, 32, 64, 128])
@pytest.mark.behaviour(38)
def test_cores_of_a_replica(given):
    assert TPUConfig(num_cores_per_replica=given).num_cores_per_replica == given


@pytest.mark.parametrize("given", [0, 3, -1, 256, "2"])
@pytest.mark.behaviour(38)
@row(
    "estimator", "`TPUConfig(num_cores_per_replica=3)`", "must be 1, 2, 4, 8, 16, 32, 64, 128; got "
)
def test_other_cores_of_a_replica_are_refused(given, refused):
    with refused(ValueError) as raised:
        TPUConfig(num_cores_per_replica=given)
    assert re.search(f"must be 1, 2, 4, 8, 16, 32, 64, 128; got {given!r}", str(raised.value))


_V2 = InputPipelineConfig.PER_HOST_V2


@pytest.mark.parametrize(
    ("dims", "where", "value"),
    [
        (["ab"], "[0]", "'ab'"),
        ([5, None], "[0]", "5"),
        ([None, 2.5], "[1]", "2.5"),
        ([{"x": "ab"}], "[0]['x']", "'ab'"),
        ([{"x": [1, 2.5]}], "[0]['x']", "[1, 2.5]"),
        ([{"x": [True, 2]}], "[0]['x']", "[True, 2]"),
        ([{"x": ([2, 1], [None])}], "[0]['x'][1]", "[None]"),
    ],
)
@row(
    "estimator",
    "`TPUConfig(input_partition_dims=[{'x': 'ab'}])`",
    "TPUConfig.input_partition_dims[",
    "must be a list of integers, the parts of each dimension, such as [1, 2], or None",
)
def test_partition_counts_must_be_integers(dims, where, value, refused):
    with refused(ValueError) as raised:
        TPUConfig(
            num_cores_per_replica=2, per_host_input_for_training=_V2, input_partition_dims=dims
        )
    assert str(raised.value).startswith(f"TPUConfig.input_partition_dims{where} must be")
    assert str(raised.value).endswith(f"got {value}.")


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ([{"x": [2, 0]}], r"^All input partition dims must be >= 1\. .*\['x'\] is \[2, 0\]"),
        ([{"x": [1]}, (4, 1)], r"^The product of .*cores_per_replica = 2\), in .*_dims\[1\]"),
    ],
)
@pytest.mark.behaviour(108)
def test_partition_counts_must_make_up_the_cores(dims, says):
    with pytest.raises(ValueError, match=says):
        TPUConfig(
            num_cores_per_replica=2, per_host_input_for_training=_V2, input_partition_dims=dims
        )


@pytest.mark.parametrize("given", ["yes", 0, 6, 2.5, None, [3]])
@row(
    "estimator",
    "`TPUConfig(per_host_input_for_training='yes')`",
    "per_host_input_for_training=",
    "is not one of InputPipelineConfig; give PER_SHARD_V1 (1), ",
    "or True or False.",
)
def test_other_ways_of_the_input_are_refused(given, refused):
    with refused(ValueError):
        TPUConfig(per_host_input_for_training=given)


_OF_ANOTHER_TYPE = {
    "`TPUConfig(tpu_job_name=5)`": (
        {"tpu_job_name": 5},
        TypeError,
        "TPUConfig tpu_job_name must be the name of a job, such as 'tpu_worker'; got 5.",
    ),
    "`TPUConfig(experimental_feed_hook=5)`": (
        {"experimental_feed_hook": 5},
        TypeError,
        "TPUConfig experimental_feed_hook must be a class of session hooks; got 5.",
    ),
    "`TPUConfig(experimental_allow_per_host_v2_parallel_get_next='no')`": (
        {"experimental_allow_per_host_v2_parallel_get_next": "no"},
        ValueError,
        "experimental_allow_per_host_v2_parallel_get_next must be True or False; got 'no'.",
    ),
}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        case("estimator", name, says, values=(given, error))
        for name, (given, error, says) in _OF_ANOTHER_TYPE.items()
    ],
)
def test_arguments_of_another_type_are_named(given, error, refused):
    with refused(error):
        TPUConfig(**given)


def test_partition_dims_that_hold():
    dims = [{"image": [1, 2]}, None]
    config = TPUConfig(
        input_partition_dims=dims, per_host_input_for_training=_V2, num_cores_per_replica=2
    )
    assert config.input_partition_dims == dims


@pytest.mark.parametrize("given", [1, 3, 4, None])
@pytest.mark.behaviour(42)
@row(
    "estimator",
    "another input for evaluation than PER_HOST_V1 and SLICED",
    "must be PER_HOST_V1 or SLICED; got ",
)
def test_other_inputs_of_evaluation_are_refused(given, refused):
    with refused(ValueError) as raised:
        TPUConfig(eval_training_input_configuration=given)
    assert re.search(f"must be PER_HOST_V1 or SLICED; got {given}", str(raised.value))


@pytest.mark.parametrize("given", [0, None, 5])
@pytest.mark.behaviour(43)
def test_seconds_of_infeed_sleep(given):
    assert TPUConfig(initial_infeed_sleep_secs=given).initial_infeed_sleep_secs == given


@pytest.mark.parametrize(("given", "error"), [(1.5, TypeError), ("5", TypeError), (-1, ValueError)])
@pytest.mark.behaviour(43)
@row("estimator", "`TPUConfig(initial_infeed_sleep_secs=-1)`", "initial_infeed_sleep_secs")
def test_other_seconds_of_infeed_sleep_are_refused(given, error, refused):
    with refused(error):
        TPUConfig(initial_infeed_sleep_secs=given)


@pytest.mark.behaviour(44)
def test_the_job_name_falls_back_to_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"service": {"tpu_worker_job_name": "job"}}))
    assert TPUConfig().tpu_job_name == "job"
    assert TPUConfig(tpu_job_name="mine").tpu_job_name == "mine"
    monkeypatch.setenv("TF_CONFIG", json.dumps({"service": {}}))
    assert TPUConfig().tpu_job_name is None
    monkeypatch.setenv("TF_CONFIG", json.dumps({"service": {"tpu_worker_job_name": 5}}))
    with pytest.raises(TypeError, match=r"TF_CONFIG's service.tpu_worker_job_name must be .* 5\."):
        TPUConfig()


@pytest.mark.behaviour(45)
def test_a_config_is_a_named_tuple():
    config = TPUConfig(num_shards=8)
    assert config == TPUConfig(num_shards=8)
    assert config != TPUConfig(num_shards=4)
    changed = config._replace(iterations_per_loop=100)
    assert isinstance(changed, TPUConfig)
    assert (changed.iterations_per_loop, changed.num_shards) == (100, 8)
