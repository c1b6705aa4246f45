"""Where a template's nodes run: one small module for each place."""
