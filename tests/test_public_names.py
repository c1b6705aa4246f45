"""The public API is the `__all__` of the faces, and a name leaves it only on purpose.

Every public name of the original is here, with its arguments and members, as `estimator/public_names.py` recorded them.
"""

import functools
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.estimator.public_names import MODULES, NOT_GIVEN, RECORDING, describe
from tfx_tpu_trainer import estimator

# `face:name` for each public name. A name that is taken away belongs into CHANGELOG.md, with what to use instead.
NAMES = Path(__file__).with_name("public_names.txt").read_text(encoding="utf-8").split()

FACES = (
    "",
    *(".compat", ".compat.doctor", ".compat.tfma_export", ".compat.contrib"),
    *(f".compat.contrib.{part}" for part in ("framework", "layers", "metrics", "slim", "training")),
    ".components",
    *(
        f".components.{part}"
        for part in ("clusters", "evaluation", "inputs", "report", "tuning", "user_module")
    ),
    ".estimator",
    *(
        f".estimator.{part}"
        for part in ("experimental", "export", "extending", "inputs", "tpu", "v1")
    ),
    *(".estimator.tpu.experimental", ".estimator.v1.experimental"),
    *(
        ".hardware",
        ".preflight",
        ".serving",
        ".workbench.new",
        ".workbench.notebook",
        ".workbench.project",
    ),
)


@pytest.mark.parametrize("face", FACES)
def test_the_names_of_a_face_are_those_listed(face):
    module = importlib.import_module(f"tfx_tpu_trainer{face}")
    listed = {name for path, _, name in (each.partition(":") for each in NAMES) if path == face}
    assert set(module.__all__) == listed, "list them in tests/public_names.txt"
    # `from ... import *` looks each one up.
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_each_listed_name_is_of_a_face():
    assert {name.partition(":")[0] for name in NAMES} == set(FACES)


ORIGINAL = json.loads(RECORDING.read_text("utf-8"))

# Their names and arguments are here, their members are not: none can be made.
NOT_HERE = ("KMeans", "LinearSDCA", "RNNClassifier", "RNNEstimator")

# What differs for good, and why: class and member -> reason.
SETTLED = {
    ("Estimator", "class"): "model_fn may be left out, for an error that says what to give",
    ("RegressionHead", "predictions"): "takes `keys` like that of the other heads",
    ("LogisticRegressionHead", "predictions"): "as RegressionHead's",
    ("PoissonRegressionHead", "predictions"): "as RegressionHead's",
}


def ours(module: str) -> Any:
    """A module of ours, found through attributes as `tf.estimator.export` is."""
    return functools.reduce(getattr, module.split(".") if module else [], estimator)


def argument_differences(original: list[str], here: list[str] | None) -> list[str]:
    """What arguments differ in. Ours may have more that are given by name only."""
    if here is None:
        return ["is missing"]
    count = len(original)
    differences = [f"{argument} is ours" for argument in here[count:] if argument[:2] != "*,"]
    differences += [f"{argument} is missing" for argument in original[len(here) :]]
    for theirs, mine in zip(original, here):
        # What stands for an argument left out may be anything.
        same = mine.startswith(theirs[: -len(NOT_GIVEN)]) if NOT_GIVEN in theirs else mine == theirs
        differences += [] if same else [f"{mine} is {theirs} in the original"]
    return differences


def differences(name: str, original: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """What a class or function differs in, apart from what is settled."""
    own = "class" if "class" in original else "function"
    found = [(own, line) for line in argument_differences(original[own], here.get(own))]
    members = {} if name in NOT_HERE else original.get("members", {})
    for member, theirs in members.items():
        mine = here["members"].get(member)
        if isinstance(theirs, list):
            found += [(member, line) for line in argument_differences(theirs, mine)]
        elif mine != theirs:
            found.append((member, f"{mine} is {theirs} in the original"))
    return [f"{name}: {where}: {line}" for where, line in found if (name, where) not in SETTLED]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_here_with_the_originals_arguments_and_members(module):
    here, found = ours(module), []
    for name, original in ORIGINAL[module].items():
        assert hasattr(here, name), f"{name} is missing"
        value = getattr(here, name)
        if "of_tensorflow" in original:
            assert value is getattr(tf.compat.v1.train, name)
        else:
            found += differences(name, original, describe(value))
    assert found == []


def test_the_second_api_has_what_the_first_has():
    # A program of either finds its names; only V2 has the RNN estimators, only V1 KMeans.
    assert set(ORIGINAL[""]) == set(ORIGINAL["v1"])
    assert not set(ORIGINAL[""]) - set(estimator.__all__)
    assert len(ORIGINAL[""]) == 53


@pytest.mark.parametrize(
    ("module", "name"), [(m, n) for m in MODULES for n in NOT_HERE if n in ORIGINAL[m]]
)
def test_what_is_not_here_says_what_to_use_instead(module, name):
    made = getattr(ours(module), name)
    needed = [argument for argument in ORIGINAL[module][name]["class"] if "=" not in argument]
    with pytest.raises(NotImplementedError, match=rf"{name} is not part of.*(Use|Write) "):
        made(**dict.fromkeys(needed))


def test_a_settled_difference_is_one():
    for name, member in SETTLED:
        original = ORIGINAL[""][name]
        here = describe(getattr(estimator, name))
        theirs, mine = (
            (facts["class"] if member == "class" else facts["members"][member])
            for facts in (original, here)
        )
        assert argument_differences(theirs, mine), f"{name}.{member} differs no longer"


@pytest.mark.parametrize(
    ("original", "here", "says"),
    [
        (["a", "b=1"], ["a", "b=1"], []),
        (["a"], ["a", "*, more=None"], []),
        ([f"a={NOT_GIVEN}"], ["a=None"], []),
        (["a"], ["a", "more=None"], ["more=None is ours"]),
        (["a", "b=1"], ["a"], ["b=1 is missing"]),
        (["a=1"], ["a=2"], ["a=2 is a=1 in the original"]),
        (["a"], None, ["is missing"]),
    ],
)
def test_differences_are_seen(original, here, says):
    assert argument_differences(original, here) == says
