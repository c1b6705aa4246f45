"""MobileNetV2 with a frozen base, the model of the Estimator guide, as an estimator."""

import numpy as np
import pytest
import tensorflow as tf

from tests.estimator.keras.models import dataset_fn, keras_of
from tests.estimator.tpu import on_cores as cores
from tfx_tpu_trainer import estimator as tfe

# Keras models that `make test` trains are smaller.
pytestmark = pytest.mark.sweep

ROWS, BATCH, STEPS = 8, 8, 2


def _mobilenet(keras, size, alpha):
    base = keras.applications.MobileNetV2(
        input_shape=(size, size, 3), alpha=alpha, include_top=False, weights=None
    )
    source = np.random.RandomState(7)
    for layer in base.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            # What training on pictures would leave: no two channels alike, and far from 0 and 1.
            gamma, *_ = layer.get_weights()
            layer.set_weights([source.uniform(0.5, 1.5, gamma.shape) for _ in range(4)])
    base.trainable = False
    model = keras.Sequential(
        [
            keras.Input([size, size, 3], name="picture"),
            base,
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(1, name="cat"),
        ]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile("adam", loss=loss, metrics=["accuracy"])
    return model


def _rows(size):
    pictures = np.random.RandomState(0).uniform(-1, 1, [ROWS, size, size, 3]).astype("float32")
    return pictures, (np.arange(ROWS) % 2).astype("float32")[:, None]


@pytest.mark.parametrize(("size", "alpha"), [(32, 0.35), (160, 1.0)])
@pytest.mark.parametrize("library", ["tf_keras", "keras"])
def test_it_predicts_and_trains_as_keras_does(library, size, alpha, tmp_path):
    keras = keras_of(library)
    keras.utils.set_random_seed(5)
    model = _mobilenet(keras, size, alpha)
    pictures, labels = _rows(size)
    input_fn = dataset_fn((pictures, labels), batch=BATCH, epochs=STEPS)
    expected = model.predict(pictures, batch_size=BATCH, verbose=0)
    on_host = tfe.model_to_estimator(model, model_dir=tmp_path / "host")
    rows = [row["cat"] for row in on_host.predict(dataset_fn((pictures, labels), batch=BATCH))]
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5)
    first = model.layers[-1].get_weights()
    trained = []
    for number in (1, 4):
        config = cores.config_for(tmp_path / str(number), cores=number, save_summary_steps=None)
        estimator = tfe.keras_to_estimator(model, config=config, train_batch_size=BATCH)
        estimator.train(input_fn, steps=STEPS)
        values = tf.train.load_checkpoint(estimator.latest_checkpoint())
        trained.append(_dense_layer(values))
    for step in range(STEPS):
        some = slice(BATCH * step % ROWS, BATCH * step % ROWS + BATCH)
        model.train_on_batch(pictures[some], labels[some])
    by_keras = model.layers[-1].get_weights()
    assert np.max(np.abs(by_keras[0] - first[0])) > 1e-4
    for on_cores in trained:
        for value, other in zip(on_cores, by_keras):
            np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)


def _dense_layer(values):
    """Kernel and bias of the last layer, which has one output."""
    shapes = values.get_variable_to_shape_map()
    names = [n for n, shape in shapes.items() if "OPTIMIZER" not in n and "optimizer/" not in n]
    kernel = next(n for n in names if "kernel/" in n and len(shapes[n]) == 2)
    return [
        values.get_tensor(n)
        for n in (kernel, kernel.replace("_kernel", "bias").replace("kernel", "bias"))
    ]
