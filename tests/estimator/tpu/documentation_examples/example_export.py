"""The export example of the original's page: version 1 with outside_compilation, and version 2.

The page's listing of version 1 is not a program. What differs here from it:

1. Imports: `export_output_lib`, `tpu`, `math_ops` and `string_ops`, TensorFlow's private modules,
   are the public names of what they hold.
2. The first `...` is nothing, `logits = ...` a layer.
3. One export output is the default one: without it the original refuses the model as we do.
4. `argmax` goes along the classes; the listing's goes along the batch.
5. `export_outputs['classes'] =`, broken in two, is one line; the classes have an axis,
   [batch, 1], without which there are none to serve.
6. The last `...` returns the spec, and trains.

Version 2 has no listing; the page says that model_fn "needs to call tpu.rewrite(),
TPUPartitionedCallOp and/or batch_function()" where params['use_tpu'] is True, which is what
`inference_on_tpu` does.
"""

from __future__ import annotations

import tensorflow as tf

from tfx_tpu_trainer.estimator import ModeKeys, tpu
from tfx_tpu_trainer.estimator import export as export_output_lib

v1 = tf.compat.v1


def layer(x):
    return v1.layers.dense(x, 4, kernel_initializer=v1.ones_initializer(), name="logits")


def finish(mode, labels, logits, params, **fields):
    if mode == ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"logits": logits}, **fields)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    if params["use_tpu"]:
        optimizer = tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def model_fn_version_1(features, labels, mode, config, params):
    logits = layer(features["x"])
    export_outputs = {
        "serving_default": export_output_lib.PredictOutput({"logits": logits}),
        "logits": export_output_lib.PredictOutput({"logits": logits}),
    }

    def host_call(logits):
        class_ids = tf.argmax(logits, axis=1)
        classes = tf.strings.as_string(class_ids)[:, None]
        export_outputs["classes"] = export_output_lib.ClassificationOutput(classes=classes)

    v1.tpu.outside_compilation(host_call, logits)
    return finish(mode, labels, logits, params, export_outputs=export_outputs)


def model_fn_version_2(features, labels, mode, config, params):
    if mode == ModeKeys.PREDICT and params["use_tpu"]:
        (logits,) = tpu.inference_on_tpu(
            lambda x: [layer(x)],
            [features["x"]],
            num_batch_threads=2,
            max_batch_size=8,
            batch_timeout_micros=1000,
            allowed_batch_sizes=[2, 8],
        )
    else:
        logits = layer(features["x"])
    return finish(mode, labels, logits, params)
