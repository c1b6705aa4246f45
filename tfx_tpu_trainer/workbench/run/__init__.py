"""A pipeline run on this machine: the child process that TFX works in, what it shows, and how it is stopped."""
