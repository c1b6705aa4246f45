"""Four devices on this CPU, for the tests of strategies."""

from __future__ import annotations

import tensorflow as tf

# Devices are fixed when TensorFlow first runs something: here, while tests are collected, is
# before any of them does.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 4
)
