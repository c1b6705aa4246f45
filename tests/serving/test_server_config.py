"""The server's files, read back by the messages that TensorFlow Serving reads them by."""

from __future__ import annotations

import os

import pytest
from google.protobuf import descriptor_pb2, message_factory, text_format, wrappers_pb2
from tensorflow_serving.config import model_server_config_pb2

from tests.bad_input import case
from tfx_tpu_trainer.serving import ServerBatching, write_server_config
from tfx_tpu_trainer.serving._server_config import TPU_BATCHING, batching_for_tpu


@pytest.fixture(scope="module")
def batching_parameters():
    """`tensorflow.serving.BatchingParameters`, whose class the wheel of the API lacks.

    The fields are those of servables/tensorflow/session_bundle_config.proto in tensorflow/serving.
    """
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="batching.proto",
        package="tensorflow.serving",
        syntax="proto3",
        dependency=[wrappers_pb2.DESCRIPTOR.name],
    )
    message = file.message_type.add(name="BatchingParameters")
    wrapped = (
        "max_batch_size",
        "batch_timeout_micros",
        "max_enqueued_batches",
        "num_batch_threads",
    )
    for number, name in enumerate(wrapped, start=1):
        message.field.add(
            name=name,
            number=number,
            type=field.TYPE_MESSAGE,
            type_name=".google.protobuf.Int64Value",
            label=field.LABEL_OPTIONAL,
        )
    message.field.add(
        name="allowed_batch_sizes", number=6, type=field.TYPE_INT64, label=field.LABEL_REPEATED
    )
    wrappers = descriptor_pb2.FileDescriptorProto()
    wrappers_pb2.DESCRIPTOR.CopyToProto(wrappers)
    return message_factory.GetMessages([wrappers, file])["tensorflow.serving.BatchingParameters"]


def _read(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def test_batching_parameters_there_and_back(tmp_path, batching_parameters):
    batching = ServerBatching(
        max_batch_size=32,
        batch_timeout_micros=700,
        num_batch_threads=3,
        max_enqueued_batches=9,
        allowed_batch_sizes=(4, 32),
    )
    folder = write_server_config(str(tmp_path), cpu=batching, tpu=TPU_BATCHING)
    read = text_format.Parse(_read(folder, "batching_parameters_cpu.txt"), batching_parameters())
    assert read.max_batch_size.value == 32
    assert read.batch_timeout_micros.value == 700
    assert read.num_batch_threads.value == 3
    assert read.max_enqueued_batches.value == 9
    assert list(read.allowed_batch_sizes) == [4, 32]
    read = text_format.Parse(_read(folder, "batching_parameters_tpu.txt"), batching_parameters())
    assert list(read.allowed_batch_sizes)[-1] == read.max_batch_size.value
    assert all(size % 8 == 0 for size in read.allowed_batch_sizes)


def test_a_cpu_host_pads_nothing_by_default(tmp_path, batching_parameters):
    folder = write_server_config(str(tmp_path))
    assert sorted(os.listdir(folder)) == ["batching_parameters_cpu.txt", "model.config"]
    assert os.listdir(tmp_path) == ["serving_config"]
    read = text_format.Parse(_read(folder, "batching_parameters_cpu.txt"), batching_parameters())
    assert list(read.allowed_batch_sizes) == []


def test_model_config_there_and_back(tmp_path):
    folder = write_server_config(str(tmp_path), model_name="taxi", base_path="/models/taxi")
    read = text_format.Parse(
        _read(folder, "model.config"), model_server_config_pb2.ModelServerConfig()
    )
    (model,) = read.model_config_list.config
    assert (model.name, model.base_path) == ("taxi", "/models/taxi")
    assert model.model_platform == "tensorflow"


def test_the_models_own_batch_sizes_are_a_tpu_hosts():
    assert batching_for_tpu(()) == TPU_BATCHING
    batching = batching_for_tpu((64, 16, 64))
    assert (batching.allowed_batch_sizes, batching.max_batch_size) == ((16, 64), 64)


@pytest.mark.parametrize(
    "changes",
    [
        case("exports", f"`ServerBatching({name}={value!r})`", says, values={name: value})
        for name, value, says in (
            ("max_batch_size", 0, "max_batch_size must be at least 1, got: 0"),
            ("batch_timeout_micros", -1, "batch_timeout_micros must be at least 0, got: -1"),
            (
                "allowed_batch_sizes",
                (8, 4),
                "increase and end with max_batch_size (16), got: [8, 4]",
            ),
            (
                "allowed_batch_sizes",
                (4, 8),
                "increase and end with max_batch_size (16), got: [4, 8]",
            ),
        )
    ],
)
def test_mistakes_are_named(changes, refused):
    with refused(ValueError):
        ServerBatching(
            **{"max_batch_size": 16, "batch_timeout_micros": 0, "num_batch_threads": 1, **changes}
        )
