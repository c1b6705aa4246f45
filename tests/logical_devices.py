"""Four devices on this CPU, for tests of strategies; imported by the conftest.py of their folders.

Devices are fixed when TensorFlow first runs something: while tests are collected is before any of
them does.
"""

from __future__ import annotations

import tensorflow as tf

_CPU = tf.config.list_physical_devices("CPU")[0]

if tf.config.get_logical_device_configuration(_CPU) is None:
    tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 4)
