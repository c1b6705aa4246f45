"""Models of the TensorFlow Model Garden that were programs of tf.estimator, on their own synthetic data."""

import numpy as np
import pytest
import tensorflow as tf

from tfx_tpu_trainer.estimator.hooks import read_eval_metrics


@pytest.mark.program(
    package="tf-models-official==2.1.0.dev2", program="official.r1.resnet.cifar10_main"
)
@pytest.mark.parametrize("place", ["host"])
def test_a_resnet_trains_and_is_exported(case, tmp_path):
    train_resnet(case, tmp_path, "off")


@pytest.mark.program(
    package="tf-models-official==2.1.0.dev2",
    program="official.r1.resnet.cifar10_main under its MirroredStrategy",
    proved=False,
)
@pytest.mark.parametrize("place", ["host"])
def test_a_resnet_trains_under_its_strategy(case, tmp_path):
    train_resnet(case, tmp_path, "mirrored")


def train_resnet(case, folder, strategy):
    steps, batch = 3, 8
    case.run(
        "-m",
        "official.r1.resnet.cifar10_main",
        "--use_synthetic_data",
        "--resnet_size=8",
        f"--batch_size={batch}",
        "--train_epochs=1",
        f"--max_train_steps={steps}",
        "--hooks=",
        # Its default where TensorFlow has CUDA is one that only a GPU runs.
        "--data_format=channels_last",
        f"--distribution_strategy={strategy}",
        f"--model_dir={folder / 'model'}",
        # It calls export_savedmodel, which the original lacks.
        *([] if case.is_proof else [f"--export_dir={folder / 'export'}"]),
        calls=["train", "evaluate", "export"],
    )
    checkpoint = tf.train.load_checkpoint(str(folder / "model"))
    assert checkpoint.get_tensor("global_step") == steps
    ((step, metrics),) = read_eval_metrics(str(folder / "model" / "eval")).items()
    assert step == steps
    # Its data is one batch, over and over.
    assert metrics["accuracy"] * batch == pytest.approx(round(metrics["accuracy"] * batch))
    assert 0 <= metrics["accuracy"] <= metrics["accuracy_top_5"] <= 1
    (exported,) = (folder / "export").iterdir()
    predict = tf.saved_model.load(str(exported)).signatures["predict"]
    images = np.random.default_rng(0).normal(size=(batch, 32, 32, 3)).astype(np.float32)
    predicted = predict(tf.constant(images))
    assert predicted["probabilities"].shape == (batch, 10)
    np.testing.assert_allclose(tf.reduce_sum(predicted["probabilities"], 1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(
        predicted["classes"], tf.argmax(predicted["probabilities"], axis=1)
    )


@pytest.mark.program(
    package="tf-models-official==2.2.0",
    program="official.recommendation.ncf_estimator_main",
    differs={"host": "absl in the original's environment refuses its flags"},
)
@pytest.mark.parametrize("place", ["host"])
def test_collaborative_filtering_trains(case, tmp_path):
    """Under a MirroredStrategy of one CPU."""
    model_dir = tmp_path / "model"
    case.run(
        "-m",
        "official.recommendation.ncf_estimator_main",
        "--use_synthetic_data",
        "--train_epochs=1",
        "--batch_size=64",
        "--eval_batch_size=1000",
        "--hooks=",
        f"--model_dir={model_dir}",
        calls=["train", "evaluate"],
    )
    checkpoint = tf.train.load_checkpoint(str(model_dir))
    assert checkpoint.get_tensor("global_step") == 2000
    (metrics,) = read_eval_metrics(str(model_dir / "eval")).values()
    assert 0 <= metrics["NDCG"] <= metrics["HR"] <= 1
