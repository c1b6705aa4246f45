"""Writes what is made of the parameters' declarations: `make docs`.

- the tables of parameters in docs/component.md, between the two marks;
- tfx_tpu_trainer/components/__init__.pyi, from which editors take the constructors' signatures: they don't run the
  code.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path

from scripts.draw_layers import with_block
from tfx_tpu_trainer.components import TpuTrainer, VertexTpuTrainer
from tfx_tpu_trainer.components.trainer.trainer_constructor import (
    PARAMETERS,
    Parameter,
    default_text,
)
from tfx_tpu_trainer.components.trainer.trainer_parameters import GROUPS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "component.md"
STUB = ROOT / "tfx_tpu_trainer" / "components" / "__init__.pyi"

_STUB = '''\
"""What a TFX user imports: the components and their executors. Made by `make docs`."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow_model_analysis as tfma
from tfx import v1 as tfx
from tfx.v1.dsl.experimental import RuntimeParameter

from tfx_tpu_trainer.components.clusters import VertexJob
from tfx_tpu_trainer.components.gate.gate import EvalMetricsGate as EvalMetricsGate
from tfx_tpu_trainer.components.gate.last_blessed_model import LastBlessedModel as LastBlessedModel
from tfx_tpu_trainer.components.trainer.module_source import source_hash as source_hash
from tfx_tpu_trainer.components.trainer.parameter_rules import broken_rule as broken_rule
from tfx_tpu_trainer.components.trainer.parameter_values import plain_type as plain_type
from tfx_tpu_trainer.components.trainer.trainer_executor import (
    TpuTrainerExecutor as TpuTrainerExecutor,
)
from tfx_tpu_trainer.components.trainer.trainer_parameters import TrainSettings as TrainSettings
from tfx_tpu_trainer.components.trainer.vertex_executor import (
    VertexTpuTrainerExecutor as VertexTpuTrainerExecutor,
)
from tfx_tpu_trainer.hardware import TpuSpec

class TpuTrainer(tfx.types.BaseComponent):
{trainer}
    @property
    def tpu(self) -> TpuSpec | None:
        """{tpu}"""

    @property
    def pod_tpu(self) -> TpuSpec | None:
        """{pod_tpu}"""

class VertexTpuTrainer(TpuTrainer):
{vertex}
'''


def tables(parameters: Iterable[Parameter] = tuple(PARAMETERS.values())) -> str:
    """Returns a table of parameters for each group, in Markdown."""
    lines = []
    for group in GROUPS:
        lines += ["", f"**{group}**", "", "| parameter | default | meaning |", "|---|---|---|"]
        for each in parameters:
            if each.about.group == group:
                text = each.about.text.replace("|", "\\|").replace("see docs/", "see ")
                lines.append(f"| `{each.name}` | {default_text(each) or 'required'} | {text} |")
    return "\n".join([*lines[1:], ""])


def stub() -> str:
    """Returns the types of `tfx_tpu_trainer.components`."""
    return _STUB.format(
        trainer=_constructor(TpuTrainer),
        vertex=_constructor(VertexTpuTrainer),
        tpu=TpuTrainer.tpu.__doc__,
        pod_tpu=TpuTrainer.pod_tpu.__doc__,
    )


def _constructor(component: type) -> str:
    lines = [
        f'    """{component.__doc__}"""',
        "",
        "    def __init__(",
        "        self,",
        "        *,",
    ]
    for each in inspect.signature(component).parameters.values():
        default = "" if each.default is inspect.Parameter.empty else f" = {_literal(each.default)}"
        lines.append(f"        {each.name}: {each.annotation}{default},")
    lines += ["    ) -> None:", f'        """{component.__init__.__doc__}"""', ""]
    return "\n".join(lines)


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def page(text: str) -> str:
    """Returns the page with today's tables in it."""
    return with_block(text, tables())


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
    main()
