"""Where a call of train, evaluate or predict runs.

`place.py` is what an estimator asks of a place: trace the call, and plan its training, evaluation and prediction.
`host.py` is this machine, `strategy/` a `tf.distribute` strategy; the cores of a TPU, emulated or not, are in
`estimator/tpu/cores/`. A place turns a traced template into a plan, and the engine runs the plan's session.
"""
