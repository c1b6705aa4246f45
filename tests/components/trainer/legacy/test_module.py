"""What trainer_fn is called with, as each TFX release had it."""

from __future__ import annotations

import copy

import pytest
from tfx.v1.components import FnArgs

from tfx_tpu_trainer.components.trainer.legacy.module import legacy_fn_args


@pytest.fixture
def args():
    given = FnArgs(
        train_files=["train/*"],
        train_steps=5,
        transform_output="graph",
        serving_model_dir="/model/Format-Serving",
        eval_model_dir="/model/Format-TFMA",
        model_run_dir="/model_run",
        custom_config={"rate": 0.5, "train_steps": 7},
    )
    return legacy_fn_args(given, "/attempt")


def test_exports_are_made_below_the_working_folder(args):
    assert args.serving_model_dir == "/attempt/Format-Serving"
    assert args.eval_model_dir == "/attempt/Format-TFMA" and args.model_run_dir == "/attempt"
    assert args.train_files == ["train/*"] and args.base_model is None


def test_it_is_an_object_and_a_dict_of_all_values(args):
    assert isinstance(args, FnArgs) and isinstance(copy.deepcopy(args), FnArgs)
    assert args["train_files"] == ["train/*"] and args.get("train_files") == ["train/*"]
    assert "transform_output" in args and "no_such" not in args
    assert {**args}["transform_output"] == "graph"


def test_own_values_are_attributes_as_in_tfx_0(args):
    assert args.custom_config["rate"] == args.rate == args["rate"] == 0.5
    # A name of TFX's keeps its meaning.
    assert args.train_steps == 5 and {**args}["train_steps"] == 5


def test_a_missing_name_is_told(args):
    with pytest.raises(AttributeError, match=r"has no 'log_dir'; .*custom_config=\{'log_dir'"):
        _ = args.log_dir
    with pytest.raises(KeyError, match="has no 'log_dir'"):
        _ = args["log_dir"]
    assert args.get("log_dir", 3) == 3 and not hasattr(args, "log_dir")
