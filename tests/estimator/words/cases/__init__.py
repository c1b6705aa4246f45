"""Small programs, each of which makes the original say something; named after its modules."""

from tests.estimator.words.cases import (
    config,
    estimator,
    hooks,
    inputs,
    specs,
    training,
)

MODULES = (estimator, specs, config, training, hooks, inputs)
CASES = {
    f"{module.__name__.rpartition('.')[2]}.{name}": case
    for module in MODULES
    for name, case in module.CASES.items()
}
