"""From a template to a trained model."""
