"""Runs the Python of docs/evaluation.md."""

from __future__ import annotations

import pathlib
import re
import types

from tfx import v1 as tfx

from tfx_tpu_trainer.components.evaluation import (
    EvalMetrics,
    check_eval_config,
    write_model_evaluation,
)
from tfx_tpu_trainer.components.evaluation._data_slices import parse_slicing_specs

_PAGE = pathlib.Path(__file__).parents[3] / "docs" / "evaluation.md"


def test_code_of_the_page(tmp_path, capsys):
    page = {}
    for block in re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL):
        exec(block, page)

    check_eval_config(page["eval_config"])
    check_eval_config(page["sliced_config"])
    assert len(parse_slicing_specs(page["slicing_specs"])) == 3
    (spec,) = page["evaluator_config"].model_specs
    assert spec.preprocessing_function_names == ["transform_features"]
    channels = {
        "model": tfx.dsl.Channel(type=tfx.types.standard_artifacts.Model),
        "evaluation": tfx.dsl.Channel(type=tfx.types.standard_artifacts.ModelEvaluation),
    }
    _, gate = page["gate_for"](types.SimpleNamespace(outputs=channels))
    assert set(gate.outputs) == {"evaluation", "blessing"}

    uri = str(tmp_path / "evaluation")
    metrics = EvalMetrics(overall={"accuracy": 0.8125, "loss": 0.5}, global_step=1)
    write_model_evaluation(uri, metrics, eval_config=page["eval_config"])
    assert page["show"](uri).validation_ok
    assert "{'accuracy': {'doubleValue': 0.8125}" in capsys.readouterr().out
