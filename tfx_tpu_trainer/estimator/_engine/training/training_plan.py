"""The plan of a training, and a check that its train_op trains."""

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer.estimator._engine.checkpointing.input_position import SavedInput
from tfx_tpu_trainer.estimator._engine.graph_nodes import CHANGES, VariableChanges, upstream
from tfx_tpu_trainer.estimator._engine.loops.one_thread_loop import build_one_thread_loop, is_small
from tfx_tpu_trainer.estimator._engine.loops.step_loop import TemplateLoop, build_template_loop
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import SessionCreatorFn
from tfx_tpu_trainer.estimator._engine.template import ModelTemplate

v1 = tf.compat.v1
_logger = tf.get_logger()

# Ops that may train something other than a variable of the graph.
_HIDDEN_CHANGES = (
    "LookupTableImport",
    "LookupTableInsert",
    "PyFunc",
    "EagerPyFunc",
    "SendTPUEmbeddingGradients",
)


def check_train_op(template: ModelTemplate) -> bool:
    """Warns of a train_op that changes no variable but counters; returns whether it trains."""
    # Training continues, since a dry run has this train_op on purpose. Others have lost their optimizer's op, and
    # would run all their steps without a change.
    trainable = {variable.op.name for variable in v1.trainable_variables()}
    graph_def = template.graph.as_graph_def()
    changes = VariableChanges(graph_def.library, changes=(*CHANGES, *_HIDDEN_CHANGES))
    # From the GraphDef, since each op's own `node_def` is serialized and parsed when it is read.
    changing = {node.name for node in graph_def.node if changes.made_by(node)}
    made = [op for op in upstream([template.train_op]) if op.name in changing and not _counts(op)]
    if not made and trainable:
        _logger.warning(
            "train_op %r changes no variable except the global step, although the model has %d "
            "trainable ones: training will not change them. %s",
            getattr(template.train_op, "name", None),
            len(trainable),
            _likely_cause(template.graph, changing, trainable),
        )
    changed = {_variable_of(op) for op in made}
    return bool(trainable) and (None in changed or not trainable.isdisjoint(changed))


def _likely_cause(graph: tf.Graph, changing: Collection[str], trainable: Collection[str]) -> str:
    unused = [
        op.name
        for op in graph.get_operations()
        if op.name in changing and _variable_of(op) in trainable and not _initializes(op)
    ]
    if unused:
        return (
            f"The graph has {unused[-1]!r}, which would change one, but train_op does not run it: "
            "return the result of the optimizer's minimize() or apply_gradients(), alone or in a "
            "tf.group with the rest."
        )
    return (
        "The graph has no op of an optimizer: return the result of an optimizer's minimize() or "
        "apply_gradients(), such as tf.compat.v1.train.AdamOptimizer's; a dry run needs none."
    )


def _counts(op: tf.Operation) -> bool:
    """Returns whether an op changes a counter: the global step, or an optimizer's own."""
    variable = op.inputs[0].op if op.inputs else None
    return (
        variable is not None
        and variable.type == "VarHandleOp"
        and variable.get_attr("dtype").is_integer
        and not variable.get_attr("shape").dim
    )


def _variable_of(op: tf.Operation) -> str | None:
    """Returns the name of the variable that is an op's first input, or `None`."""
    first = op.inputs[0].op if op.inputs else None
    return first.name if first is not None and first.type == "VarHandleOp" else None


def _initializes(op: tf.Operation) -> bool:
    # TensorFlow names a resource variable's initializer after the variable.
    return op.name == f"{_variable_of(op)}/Assign"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training, placed and ready to run."""

    template: ModelTemplate
    # What a session call runs: a step, or a loop of steps.
    train_op: Any
    # Loss of the call's last step.
    loss: tf.Tensor
    # Stops the session at the last step; `None` for the end of the input.
    stop_hook: v1.train.SessionRunHook | None
    # Most steps of a session call.
    steps_per_call: int = 1
    # Makes a loop that may run steps between the calls that hooks must see, given whether each op
    # runs on one thread; `None` if hooks must see every call.
    make_loop: Callable[[bool], TemplateLoop] | None = None
    # Returns the last step of a session that starts at a step; `None` for the end of the input.
    last_step_of: Callable[[int], int | None] = lambda start: None
    session_creator: SessionCreatorFn = v1.train.ChiefSessionCreator
    # The input, if it is not in the session's graph.
    saved_input: SavedInput | None = None
    # Ends the running loop after its current step, from another thread; `None` if calls are short, or can't be ended.
    end_loop: Callable[[], None] | None = None
    # Hook that stops the processes that make the same steps together; `None` for a single one.
    agreed_stop: v1.train.SessionRunHook | None = None
    # Steps between log lines of loss and step, if `log_step_count_steps` is not set.
    log_loss_every: int | None = None
    # How the job reads its input, saved with the input's position; "" if it is not needed.
    reading: str = ""
    # Where it runs, in words.
    ran_on: str = "this host"

    @functools.cached_property
    def has_small_steps(self) -> bool:
        """Whether a step is faster with each op on one thread."""
        return is_small([self.template.train_op, self.template.loss])


def plan_training(
    template: ModelTemplate, *, steps: int | None, max_steps: int | None
) -> TrainingPlan:
    """Plans a training that runs the unchanged template."""
    check_train_op(template)
    limited = steps is not None or max_steps is not None

    def last_step_of(start: int) -> int | None:
        return max_steps if steps is None else start + steps

    return TrainingPlan(
        template=template,
        train_op=template.train_op,
        loss=template.loss,
        stop_hook=(
            v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps) if limited else None
        ),
        make_loop=lambda one_thread: (
            build_one_thread_loop(template) if one_thread else build_template_loop(template)
        ),
        last_step_of=last_step_of,
    )
