"""The user's module: found and loaded, and what it raises or ends told in one line. Needs no TFX."""
