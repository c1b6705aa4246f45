"""Transform's code, in its own folder, so an edit of the model does not run Transform again."""
