"""Reads what runs left: shows, lists, compares, draws and removes it."""
