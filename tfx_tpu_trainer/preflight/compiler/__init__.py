"""Calls the TPU's compiler through its plug-in's C API, with the standard library only.

libtpu contains Google's own TPU compiler for any x86-64 Linux machine, behind PJRT, a public and versioned C API
(`xla/pjrt/c/pjrt_c_api.h`). A compiler may abort, hang or take all memory, so it runs in a separate process
(`tpu_compiler.py`), which starts in a tenth of a second because nothing here imports TensorFlow.
"""
