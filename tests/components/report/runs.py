"""Makes a run with every fact, for pages and cards."""

from __future__ import annotations

import dataclasses

from tfx_tpu_trainer.components.report import RunData
from tfx_tpu_trainer.components.report._run_data import (
    CheckOfServing,
    Exported,
    Layer,
    Learning,
    Lineage,
    Measured,
    MeasuredSlice,
    MetaGraph,
    Restart,
    Series,
    Signature,
)


def series_of(values, *, name="loss", source="training", thinned_from=None):
    return Series(
        name=name,
        source=source,
        steps=tuple(range(1, len(values) + 1)),
        values=tuple(values),
        thinned_from=thinned_from or len(values),
    )


def run_of(name="accuracy", **changes):
    run = RunData(
        title=f"run {name}",
        written=0.0,
        measured=Measured(
            global_step=3,
            num_examples=4966,
            seconds=1.5,
            metrics={"loss": 0.25, "loss_by_rows": 0.2222222, name: 0.8852195143699646},
            slices=(MeasuredSlice(name=name, num_examples=7, metrics={name: 0.5}),),
        ),
        learning=Learning(
            series=(
                series_of([0.75, 0.5, 0.25], name="loss"),
                series_of([0.8, 0.9], name=name, source="eval"),
            ),
            restarts=(Restart(step=2, time=1.0),),
        ),
        layers=(Layer(name=name, parameters=1234, slots=2468, bytes=14808),),
        exported=Exported(
            path="p",
            bytes=724_289,
            meta_graphs=(
                MetaGraph(
                    tags=("serve",),
                    signatures=(
                        Signature(name=name, inputs={name: "string [?]"}, outputs={name: "f"}),
                    ),
                    ops={"on the host": 17},
                ),
            ),
            warmup_requests=2,
        ),
        serving_checks=(CheckOfServing(name=name, outcome="passed", detail=name, seconds=2.5),),
        lineage=Lineage(
            ran_on="4 emulated TPU cores",
            inputs={name: name},
            settings={name: name},
            versions={name: name},
            identity="abc",
            phase_seconds={name: 12.5, "export": 7.5},
        ),
    )
    return dataclasses.replace(run, **changes)
