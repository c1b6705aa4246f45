"""Checks input functions and model functions of programs for cores: params, batches, optimizers, metrics, ops."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tfx_tpu_trainer.compat.doctor._findings import Finding, TextEdit
from tfx_tpu_trainer.compat.doctor._program import Call, Function, Use
from tfx_tpu_trainer.compat.doctor.checks import (
    Context,
    is_false,
    is_none,
    note,
    text_of,
    to_edit,
    works,
)

_THEME: Final = "model_fn"

# Arguments of an EstimatorSpec that a TPUEstimatorSpec lacks, and its own ones.
_NOT_OF_TPU: Final = {
    "eval_metric_ops": (
        "eval_metrics=(metric_fn, [labels, logits]), where metric_fn(labels, logits) returns the "
        "former eval_metric_ops"
    ),
    "scaffold": "scaffold_fn=..., a function without arguments that returns the Scaffold",
    "training_chief_hooks": "training_hooks=[...]",
}

# Ops on strings, tables and Python objects: none has a TPU kernel.
_HOST_ONLY: Final = re.compile(
    r"tensorflow(\.compat\.v[12])?\.("
    r"py_func|py_function|numpy_function|strings\.|string_|as_string|regex_replace|substr|"
    r"lookup\.|io\.(parse|decode|read)|parse_|decode_|read_file|print\b|Print\b|image\.decode|"
    r"contrib\.lookup\."
    r")"
)

_SUMMARY: Final = re.compile(
    r"tensorflow(\.compat\.v1)?\.summary\.(scalar|histogram|image|audio|text|tensor_summary|merge|merge_all|"
    r"FileWriter)$"
)


def check_model_fns(context: Context) -> Iterator[Finding]:
    """Checks the model functions of programs that may run on cores."""
    yield from _arguments(context)
    if not context.has_tpu_models:
        return
    hosted = _hosted_functions(context)
    for function in context.tpu_model_fns:
        yield from _params(context, function)
        yield from _plain_metrics(context, function)
        for call in context.calls_in(function):
            if call.function is not None and call.function.name in hosted:
                continue
            if _is_tf1_summary(context, call):
                yield _summary(call)
            elif _HOST_ONLY.match(call.name):
                yield _host_only(call)
    yield from _host_calls(context)


def _arguments(context: Context) -> Iterator[Finding]:
    """Reports EstimatorSpec arguments given to a TPUEstimatorSpec."""
    for call in context.api_calls("TPUEstimatorSpec"):
        for argument in call.node.keywords:
            if argument.arg in _NOT_OF_TPU:
                yield to_edit(
                    context.program.place_of_keyword(argument),
                    theme=_THEME,
                    name=f"TPUEstimatorSpec({argument.arg}=...)",
                    says="An EstimatorSpec has this argument, a TPUEstimatorSpec does not: a "
                    "TypeError.",
                    edit=_NOT_OF_TPU[argument.arg],
                )


def _params(context: Context, function: Function) -> Iterator[Finding]:
    if "features" not in function.parameters or function.takes_anything:
        return
    if "params" in function.parameters:
        return
    parameters, defaults = function.node.args.args, function.node.args.defaults
    end = context.program.place(defaults[-1] if defaults else parameters[-1]).end
    yield to_edit(
        function.place,
        theme=_THEME,
        name=function.name,
        says="The model function of a TPUEstimator must take params, which hold its batch size: a "
        "ValueError.",
        edit=f"def {function.name}({', '.join(function.parameters)}, params)",
        # After an argument with a default, the next needs one, too.
        edits=(
            (TextEdit(end, end, ", params=None" if defaults else ", params"),)
            if function.parameters[-1] == parameters[-1].arg
            else ()
        ),
    )


def _plain_metrics(context: Context, function: Function) -> Iterator[Finding]:
    """Reports an Estimator's spec with metrics, from a function for a TPUEstimator."""
    on_cpu = [each for each in context.on_cores if _evaluates_on_cpu(each)]
    if on_cpu or not context.on_cores:
        return
    if any(
        call.argument("eval_metrics", 4) is not None
        for call in context.api_calls("TPUEstimatorSpec")
        if call.function is not None and call.function.is_within(function)
    ):
        # A program for both: with use_tpu it returns the other one.
        return
    for call in context.api_calls("EstimatorSpec"):
        metrics = call.argument("eval_metric_ops", 4)
        if call.function is None or not call.function.is_within(function):
            continue
        if metrics is not None and not is_none(metrics):
            yield to_edit(
                call.place,
                theme=_THEME,
                name="eval_metric_ops",
                says=(
                    "Evaluation on cores takes a TPUEstimatorSpec: metrics are computed on the host, from tensors "
                    "that the cores send."
                ),
                edit=(
                    "tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels, "
                    "logits])), where metric_fn(labels, logits) returns the former "
                    "eval_metric_ops; or eval_on_tpu=False"
                ),
            )


def _evaluates_on_cpu(call: Call) -> bool:
    return is_false(call.argument("eval_on_tpu", 9))


def _is_tf1_summary(context: Context, call: Call) -> bool:
    in_v1 = call.name.startswith("tensorflow.compat.v1.") or context.spelling.is_tf1
    return in_v1 and _SUMMARY.match(call.name) is not None


def _summary(call: Call) -> Finding:
    return to_edit(
        call.place,
        theme="summaries",
        name=f"tf.summary.{call.attribute}",
        says=(
            "A TensorFlow 1 summary in the model function: not written on cores, which write no "
            "files."
        ),
        edit=(
            "host_call=(host_call_fn, [tf.reshape(global_step, [1]), tf.reshape(loss, [1])]) in the spec; "
            "docs/doctor.md has this function"
        ),
    )


def _host_only(call: Call) -> Finding:
    return note(
        call.place,
        theme=_THEME,
        name=_shown(call.name),
        says=(
            "No TPU has this op. It runs with use_tpu=False, and on emulated cores with a "
            "warning; preflight and a TPU refuse it."
        ),
        edit="for a TPU: do it in input_fn, or after the model in metric_fn or host_call",
    )


def _host_calls(context: Context) -> Iterator[Finding]:
    """Reports TensorFlow 1 summaries in a host_call, which cores reject."""
    for name in sorted(_host_call_functions(context)):
        function = context.program.function_named(name)
        for call in context.calls_in(function) if function else ():
            if _is_tf1_summary(context, call):
                kind = call.attribute
                yield to_edit(
                    call.place,
                    theme="summaries",
                    name=f"tf.summary.{kind}",
                    says=(
                        "A TensorFlow 1 summary in a host_call: on cores a ValueError. TensorFlow "
                        "2 summaries need a writer that the function creates."
                    ),
                    edit=(
                        "with tf.compat.v2.summary.create_file_writer(model_dir).as_default(), "
                        "tf.compat.v2.summary.record_if(True): "
                        f"tf.compat.v2.summary.{kind}(name, value[0], step=step[0]); return "
                        "tf.compat.v1.summary.all_v2_summary_ops()"
                    ),
                )


def _hosted_functions(context: Context) -> set[str]:
    """Returns functions that run on the host: of host_call, of eval_metrics, of scaffold_fn."""
    found = set(_host_call_functions(context))
    for call in context.api_calls("TPUEstimatorSpec"):
        for keyword, position in (("eval_metrics", 4), ("host_call", 7), ("scaffold_fn", 6)):
            found |= _first_names(call.argument(keyword, position))
    for call in context.program.calls:
        if call.attribute == "outside_compilation":
            found |= _first_names(call.argument("computation", 0))
    return found | {
        each.name
        for each in context.program.functions
        if re.search(r"metric_fn$|host_call|scaffold_fn$", each.name)
    }


def _host_call_functions(context: Context) -> set[str]:
    found: set[str] = set()
    for call in context.api_calls("TPUEstimatorSpec"):
        found |= _first_names(call.argument("host_call", 7))
    text = context.program.text
    # host_call = (host_call_fn, [...]), passed to the spec later.
    found |= set(re.findall(r"\bhost_call\s*=\s*\(\s*([A-Za-z_]\w*)\s*,", text))
    return found


def _first_names(value: ast.expr | None) -> set[str]:
    if isinstance(value, ast.Tuple | ast.List) and value.elts:
        value = value.elts[0]
    return {value.id} if isinstance(value, ast.Name) else set()


def _shown(name: str) -> str:
    return re.sub(r"^tensorflow(\.compat\.v[12])?\.", "tf.", name)


_LIBRARIES: Final = ("tensorflow.", "tf_keras.", "keras.", "tfx_tpu_trainer.")

_APPLIES: Final = {"minimize", "apply_gradients"}

_WRAPPER: Final = ".CrossShardOptimizer"

_KERAS_OPTIMIZER: Final = re.compile(r"(tensorflow|tf_keras|keras)\b.*\boptimizers\.")


def check_optimizers(context: Context) -> Iterator[Finding]:
    """Checks how model functions for cores apply gradients."""
    if not context.has_tpu_models:
        return
    if any(
        use.name.endswith(_WRAPPER) and not _wraps_in_place(context, use)
        for use in context.program.uses
    ):
        return
    for call in context.program.calls:
        within = any(
            call.function is not None and call.function.is_within(function)
            for function in context.tpu_model_fns
        )
        if call.attribute not in _APPLIES or not within:
            continue
        if not isinstance(call.node.func, ast.Attribute):
            continue
        optimizer = call.node.func.value
        if context.program.name_of(getattr(optimizer, "func", None)).endswith(_WRAPPER):
            continue
        made_by = _makers(context, optimizer)
        if any(_KERAS_OPTIMIZER.match(context.program.name_of(each.func)) for each in made_by):
            yield _keras_optimizer(call)
            continue
        if any(_is_helper(context, each) for each in made_by):
            # The other module wraps the optimizer itself, since the wrapper does not depend on the model.
            continue
        shown = context.program.written(optimizer)
        wrapped, added = context.spelling.spell("tfx_tpu_trainer.estimator.tpu.CrossShardOptimizer")
        place = context.program.place(optimizer)
        edits: tuple[TextEdit, ...] = (place.replaced_by(f"{wrapped}({shown})"), *added)
        computes = call.attribute == "apply_gradients" and _computes_gradients(context, call)
        if computes or not (made_by or isinstance(optimizer, ast.Call)):
            # compute_gradients must belong to the wrapper, too: it divides the loss. An optimizer from elsewhere, as an
            # argument or attribute, may already be a wrapper.
            edits = ()
        yield to_edit(
            call.place,
            theme=_THEME,
            name=f".{call.attribute}()",
            says=(
                "Training on several cores without CrossShardOptimizer: the cores would diverge, "
                "so it is a ValueError. On one core, and with use_tpu=False, the wrapper changes "
                "nothing."
            ),
            edit=f"optimizer = {wrapped}(optimizer), right after it is made",
            edits=edits,
        )


def _keras_optimizer(call: Call) -> Finding:
    return to_edit(
        call.place,
        theme=_THEME,
        name=f".{call.attribute}()",
        says=(
            "A Keras optimizer trains on the host and on one core. It does not sum the gradients "
            "of several cores: a ValueError. CrossShardOptimizer accepts only optimizers of "
            "tf.compat.v1.train."
        ),
        edit=(
            "tpu.CrossShardOptimizer(tf.compat.v1.train.AdamOptimizer(...)); or each gradient through "
            "tf.compat.v1.tpu.cross_replica_sum, with the loss divided by the number of cores, before apply_gradients"
        ),
    )


def _wraps_in_place(context: Context, use: Use) -> bool:
    """Returns whether it is `CrossShardOptimizer(optimizer).minimize(...)`, which does not affect other calls."""
    call, attribute = list(context.program.around(use.node))[:2]
    return isinstance(call, ast.Call) and isinstance(attribute, ast.Attribute)


def _makers(context: Context, optimizer: ast.expr) -> list[ast.Call]:
    """Returns the calls that produce an expression, as far as assignments show."""
    if isinstance(optimizer, ast.Call):
        return [optimizer]
    scope = context.program.scopes.get(optimizer) if isinstance(optimizer, ast.Name) else None
    if scope is None or not isinstance(optimizer, ast.Name):
        return []
    values = (
        each.value for each in scope.assignments(optimizer.id) if isinstance(each, ast.Assign)
    )
    return [each for each in values if isinstance(each, ast.Call)]


def _is_helper(context: Context, call: ast.Call) -> bool:
    """Returns whether a call is of another module's function, as opposed to a class."""
    function, program = call.func, context.program
    name = program.name_of(function)
    if name:
        return name.rpartition(".")[2][:1].islower() and not name.startswith(_LIBRARIES)
    # Or one of a relatively imported module.
    owner = function.value if isinstance(function, ast.Attribute) else function
    last = function.attr if isinstance(function, ast.Attribute) else getattr(owner, "id", "")
    return isinstance(owner, ast.Name) and owner.id in program.relative and last[:1].islower()


def _computes_gradients(context: Context, call: Call) -> bool:
    return any(
        each.attribute == "compute_gradients" and each.function is call.function
        for each in context.program.calls
    )


_INPUT_THEME: Final = "input"

_BATCHING: Final = {"batch", "padded_batch", "map_and_batch"}
_ENDS_ANYWHERE: Final = re.compile(r"eval|predict|test|valid|dev|infer")


def check_input_fns(context: Context) -> Iterator[Finding]:
    """Checks input functions that a TPUEstimator may call."""
    if not context.tpu_estimators:
        return
    for function in context.input_fns:
        if "params" not in function.parameters and not function.takes_anything:
            yield _no_params(function)
        elif "params" in function.parameters and not _reads_batch_size(function):
            yield to_edit(
                function.place,
                theme=_INPUT_THEME,
                name=function.name,
                says=(
                    'The input function of a TPUEstimator does not read params["batch_size"]: '
                    "on N cores it must return batches of a host's or a core's size, not of the "
                    "constructor's."
                ),
                edit='batch_size = params["batch_size"]',
            )
        if context.on_cores:
            yield from _short_batches(context, function)
    for call in context.program.calls:
        given = context.given_input_fn(call)
        if isinstance(given, ast.Lambda) and not _takes_params(given):
            yield to_edit(
                context.program.place(given),
                theme=_INPUT_THEME,
                name="input_fn",
                says="A TPUEstimator calls input_fn with params, which this lambda does not take.",
                edit='lambda params: ..., with params["batch_size"] as the number of rows',
            )


def _no_params(function: Function) -> Finding:
    return to_edit(
        function.place,
        theme=_INPUT_THEME,
        name=function.name,
        says=(
            "A TPUEstimator calls input_fn with params, which this one does not take: a "
            'ValueError. params["batch_size"] is the number of rows that a batch must have.'
        ),
        edit=f'def {function.name}(params): batch_size = params["batch_size"]',
    )


def _reads_batch_size(function: Function) -> bool:
    """Returns whether a function reads the batch size from params, or passes params on."""
    ahead: list[ast.AST] = [*function.node.body]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.Subscript) and _is_params(node.value):
            if text_of(node.slice) == "batch_size":
                return True
        elif isinstance(node, ast.Attribute) and _is_params(node.value):
            # params.get("batch_size"), or params.batch_size of a namespace.
            if node.attr in ("get", "batch_size"):
                return True
        elif _is_params(node):
            return True
        else:
            ahead.extend(ast.iter_child_nodes(node))
    return False


def _is_params(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "params"


def _takes_params(node: ast.Lambda) -> bool:
    names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
    return "params" in names or node.args.kwarg is not None


def _short_batches(context: Context, function: Function) -> Iterator[Finding]:
    anywhere = bool(_ENDS_ANYWHERE.search(function.name))
    for call in context.calls_in(function):
        if call.attribute not in _BATCHING or call.argument("drop_remainder") is not None:
            continue
        if call.has_spread or not call.arguments or not isinstance(call.node.func, ast.Attribute):
            continue
        if "batch" not in call.attribute or _positional_drop(call):
            continue
        name = f".{call.attribute}()"
        if anywhere:
            yield works(
                call.place,
                theme=_INPUT_THEME,
                name=name,
                says=(
                    "Evaluation and prediction on cores accept a short last batch: it counts, and "
                    "nothing is padded. The original refused it without drop_remainder=True."
                ),
            )
        else:
            yield to_edit(
                call.place,
                theme=_INPUT_THEME,
                name=name,
                says="Training on cores needs batches of a fixed size, known before the first one "
                "is read.",
                edit=f".{call.attribute}(..., drop_remainder=True)",
                edits=(_appended(context, call, "drop_remainder=True"),),
            )


def _positional_drop(call: Call) -> bool:
    return (call.attribute == "batch" and "1" in call.arguments) or (
        call.attribute == "padded_batch" and "3" in call.arguments
    )


def _appended(context: Context, call: Call, argument: str) -> TextEdit:
    """Appends an argument to a call, after any white space and commas."""
    given = (*call.node.args, *(each.value for each in call.node.keywords))
    last = max(context.program.place(each).end for each in given)
    return TextEdit(last, last, f", {argument}")
