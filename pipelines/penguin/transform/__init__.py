"""What Transform runs, in a folder of its own, so that an edit of the model does not run Transform again."""
