"""From a template to metrics."""
