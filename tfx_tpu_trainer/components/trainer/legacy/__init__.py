"""Trains modules written for the Estimator executor of TFX <= 1.15: `trainer_fn(trainer_fn_args, schema)`."""
