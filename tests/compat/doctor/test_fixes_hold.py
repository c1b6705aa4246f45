"""Every name that `--fix` writes is there: programs of one name each, repaired and run on the installed TensorFlow."""

import builtins
import importlib
import json
import warnings

import numpy as np
import pytest
import tensorflow as tf

from tests.compat.doctor import layer_programs
from tests.sweeps import mostly_swept
from tfx_tpu_trainer import compat
from tfx_tpu_trainer.compat.doctor import Verdict, repair
from tfx_tpu_trainer.compat.doctor._rewriting import REWRITTEN
from tfx_tpu_trainer.compat.doctor.checks import older_versions
from tfx_tpu_trainer.compat.doctor.rules import RULES, contrib_estimators, gone_names
from tfx_tpu_trainer.compat.doctor.rules.moved_names import ONLY_IN_V1
from tfx_tpu_trainer.estimator import tpu

# Calls that the rewriters know, by what they call.
CALLS = {
    "tensorflow.contrib.summary.always_record_summaries": "()",
    "tensorflow.contrib.summary.never_record_summaries": "()",
    "tensorflow.contrib.summary.scalar": "('a', 1.0, step=1)",
    "tensorflow.contrib.summary.histogram": "('a', [1.0], step=1)",
    "tensorflow.contrib.summary.image": "('a', [[[[1.0]]]])",
    "tensorflow.contrib.summary.audio": None,
    "tensorflow.contrib.data.batch_and_drop_remainder": None,
}
RENAMED = sorted(
    name for name, advice in RULES.items() if advice.becomes is not None and not advice.calls_only
)


@pytest.fixture
def installed():
    with compat.install():
        yield


def _ways(name: str) -> list[str]:
    """Programs that use a name: from `tf`, by an import of it, by one of its module."""
    module, _, last = name.rpartition(".")
    package, _, parent = module.rpartition(".")
    if parent[:1].isupper():
        # An attribute of a class.
        return [
            f"from {package} import {parent}\n{parent}.{last}\n",
            f"import tensorflow as tf\ntf.{name.removeprefix('tensorflow.')}\n",
        ]
    ways = [f"from {module} import {last}\nassert {last}\n"]
    if name in gone_names.MOVED_NAMES:
        ways.append(f"from {package} import {parent}\n{parent}.{last}\n")
    elif name not in (*gone_names.MOVED_MODULES, *contrib_estimators.PRIVATE_TPU_RULES):
        ways.append(f"import {module} as m\nm.{last}\n")
        if name.startswith("tensorflow."):
            ways.append(f"import tensorflow as tf\ntf.{name.removeprefix('tensorflow.')}\n")
    return ways


def _runs(program: str) -> str:
    """Repairs and runs a program; returns its problem, if any."""
    repaired = repair(program)
    # Queues run unchanged, and are reported nevertheless.
    left = [each for each in repaired.left if each.theme != "queues"]
    edits = [each for each in left if each.verdict is Verdict.EDIT]
    if edits:
        return f"left: {[each.name for each in edits]}"
    try:
        with tf.Graph().as_default():
            exec(compile(repaired.text, "program", "exec"), {})
    except Exception as error:
        return f"{error!r} of {repaired.text!r}"
    return ""


@pytest.mark.usefixtures("installed")
def test_a_name_that_fix_renames_is_there_however_it_was_imported():
    assert len(RENAMED) > 140
    wrong = {
        program: found for name in RENAMED for program in _ways(name) if (found := _runs(program))
    }
    assert wrong == {}


def test_edits_are_counted_alike_before_and_after_they_are_made():
    """However a name is written; what is to be done by hand is not lost, and nothing new is found."""
    names = [*RULES, *(f"tensorflow.{name}" for name in ONLY_IN_V1)]
    programs = [program for name in names for program in _ways_of_all_kinds(name)]
    assert len(programs) > 7000
    unlike = {}
    for program in programs:
        repaired = repair(program)
        edits = [each for each in repaired.found if each.verdict is Verdict.EDIT]
        fixable = sum(each.fixable for each in edits)
        left = sum(each.verdict is Verdict.EDIT for each in repaired.left)
        if (fixable, len(edits) - fixable) != (len(repaired.made), left):
            unlike[program] = repaired.text
    assert unlike == {}


def _ways_of_all_kinds(name: str) -> list[str]:
    module, _, last = name.rpartition(".")
    ways = [f"from {module} import {last}\nx = {last}\n", f"import {module} as m\nm.{last}\n"]
    if module.startswith("tensorflow"):
        path = name.removeprefix("tensorflow.")
        of_tf = "import tensorflow as tf\n"
        ways += [f"{of_tf}tf.{path}\n", f"{of_tf}tf.{path}()\nx = tf.placeholder\n"]
    if module.startswith("tensorflow."):
        ways.append(f"import tensorflow as tf\nm = tf.{path.rpartition('.')[0]}\nm.{last}()\n")
    return ways


@pytest.mark.usefixtures("installed")
def test_a_call_that_fix_rewrites_runs():
    assert set(REWRITTEN) == set(CALLS)
    written = {name: arguments for name, arguments in CALLS.items() if arguments is not None}
    programs = [
        f"import tensorflow as tf\ntf.{name.removeprefix('tensorflow.')}{arguments}\n"
        for name, arguments in written.items()
    ]
    programs.append(
        "import tensorflow as tf\nrows = tf.data.Dataset.range(3)\n"
        "rows.apply(tf.contrib.data.batch_and_drop_remainder(2))\n"
    )
    assert {program: found for program in programs if (found := _runs(program))} == {}


@pytest.mark.usefixtures("installed")
def test_a_name_of_tensorflow_1_is_there_however_it_was_imported():
    """By the import of `tf`, which `--fix` edits, and by one of the name."""
    names = sorted(name for name in ONLY_IN_V1 if name != "user_ops")
    program = "import tensorflow as tf\n" + "".join(f"tf.{name}\n" for name in names)
    assert _runs(program) == ""
    imports = "".join(
        "from {0} import {2} as x\n".format(*f"tensorflow.{name}".rpartition(".")) for name in names
    )
    assert imports.count("\n") > 600
    assert _runs(imports) == ""


def test_our_names_are_those_that_a_program_finds_in_our_module():
    assert set(tpu.__all__) == contrib_estimators.OUR_NAMES


def _is_there(name: str) -> bool:
    """Returns whether a full name can be imported, or is in a module that can."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        return length == len(parts) or (
            length == len(parts) - 1 and getattr(found, parts[-1], None) is not None
        )
    return False


def test_private_names_that_are_said_to_be_gone_are_gone():
    gone = [*gone_names.MOVED_MODULES, *gone_names.MOVED_NAMES, *gone_names.PRIVATE_GONE]
    assert len(gone) > 70
    assert [name for name in gone if _is_there(name)] == []
    # Their parents do not count: a rule for a name is not a rule for its module's other names.
    parents = {name.rpartition(".")[0] for name in gone_names.MOVED_NAMES}
    assert [name for name in parents if not _is_there(name)] == []


def test_public_names_that_are_said_to_be_gone_are_in_no_api():
    for api in (tf, tf.compat.v1, tf.compat.v2):
        for name in gone_names.GONE:
            module, _, last = name.rpartition(".")
            parent = api
            for part in filter(None, module.split(".")):
                parent = getattr(parent, part, None)
            assert not hasattr(parent, last), name


def test_numpy_names_that_are_said_to_be_gone_are_gone_and_the_new_ones_are_there():
    later = {*older_versions.RENAMED_BY_2, *older_versions.GONE_BY_2}
    gone = {*older_versions.BUILTINS, *older_versions.RENAMED, "asscalar"}
    is_2 = np.__version__.startswith("2.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # NumPy 2 has other types by two of the old names.
        there = {name for name in gone | later if hasattr(np, name)}
    assert there == ({"bool", "long"} if is_2 else later)
    renamed = {**older_versions.RENAMED, **older_versions.RENAMED_BY_2}
    new = {*renamed.values(), *older_versions.INSTEAD.values()}
    assert [name for name in new if not hasattr(np, name)] == []
    assert [name for name in older_versions.BUILTINS.values() if not hasattr(builtins, name)] == []
    assert set(older_versions.BUILTINS.values()) == set(older_versions.INSTEAD)


def test_a_numpy_name_that_fix_writes_means_what_it_meant():
    program = "import numpy as np\nvalues = [\n"
    for name in (*older_versions.BUILTINS, *older_versions.RENAMED, *older_versions.RENAMED_BY_2):
        program += f"    np.{name},\n"
    program += "    np.asscalar(np.ones([1]) + 1),\n]\n"
    repaired = repair(program)
    assert repaired.left == ()
    names: dict[str, list[object]] = {}
    exec(repaired.text, names)
    assert names["values"][:3] == [bool, complex, float]
    assert names["values"][-1] == 2.0


RECORDED = json.loads(layer_programs.RECORDING.read_text("utf-8"))


# One with layers of the core and one with contrib's are enough for each change.
QUICK = ("dense", "contrib_layers")


@pytest.mark.usefixtures("installed")
@mostly_swept("name", layer_programs.PROGRAMS, kept=QUICK)
def test_a_repaired_program_makes_the_variables_of_tensorflow_1(name):
    head, body = layer_programs.PROGRAMS[name]
    repaired = repair(head + layer_programs.X + body)
    assert [each.name for each in repaired.left if each.verdict is Verdict.EDIT] == []
    made = layer_programs.variables_of(repaired.text)
    assert len(made) > 5
    assert made == RECORDED[name]
