"""Decides what may be pushed: `EvalMetricsGate` judges a model's metrics, `LastBlessedModel` finds its baseline."""
