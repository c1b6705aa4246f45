"""Judges models by their metrics (`EvalMetricsGate`), and finds the last blessed one (`LastBlessedModel`)."""
