"""Names that NumPy has removed, and what has the same meaning in all of its versions.

A test holds both tables against the installed NumPy.
"""

from __future__ import annotations

from typing import Final

# Aliases of Python's own types, removed by NumPy 1.24.
BUILTINS: Final = {
    "bool": "bool",
    "complex": "complex",
    "float": "float",
    "int": "int",
    "long": "int",
    "object": "object",
    "str": "str",
    "unicode": "str",
}
# What stands for them where the program calls something else so.
INSTEAD: Final = {
    "bool": "bool_",
    "complex": "complex128",
    "float": "float64",
    "int": "int_",
    "object": "object_",
    "str": "str_",
}
# Removed by NumPy 1.24 or before, and by NumPy 2.
RENAMED: Final = {"typeDict": "sctypeDict", "rank": "ndim"}
RENAMED_BY_2: Final = {
    "Inf": "inf",
    "Infinity": "inf",
    "NaN": "nan",
    "PINF": "inf",
    "alltrue": "all",
    "bool8": "bool_",
    "complex_": "complex128",
    "cumproduct": "cumprod",
    "float_": "float64",
    "infty": "inf",
    "mat": "asmatrix",
    "product": "prod",
    "round_": "round",
    "sometrue": "any",
    "string_": "bytes_",
    "unicode_": "str_",
}
GONE_BY_2: Final = {
    "NINF": "-np.inf",
    "asfarray": "np.asarray(x, dtype=float)",
    "cast": "x.astype(dtype)",
    "find_common_type": "np.promote_types, or np.result_type",
    "issubclass_": "issubclass",
    "msort": "np.sort(x, axis=0)",
    "safe_eval": "ast.literal_eval",
    "sctypes": "the types that you need, written out",
}
ALL: Final = ("asscalar", *BUILTINS, *RENAMED, *RENAMED_BY_2, *GONE_BY_2)
