"""Trains a template in a session."""
