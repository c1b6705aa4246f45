"""The places where a call of train, evaluate or predict runs.

`place.py` defines a place: it traces the call and plans its training, evaluation and prediction. `host.py` is this
machine, `strategy/` a `tf.distribute` strategy; the cores of a TPU, emulated or not, are in `estimator/tpu/cores/`. The
engine runs the plan's session.
"""
