"""The doctor's tables, held against the installed TensorFlow and against our own API."""

import functools
import importlib
import json
import types

import pytest
import tensorflow as tf
from tensorflow.tools.compatibility import all_renames_v2, module_deprecations_v2

from tests.estimator.public_names import RECORDING
from tfx_tpu_trainer import estimator
from tfx_tpu_trainer.compat import _original_names, contrib
from tfx_tpu_trainer.compat._estimator_modules import estimator_modules, original_modules
from tfx_tpu_trainer.compat.doctor import Verdict, examine
from tfx_tpu_trainer.compat.doctor._findings import joined
from tfx_tpu_trainer.compat.doctor.rules import (
    RULES,
    canonical,
    contrib_ours,
    estimators,
    look_up,
)
from tfx_tpu_trainer.compat.doctor.rules.moved_names import (
    CHANGED,
    ONLY_IN_V1,
    ONLY_IN_V2,
    is_only_in_v1,
    is_only_in_v2,
)

# What TensorFlow's own upgrade script puts in place of a name of TF 1: name without `tf.` -> new name.
UPGRADES = {
    old.removeprefix("tf."): new.removeprefix("tf.")
    for old, new in all_renames_v2.symbol_renames.items()
}


def _value(root: object, path: str) -> object:
    return functools.reduce(getattr, path.split("."), root)


def _has(root: object, path: str) -> bool:
    try:
        _value(root, path)
    except AttributeError:
        return False
    return True


def test_names_of_v1_only_are_in_compat_v1_and_not_in_tensorflow_2():
    assert not sorted(name for name in ONLY_IN_V1 if not _has(tf.compat.v1, name))
    assert not sorted(name for name in ONLY_IN_V1 if _has(tf, name))


def test_names_of_v2_only_are_in_tensorflow_2_and_not_in_compat_v1():
    assert not sorted(name for name in ONLY_IN_V2 if not _has(tf, name))
    assert not sorted(name for name in ONLY_IN_V2 if _has(tf.compat.v1, name))


def test_changed_names_are_in_both_and_are_not_the_same():
    for name in sorted(CHANGED):
        both = [_value(root, name) for root in (tf, tf.compat.v1)]
        assert both[0] is not both[1], name


def test_names_of_v1_only_are_those_that_the_upgrade_script_moves():
    gone = {name for name in UPGRADES if _has(tf.compat.v1, name) and not _has(tf, name)}
    # Keras has its own rules, and a changed class is reported as a whole.
    changed = tuple(f"{name}." for name in CHANGED)
    gone = {name for name in gone if not name.startswith(("keras.", *changed))}
    assert len(gone) > 600
    assert not sorted(name for name in gone if not is_only_in_v1(name))
    # A module stands for everything in it; user_ops is empty, so the script has no advice on it.
    deprecated = {name.removeprefix("tf.") for name in module_deprecations_v2.MODULE_DEPRECATIONS}
    moved = {
        ".".join(name.split(".")[:length])
        for name in (*UPGRADES, *deprecated)
        for length in range(1, name.count(".") + 2)
    }
    assert ONLY_IN_V1 - moved == {"user_ops"}
    assert not ONLY_IN_V2 & set(UPGRADES)


def test_a_name_of_contrib_becomes_what_the_upgrade_script_makes_of_it():
    compared = 0
    for old, new in UPGRADES.items():
        found = look_up(canonical(f"tensorflow.{old}")) if old.startswith("contrib.") else None
        if found is None or not found[1].becomes or not _has(tf, new):
            continue
        rule, advice = found
        if advice.becomes.startswith("tfx_tpu_trainer."):
            # Contrib's own arguments, or what emulated cores answer; the script leaves those to people.
            continue
        # The rule may be about the module above the name.
        module, _, name = f"{advice.becomes}{f'tensorflow.{old}'.removeprefix(rule)}".rpartition(
            "."
        )
        assert _value(_module(module), name) is _value(tf, new), old
        compared += 1
    assert compared > 60


def _module(name: str) -> object:
    if name == "tensorflow" or name.startswith("tensorflow."):
        return _value(tf, name.removeprefix("tensorflow.")) if "." in name else tf
    return importlib.import_module(name)


@pytest.mark.parametrize(
    ("path", "v1", "v2"),
    [
        ("placeholder", True, False),
        ("gfile.GFile", True, False),
        ("train.AdamOptimizer", True, False),
        ("losses.BinaryCrossentropy", False, True),
        ("losses.Reduction", False, False),
        ("optimizers.Adam", False, True),
        ("summary.scalar", False, False),
        ("data.Dataset", False, False),
    ],
)
def test_whose_name_it_is(path, v1, v2):
    assert (is_only_in_v1(path), is_only_in_v2(path)) == (v1, v2)


def test_the_names_of_our_contrib_are_those_that_its_modules_have():
    parts = {part: getattr(contrib, part) for part in contrib.__all__}
    assert {part: sorted(names.split()) for part, names in contrib_ours.NAMES.items()} == {
        part: sorted(module.__all__) for part, module in parts.items()
    }


REMOVED = [(part, name) for part, edits in contrib_ours.REMOVED.items() for name in edits if name]


@pytest.mark.parametrize(("part", "name"), REMOVED)
def test_a_name_that_contrib_has_no_more_is_told_with_what_to_write(part, name):
    """Under its old name, and under the one that an earlier repair wrote."""
    home = functools.reduce(getattr, part.split("."), contrib) if "losses" not in part else None
    assert not hasattr(home, name)
    for program in (
        f"import tensorflow.compat.v1 as tf\ntf.contrib.{part}.{name}\n",
        f"from tfx_tpu_trainer.compat import contrib\ncontrib.{part}.{name}\n",
    ):
        (found,) = examine(program)
        assert (found.line, found.verdict) == (2, Verdict.EDIT)
        assert found.edit
        assert "has this name" not in found.says


def test_each_rule_says_what_to_do():
    for name, advice in RULES.items():
        assert advice.says, name
        if advice.verdict is Verdict.EDIT:
            assert advice.edit or advice.becomes, name


def test_a_name_with_two_rules_is_a_mistake():
    rule = RULES["tensorflow.contrib.layers"]
    with pytest.raises(ValueError, match=r"two rules: b\."):
        joined({"a": rule, "b": rule}, {"b": rule})


def test_the_estimators_names_are_those_that_the_original_had():
    original = json.loads(RECORDING.read_text("utf-8"))
    assert set(_original_names.NAMES) == set(original[""]) == set(original["v1"])
    assert set(_original_names.EXPORT_NAMES) == set(original["export"])
    assert set(_original_names.TPU_NAMES) == set(original["tpu"])


def test_compat_puts_back_the_original_s_names_and_no_others():
    put_back = {
        version: {name for name in vars(estimator_modules(version)[""]) if not name.startswith("_")}
        for version in ("v1", "v2")
    }
    assert put_back["v1"] == {*_original_names.NAMES, *_original_names.SUBMODULES}
    assert put_back["v2"] == put_back["v1"] - {"inputs", "tpu"}


def test_the_original_s_private_names_are_those_that_compat_answers():
    apis = {version: estimator_modules(version) for version in ("v1", "v2")}
    answered = original_modules(apis)
    root = "tensorflow_estimator.python.estimator."
    names = {
        module.removeprefix(root): {
            name
            for name, value in vars(there).items()
            if not name.startswith("_") and not isinstance(value, types.ModuleType)
        }
        for module, there in answered.items()
        if module.startswith(root) and not module.startswith(f"{root}api")
    }
    told = {module: set(names) for module, names in _original_names.MODULES.items()}
    assert told == {module: found for module, found in names.items() if found}
    for old in estimators.ROOTS:
        assert any(module.startswith(f"{old}.") for module in answered), old
    for module, name, value in (
        ("canned.linear", "LinearClassifier", estimator.v1.LinearClassifier),
        ("canned.linear", "LinearClassifierV2", estimator.LinearClassifier),
        ("run_config", "RunConfig", estimator.RunConfig),
        ("tpu.tpu_config", "RunConfig", estimator.tpu.RunConfig),
    ):
        assert vars(answered[f"{root}{module}"])[name] is value


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("tensorflow_estimator.python.estimator.estimator.Estimator", Verdict.WORKS),
        ("tensorflow_estimator.python.estimator.estimator", Verdict.WORKS),
        ("tensorflow.python.estimator.export", Verdict.WORKS),
        ("tensorflow.python.tpu.tpu_config.TPUConfig", Verdict.WORKS),
        ("tensorflow.python.estimator.canned.head", Verdict.EDIT),
        ("tensorflow_estimator.python.estimator.estimator._Scaffold", Verdict.EDIT),
        ("tensorflow.python.tpu.topology", None),
    ],
)
def test_private_paths(name, verdict):
    found = look_up(name)
    assert (found and found[1].verdict) == verdict


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        (
            "tensorflow.contrib.tpu.python.tpu.tpu_config.TPUConfig",
            "tensorflow.contrib.tpu.TPUConfig",
        ),
        ("tensorflow.contrib.tpu.python.tpu.tpu_estimator", "tensorflow.contrib.tpu"),
        ("tensorflow.compat.v1.contrib.slim.conv2d", "tensorflow.contrib.slim.conv2d"),
        ("tensorflow.train.batch", "tensorflow.compat.v1.train.batch"),
        ("tensorflow.train.latest_checkpoint", "tensorflow.train.latest_checkpoint"),
    ],
)
def test_names_have_one_spelling(name, rule):
    assert canonical(name) == rule


@pytest.mark.parametrize(
    ("module", "now"),
    [
        ("python.ops.tpu_ops", "from tensorflow.python.tpu.ops import tpu_ops"),
        ("python.tpu.tpu_function", "from tensorflow.python.tpu import tpu_function"),
    ],
)
def test_modules_of_ops_for_tpus_are_imported_from_where_they_went(module, now):
    """Each edit is an import that this TensorFlow knows, and no estimator's module has the names."""
    name = f"tensorflow.contrib.tpu.{module}"
    found = look_up(canonical(f"{name}.cross_replica_sum"))
    assert found is not None
    assert (found[0], found[1].edit) == (name, now)
    exec(now, {})


def test_an_unknown_name_of_an_estimator_is_an_edit():
    found = look_up("tensorflow.estimator.FooEstimator")
    assert found is not None
    assert found[1].verdict is Verdict.EDIT
    assert "has no FooEstimator" in found[1].says


def test_a_name_that_is_no_one_s_business_has_no_rule():
    assert look_up("tensorflow.reduce_mean") is None
    assert look_up("numpy.contrib") is None


@pytest.mark.parametrize(
    ("name", "says", "edit"),
    [
        (
            "estimator.tpu.keras_to_estimator",
            "tfx_tpu_trainer.estimator.tpu has no keras_to_estimator.",
            "look for it in tfx_tpu_trainer.estimator",
        ),
        (
            "estimator.tpu.keras_to_tpu_model.x",
            "tfx_tpu_trainer.estimator.tpu has no keras_to_tpu_model.",
            "keras_to_estimator(model",
        ),
        (
            "compat.contrib.layers.foo",
            "tfx_tpu_trainer.compat.contrib.layers has no foo.",
            "tf_slim",
        ),
        (
            "compat.contrib.slim.nets.resnet_v1",
            "tfx_tpu_trainer.compat.contrib.slim has no nets.",
            "tf_slim",
        ),
    ],
)
def test_a_name_that_this_package_lacks_is_not_told_as_contribs(name, says, edit):
    found = look_up(f"tfx_tpu_trainer.{name}")
    assert found is not None
    assert found[1].says == says
    assert edit in found[1].edit


@pytest.mark.parametrize(
    "name",
    [
        "estimator.tpu.TPUEstimator",
        "estimator.tpu._tpu_estimator.TPUEstimator",
        "compat.contrib.layers.layer_norm",
        "compat.contrib.layers.convolution.fully_connected",
        "compat.contrib.tf_private.nest",
        "estimator.hooks.read_eval_metrics",
    ],
)
def test_a_name_that_this_package_has_has_no_rule(name):
    assert look_up(f"tfx_tpu_trainer.{name}") is None
