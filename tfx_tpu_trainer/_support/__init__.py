"""What every wing needs and none is about: files, processes, text, progress, imports that wait.

Each module is one subject and its own face: `whole_files` writes files that appear whole or not at all, `file_systems`
says which paths TensorFlow opens, `terminal` and `messages` show text from others as text, `waiting` logs a wait,
`imports` delays a package's imports and names the extra that a missing module belongs to, `processes` starts a child
and counts memory, and `progress` shows how far a run is. Nothing here imports a module of the package outside this
folder.
"""
