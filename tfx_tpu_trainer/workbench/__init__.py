"""Provides the command line, projects and their runs, new projects, and notebooks.

`cli/` has the commands by subject; `new/` writes a project from a table, `project/` reads a project's config and
folders, `run/` runs its pipeline on this machine, `history/` shows, compares and removes the results of runs, and
`notebook/` shows artifacts as pages. Nothing imports this wing.
"""
