"""The guide's program of strategies: a LinearRegressor under a MirroredStrategy.

Run as a script, top to bottom. What differs here from the page's listings:

1. Imports; `tf.estimator`, gone since TensorFlow 2.16, is this package's, `tfe`.
2. The formatter's line breaks and quotes.
"""

import tensorflow as tf

from tfx_tpu_trainer import estimator as tfe

mirrored_strategy = tf.distribute.MirroredStrategy()
config = tfe.RunConfig(train_distribute=mirrored_strategy, eval_distribute=mirrored_strategy)
regressor = tfe.LinearRegressor(
    feature_columns=[tf.feature_column.numeric_column("feats")], optimizer="SGD", config=config
)


def input_fn():
    dataset = tf.data.Dataset.from_tensors(({"feats": [1.0]}, [1.0]))
    return dataset.repeat(1000).batch(10)


regressor.train(input_fn=input_fn, steps=10)
regressor.evaluate(input_fn=input_fn, steps=10)
