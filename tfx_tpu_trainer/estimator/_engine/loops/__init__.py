"""Runs many steps in one session call, and decides how many."""
