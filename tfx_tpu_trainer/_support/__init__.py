"""Provides helpers for all wings: files, processes, text, progress, delayed imports.

Each module is one subject with its own public names: `whole_files` writes files atomically, `file_systems` classifies
paths, `terminal` and `messages` escape text from elsewhere, `waiting` logs long waits, `imports` delays imports and
names the extra of a missing module, `processes` starts child processes and measures memory, and `progress` tracks a
run's progress. Nothing here imports the package's other folders.
"""
