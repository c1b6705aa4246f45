"""Small programs, each of which makes the original say something; named after its modules."""

from tests.estimator.words.cases import (
    canned,
    config,
    estimator,
    heads,
    hooks,
    inputs,
    keras,
    specs,
    tpu,
    tpu_cores,
    training,
)

MODULES = (estimator, specs, config, training, hooks, inputs, heads, canned, tpu, tpu_cores, keras)
CASES = {
    f"{module.__name__.rpartition('.')[2]}.{name}": case
    for module in MODULES
    for name, case in module.CASES.items()
}
