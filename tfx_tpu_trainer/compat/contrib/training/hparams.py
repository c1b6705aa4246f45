"""Implements typed hyperparameters that a command line's text can set.

The semantics are those of `tf.contrib.training.HParams` in TensorFlow 1.15.
"""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Callable, Mapping
from typing import Any

_ASSIGNMENT = re.compile(
    r"(?P<name>[a-zA-Z][\w.]*)"
    r"(?:\[\s*(?P<index>\d+)\s*\])?"
    r"\s*=\s*"
    r"(?:(?P<value>[^,\[]*)|\[(?P<values>[^\]]*)\])"
    r"(?:$|,\s*)"
)
_TRUE, _FALSE = ("true", "True"), ("false", "False")


def parse_values(
    values: str, type_map: Mapping[str, type], ignore_unknown: bool = False
) -> dict[str, Any]:
    """Reads `name=value` pairs: `a=1,b=[0.1,0.2],c[1]=x,d=true`.

    Args:
        values: The pairs, with commas between.
        type_map: Name -> its type, or that of its elements.
        ignore_unknown: Whether to skip names without a type. Defaults to `False`.

    Returns:
        Name -> a value, a list, or for elements of a list a dict by index.

    Raises:
        ValueError: If a pair can't be read, or a name has no type or is assigned twice.
    """
    found: dict[str, Any] = {}
    at = 0
    while at < len(values):
        match = _ASSIGNMENT.match(values, at)
        if match is None:
            raise ValueError(f"Malformed hyperparameter value: {values[at:]}")
        at = match.end()
        name, index = match["name"], match["index"]
        if name not in type_map:
            if ignore_unknown:
                continue
            raise ValueError(f"Unknown hyperparameter type for {name}")
        kind = type_map[name]
        if index is not None and match["values"] is not None:
            raise ValueError(f"A list can't be assigned to the element {name}[{index}].")
        taken = found.get(name)
        if (index is None and name in found) or (
            index is not None and taken is not None and not isinstance(taken, dict)
        ):
            raise ValueError(f"Multiple assignments to variable {name!r} in {values}")
        if match["values"] is not None:
            texts = [each for each in re.split("[ ,]", match["values"]) if each]
            found[name] = [_read(name, kind, each, values) for each in texts]
        elif index is None:
            found[name] = _read(name, kind, match["value"], values)
        else:
            elements = found.setdefault(name, {})
            if int(index) in elements:
                raise ValueError(f"Multiple assignments to variable {name}[{index}] in {values}")
            elements[int(index)] = _read(name, kind, match["value"], values)
    return found


def _read(name: str, kind: type, text: str, values: str) -> Any:
    reader: Callable[[str], Any] = _boolean if kind is bool else kind
    try:
        return reader(text)
    except ValueError as error:
        raise ValueError(
            f"Could not parse hparam {name!r} of type {kind.__name__!r} with value {text!r} in {values}"
        ) from error


def _boolean(text: str) -> bool:
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    return bool(int(text))


def _cast(name: str, kind: type, value: Any) -> Any:
    """Converts a value to a type, if it is of that kind."""
    if type(value) is kind or issubclass(kind, type(None)):
        return value
    # In Python a bool is an int: without the second line True would count as 1, and 1 as True.
    fits = (
        (not issubclass(kind, (str, bytes)) or isinstance(value, (str, bytes)))
        and issubclass(kind, bool) == isinstance(value, bool)
        and (not issubclass(kind, numbers.Integral) or isinstance(value, numbers.Integral))
        and (not issubclass(kind, numbers.Number) or isinstance(value, numbers.Number))
    )
    if not fits:
        raise ValueError(f"Could not cast hparam {name!r} of type {kind} from value {value!r}")
    return kind(value)  # type: ignore[call-arg]


class HParams:
    """Hyperparameters: attributes with the types of their initial values."""

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any) -> None:
        """Makes hyperparameters from names and values.

        Args:
            hparam_def: Not supported: TensorFlow 2 has no protocol buffers of hyperparameters.
            model_structure: Kept for `get_model_structure`. Defaults to `None`.
            **kwargs: The hyperparameters.

        Raises:
            ValueError: If a name is taken by a method, a list is empty, or `hparam_def` is given.
        """
        if hparam_def is not None:
            raise ValueError(
                "HParams are made of names and values; hparam_def, a protocol buffer of TensorFlow 1, can't be "
                "read: use to_json and parse_json."
            )
        self._hparam_types: dict[str, tuple[type, bool]] = {}
        self._model_structure = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Adds a hyperparameter.

        Args:
            name: Its name.
            value: A number, bool or string, or a list of them; its type is kept.

        Raises:
            ValueError: If the name is taken, or a list is empty.
        """
        if getattr(self, name, None) is not None:
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        is_list = isinstance(value, (list, tuple))
        if is_list and not value:
            raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
        self._hparam_types[name] = (type(value[0] if is_list else value), is_list)
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Sets a hyperparameter to another value of its type.

        Args:
            name: Its name.
            value: The value; for a list, a list, or a dict of some elements by index.

        Raises:
            KeyError: If the hyperparameter does not exist.
            ValueError: If the value is of another type, or an index is beyond the list.
        """
        kind, is_list = self._hparam_types[name]
        if isinstance(value, dict) and is_list:
            elements = list(getattr(self, name))
            for index, element in value.items():
                if not 0 <= index < len(elements):
                    raise ValueError(
                        f"{name} has {len(elements)} elements, so index {index} is out of range."
                    )
                elements[index] = element
            value = elements
        if isinstance(value, list) != is_list:
            wanted = (
                "Must pass a list for multi-valued"
                if is_list
                else "Must not pass a list for single-valued"
            )
            raise ValueError(f"{wanted} parameter: {name}; got {value!r}.")
        if is_list:
            setattr(self, name, [_cast(name, kind, each) for each in value])
        else:
            setattr(self, name, _cast(name, kind, value))

    def del_hparam(self, name: str) -> None:
        """Removes a hyperparameter, if it exists.

        Args:
            name: Its name.
        """
        if name in self._hparam_types:
            delattr(self, name)
            del self._hparam_types[name]

    def parse(self, values: str) -> HParams:
        """Sets hyperparameters from a string.

        Args:
            values: As for `parse_values`.

        Returns:
            Itself.

        Raises:
            ValueError: If it can't be read, or a hyperparameter does not exist.
        """
        types = {name: kind for name, (kind, _) in self._hparam_types.items()}
        return self.override_from_dict(parse_values(values, types))

    def parse_json(self, values_json: str) -> HParams:
        """Sets hyperparameters from a JSON object.

        Args:
            values_json: The object.

        Returns:
            Itself.

        Raises:
            KeyError: If the hyperparameter does not exist.
            ValueError: If it can't be read, or a value is of another type.
        """
        return self.override_from_dict(json.loads(values_json))

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Sets hyperparameters from a dict.

        Args:
            values_dict: Name -> value.

        Returns:
            Itself.

        Raises:
            KeyError: If the hyperparameter does not exist.
            ValueError: If a value is of another type.
        """
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    set_from_map = override_from_dict

    def set_model_structure(self, model_structure: Any) -> None:
        """Keeps a model structure.

        Args:
            model_structure: Anything.
        """
        self._model_structure = model_structure

    def get_model_structure(self) -> Any:
        """Returns the model structure."""
        return self._model_structure

    def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        """Writes the hyperparameters as a JSON object.

        Args:
            indent: As for `json.dumps`. Defaults to `None`.
            separators: As for `json.dumps`. Defaults to `None`.
            sort_keys: As for `json.dumps`. Defaults to `False`.

        Returns:
            The object.
        """
        return json.dumps(self.values(), indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """Returns the hyperparameters by name."""
        return {name: getattr(self, name) for name in self._hparam_types}

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a hyperparameter, or a default if it does not exist.

        Args:
            key: Its name.
            default: The other value, of the hyperparameter's type. Defaults to `None`.

        Raises:
            ValueError: If the hyperparameter is there, and `default` is of another type.
        """
        if key not in self._hparam_types:
            return default
        if default is not None:
            kind, is_list = self._hparam_types[key]
            if is_list != isinstance(default, list):
                raise ValueError(
                    f"Hparam {key!r} of type {f'list<{kind}>' if is_list else kind} is incompatible with "
                    f"default={default}"
                )
            for value in default if is_list else [default]:
                _cast(key, kind, value)
        return getattr(self, key)

    def __contains__(self, key: str) -> bool:
        return key in self._hparam_types

    def __str__(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.values().items())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sorted(self.values().items())})"
