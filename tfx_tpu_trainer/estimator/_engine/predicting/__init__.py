"""From a template to predictions."""
