"""Embeddings of a TPU's embedding cores."""
import tensorflow.compat.v1 as tf

columns = [tf.tpu.experimental.embedding_column(
    tf.feature_column.categorical_column_with_identity("id", 100), 8)]
spec = tf.estimator.tpu.experimental.EmbeddingConfigSpec(  #: works tf.compat.v1.estimator.tpu.experimental.EmbeddingConfigSpec
    feature_columns=columns,
    optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1))  #: works tf.compat.v1.tpu.experimental.AdagradParameters


def make(model_fn, config):
    return tf.estimator.tpu.TPUEstimator(  #: works tf.compat.v1.estimator.tpu.TPUEstimator
        model_fn, config=config, train_batch_size=8,
        embedding_config_spec=spec)  #: note embedding_config_spec -> for TPU hardware: RunConfig(train_distribute


def of_2018():
    return tf.contrib.tpu.TableConfig(100, 8)  #: fix tf.compat.v1.contrib.tpu.TableConfig -> tpu.experimental.TableConfig
