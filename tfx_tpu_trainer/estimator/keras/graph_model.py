"""The variables of a Keras model in the default graph."""

from __future__ import annotations

from tfx_tpu_trainer.estimator.keras.eagerly import eagerly
from tfx_tpu_trainer.estimator.keras.keras_model import KerasModel, Named
from tfx_tpu_trainer.estimator.keras.stand_ins import StandIns, unused_name


class GraphModel:
    """Graph variables for all variables of a model, whether a mode needs them or not.

    Attributes:
        eager: The model's variables.
        stand_ins: The variables that stand for them.
        variables: The same, in the order of `eager`.
    """

    def __init__(self, model: KerasModel, *, with_values: bool = False) -> None:
        """Makes the variables.

        Args:
            model: The model, built.
            with_values: Whether they are initialized to the values that the model has now.
                Defaults to `False`, zeros, for a checkpoint to give them.
        """
        self.eager: list[Named] = model.variables()
        self.stand_ins = StandIns()
        taken: set[str] = set()
        self.variables = [
            self.stand_ins.add(
                unused_name(each.name, taken),
                each.variable,
                trainable=each.trainable,
                first_value=eagerly(each.variable.numpy) if with_values else None,
            )
            for each in self.eager
        ]
