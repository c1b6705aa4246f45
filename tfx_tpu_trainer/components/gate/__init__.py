"""Who may be pushed: `EvalMetricsGate` judges a model's metrics, `LastBlessedModel` finds what it is compared with."""
