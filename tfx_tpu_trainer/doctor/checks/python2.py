"""Names that Python 3 has not, in code that it can parse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import libcst as cst

from tfx_tpu_trainer.doctor.checks.context import Context
from tfx_tpu_trainer.doctor.findings import Finding, Verdict

_THEME: Final = "python 2"
_CALLS: Final = {"xrange": "range", "unicode": "str", "raw_input": "input", "unichr": "chr"}
_METHODS: Final = {"iteritems": "items", "itervalues": "values", "iterkeys": "keys"}


def check_python2(context: Context) -> Iterator[Finding]:
    """Looks for builtins and methods of Python 2.

    Args:
        context: The program.

    Yields:
        Findings.
    """
    for call in context.program.calls:
        function = call.node.func
        if isinstance(function, cst.Name) and function.value in _CALLS:
            new = _CALLS[function.value]
            if function.value in context.program.bound_names:
                continue
            place = context.program.place(function)
        elif isinstance(function, cst.Attribute) and function.attr.value in _METHODS:
            # six.iteritems(a) is fine; a.iteritems() takes nothing.
            if call.arguments:
                continue
            new = _METHODS[function.attr.value]
            place = context.program.place(function.attr)
        else:
            continue
        yield context.finding(
            place,
            Verdict.EDIT,
            theme=_THEME,
            name=call.attribute,
            says=f"Python 3 has no {call.attribute}.",
            edit=new,
            edits=(place.replaced_by(new),),
        )
