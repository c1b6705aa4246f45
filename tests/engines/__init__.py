"""What we write, on real engines: `make test-engines`."""
