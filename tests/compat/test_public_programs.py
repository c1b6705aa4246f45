"""Whole programs from the package index, as they stand: `public_packages.lock` has their versions."""

from __future__ import annotations

import importlib.metadata
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.compat.public_packages import run_compat
from tests.compat.tapas_data import LENGTH, MASKED, VOCABULARY, write_config, write_examples
from tfx_tpu_trainer.estimator.hooks import read_eval_metrics


@pytest.mark.e2e
@pytest.mark.sweep
@pytest.mark.parametrize("strategy", ["off", "mirrored"])
def test_tf_models_official_2_1_0_trains_a_resnet(tmp_path, strategy):
    """tf-models-official 2.1.0.dev2: the ResNet for CIFAR-10, its own synthetic data, and an export.

    Both by itself and under a MirroredStrategy, which is its default.
    """
    steps, batch = 3, 8
    ended = run_compat(
        [
            "-m",
            "official.r1.resnet.cifar10_main",
            "--use_synthetic_data",
            "--resnet_size=8",
            f"--batch_size={batch}",
            "--train_epochs=1",
            f"--max_train_steps={steps}",
            "--hooks=",
            f"--distribution_strategy={strategy}",
            f"--model_dir={tmp_path / 'model'}",
            f"--export_dir={tmp_path / 'export'}",
        ],
        packages=["tf-models-official==2.1.0.dev2"],
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    checkpoint = tf.train.load_checkpoint(str(tmp_path / "model"))
    assert checkpoint.get_tensor("global_step") == steps
    ((step, metrics),) = read_eval_metrics(str(tmp_path / "model" / "eval")).items()
    assert step == steps
    # Its data is one batch, over and over.
    assert metrics["accuracy"] * batch == pytest.approx(round(metrics["accuracy"] * batch))
    assert 0 <= metrics["accuracy"] <= metrics["accuracy_top_5"] <= 1
    (exported,) = (tmp_path / "export").iterdir()
    predict = tf.saved_model.load(str(exported)).signatures["predict"]
    images = np.random.default_rng(0).normal(size=(batch, 32, 32, 3)).astype(np.float32)
    predicted = predict(tf.constant(images))
    assert predicted["probabilities"].shape == (batch, 10)
    np.testing.assert_allclose(tf.reduce_sum(predicted["probabilities"], 1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(
        predicted["classes"], tf.argmax(predicted["probabilities"], axis=1)
    )


STEPS = 60
# Messages that protoc wrote before 3.19, as TAPAS's are, are read by protobuf's Python code alone since protobuf 4.
OLD_MESSAGES = (
    {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    if int(importlib.metadata.version("protobuf").partition(".")[0]) >= 4
    else {}
)


@pytest.fixture(scope="module")
def tapas(tmp_path_factory):
    """Returns a function that runs TAPAS's pretraining: (model folder, words) -> its metrics."""
    folder = tmp_path_factory.mktemp("tapas")
    write_config(folder / "bert_config.json")
    write_examples(folder / "train.tfrecord", rows=160, seed=1)
    write_examples(folder / "eval.tfrecord", rows=32, seed=2)

    def run(name: str, words: list[str], *, options: list[str]) -> dict[str, float]:
        model_dir = folder / name
        ended = run_compat(
            [
                *options,
                "-m",
                "tapas.experiments.tapas_pretraining_experiment",
                f"--model_dir={model_dir}",
                f"--bert_config_file={folder / 'bert_config.json'}",
                f"--input_file_train={folder / 'train.tfrecord'}",
                f"--input_file_eval={folder / 'eval.tfrecord'}",
                "--compression_type=",
                f"--max_seq_length={LENGTH}",
                f"--max_predictions_per_seq={len(MASKED)}",
                "--train_batch_size=16",
                "--eval_batch_size=8",
                "--num_eval_steps=4",
                f"--num_train_examples={16 * STEPS}",
                "--learning_rate=0.01",
                "--tpu_iterations_per_loop=20",
                *words,
            ],
            packages=["tapas-table-parsing==0.0.1.dev0", "tf-slim==1.1.0"],
            environment=OLD_MESSAGES,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        state = tf.train.load_checkpoint(str(model_dir))
        assert state.get_tensor("global_step") == STEPS
        metrics = read_eval_metrics(str(model_dir / "eval_default"))
        return dict(metrics[STEPS])

    return run


ON_CORES = ["--use_tpu", "--tpu_name=tpu-of-another-time", "--num_tpu_cores=4"]


@pytest.mark.e2e
@pytest.mark.sweep
def test_tapas_0_0_1_pretrains_on_emulated_cores(tapas):
    """tapas-table-parsing 0.0.1.dev0: its BERT on 4 emulated cores; the TPU that it names is answered."""
    metrics = tapas("on_cores", ["--do_train", "--do_eval", *ON_CORES], options=["--emulate"])
    assert metrics["masked_lm_accuracy"] == 1.0
    # A guess has the logarithm of the vocabulary's size.
    assert metrics["masked_lm_loss"] < math.log(VOCABULARY) / 2


@pytest.mark.e2e
@pytest.mark.sweep
def test_tapas_0_0_1_evaluates_on_cores_as_on_the_host(tapas):
    """tapas-table-parsing 0.0.1.dev0: trained on the host, evaluated there and on 4 emulated cores."""
    on_host = tapas("on_host", ["--do_train", "--do_eval"], options=[])
    on_cores = tapas("on_host", ["--do_eval", *ON_CORES], options=["--emulate"])
    assert on_host["masked_lm_accuracy"] == 1.0
    assert on_cores == pytest.approx(on_host, rel=1e-5)


@pytest.mark.e2e
@pytest.mark.sweep
def test_tf_models_official_2_2_0_trains_ncf(tmp_path):
    """tf-models-official 2.2.0: neural collaborative filtering on its own synthetic data.

    Its strategy is a MirroredStrategy of one CPU.
    """
    model_dir = tmp_path / "model"
    ended = run_compat(
        [
            "-m",
            "official.recommendation.ncf_estimator_main",
            "--use_synthetic_data",
            "--train_epochs=1",
            "--batch_size=64",
            "--eval_batch_size=1000",
            "--hooks=",
            f"--model_dir={model_dir}",
        ],
        packages=["tf-models-official==2.2.0"],
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    checkpoint = tf.train.load_checkpoint(str(model_dir))
    assert checkpoint.get_tensor("global_step") == 2000
    (metrics,) = read_eval_metrics(str(model_dir / "eval")).values()
    assert 0 <= metrics["NDCG"] <= metrics["HR"] <= 1
