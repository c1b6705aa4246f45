"""What Transform runs, in a folder of its own: TFX packages the whole folder of a module file and hashes it.

Beside `model.py` an edit of the model would run Transform again; here it does not.
"""
