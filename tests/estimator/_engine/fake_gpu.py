"""A GPU that TensorFlow names but has no device for: for what is decided by there being one."""

from __future__ import annotations

import tensorflow as tf


def see_a_gpu(monkeypatch):
    """Has TensorFlow name a GPU until the test ends; ops still run on the CPU."""
    visible = tf.config.get_visible_devices
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")

    def with_gpu(device_type=None):
        return visible(device_type) + [gpu] * (device_type in (None, "GPU"))

    monkeypatch.setattr(tf.config, "get_visible_devices", with_gpu)
