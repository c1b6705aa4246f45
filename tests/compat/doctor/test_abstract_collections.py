"""`collections.Mapping` and its like, which Python 3.10 has in `collections.abc` only."""

from __future__ import annotations

import collections
import collections.abc

from tfx_tpu_trainer.compat.doctor import examine, repair
from tfx_tpu_trainer.compat.doctor.checks.python_and_numpy import _ABSTRACT

PROGRAM = """\
import collections
from collections import Sequence
import tensorflow as tf

found = [isinstance({}, collections.Mapping), isinstance(tf.constant(1), Sequence)]
kept = collections.OrderedDict()
"""


def test_all_that_moved_are_known():
    moved = {
        name
        for name in collections.abc.__all__
        if not hasattr(collections, name) and not name.startswith(("Async", "Await", "Corout"))
    }
    assert moved - {"ByteString", "Buffer"} == _ABSTRACT


def test_a_name_of_the_module_is_written_anew_and_an_imported_one_is_told():
    mapping, sequence = (each for each in examine(PROGRAM) if each.theme == "python 2")
    assert (mapping.line, mapping.name, mapping.fixable) == (5, "collections.Mapping", True)
    assert (sequence.name, sequence.fixable) == ("collections.Sequence", False)
    assert sequence.edit == "from collections.abc import Sequence"
    text = repair(PROGRAM).text
    assert text == PROGRAM.replace("collections.Mapping", "collections.abc.Mapping")


def test_a_variable_of_that_name_is_left_alone():
    program = "import tensorflow as tf\n\n\ndef f(collections):\n    return collections.Mapping\n"
    assert [each for each in examine(program) if each.theme == "python 2"] == []
