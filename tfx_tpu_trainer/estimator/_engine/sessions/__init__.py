"""Opens, watches, reopens and ends sessions."""
