"""The three modes of a model_fn."""


class ModeKeys:
    """Names of the modes, with the values of `tf.estimator.ModeKeys`."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
