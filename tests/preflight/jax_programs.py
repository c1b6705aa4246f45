"""Compiles programs with JAX's ahead-of-time path; run by the Python of an environment that has JAX.

    PYTHON tests/preflight/jax_programs.py LIBTPU_SO          # the programs' names
    PYTHON tests/preflight/jax_programs.py LIBTPU_SO NAME     # one of them, compiled

The last line of the standard output is JSON: a list of names; or bytes of HBM by kind, or the text of the
compiler's refusal. `tests/preflight/tf_programs.py` has the same programs under the same names.
"""

import functools
import json
import os
import sys

os.environ.update(
    TPU_LIBRARY_PATH=sys.argv[1],
    TPU_SKIP_MDS_QUERY="1",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_LOG_DIR="disabled",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_WORKER_HOSTNAMES="localhost",
    JAX_PLATFORMS="cpu",
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

KINDS = ("argument", "output", "alias", "temp", "generated_code")

PROGRAMS = {}


def program(*shapes, dtypes=None, donated=(), mesh=None, specs=None, out_specs=None):
    """Registers a function with the shapes of its arguments."""

    def register(function):
        kinds = dtypes or [jnp.float32] * len(shapes)
        arguments = [jax.ShapeDtypeStruct(*each) for each in zip(shapes, kinds)]
        PROGRAMS[function.__name__] = (function, arguments, donated, mesh, specs, out_specs)
        return function

    return register


def mean_square(x):
    return jnp.mean(jnp.square(x))


def layers(weights, x):
    for weight in weights:
        x = jax.nn.relu(x @ weight)
    return x


def normalized(x):
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-6)


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(8)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


@program((8192, 4096), (4096, 8192))
def matmul(x, w):
    return x @ w


@program((8192, 4096), (4096, 8192), dtypes=[jnp.bfloat16] * 2)
def matmul_bfloat16(x, w):
    return x @ w


@program((16384, 1024), (1024, 4096), (4096, 4096), (4096, 1024))
def forward(x, *weights):
    return layers(weights, x)


@program((16384, 1024), (1024, 4096), (4096, 1024), donated=(1, 2))
def train_by_descent(x, *weights):
    gradients = jax.grad(lambda weights: mean_square(layers(weights, x)))(weights)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]


@program((4096, 2048), *[(2048, 4096), (4096, 2048)] * 3, donated=(1, 2, 3, 4, 5, 6))
def train_by_adam(x, *state):
    weights, first, second = state[:2], state[2:4], state[4:]
    gradients = jax.grad(lambda weights: mean_square(layers(weights, x)))(weights)
    first = [0.9 * m + 0.1 * g for m, g in zip(first, gradients)]
    second = [0.999 * v + 0.001 * g * g for v, g in zip(second, gradients)]
    weights = [w - 0.1 * m / (jnp.sqrt(v) + 1e-7) for w, m, v in zip(weights, first, second)]
    return [*weights, *first, *second]


@program(
    (8192, 512), (512, 32768), (8192,), dtypes=[jnp.float32, jnp.float32, jnp.int32], donated=(1,)
)
def train_softmax(x, w, labels):
    def loss(w):
        logits = jax.nn.log_softmax(x @ w)
        return -jnp.mean(jnp.sum(logits * jax.nn.one_hot(labels, 32768), -1))

    return w - 0.1 * jax.grad(loss)(w)


@program((1_000_000, 128), (65536,), dtypes=[jnp.float32, jnp.int32])
def look_up(table, ids):
    return table.at[ids].get(mode="clip")


@program((128, 56, 56, 128), (3, 3, 128, 256))
def convolution(x, w):
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@program((64, 56, 56, 128), (3, 3, 128, 128), donated=(1,))
def train_convolution(x, w):
    def loss(w):
        return mean_square(jax.nn.relu(convolution(x, w)))

    return w - 0.1 * jax.grad(loss)(w)


@program((32768, 4096))
def layer_norm(x):
    return normalized(x)


@program(*[(16, 1024, 12, 64)] * 3)
def attention_scores(q, k, v):
    return attention(q, k, v)


@program((16, 512, 768), (768, 2304), (768, 768), (768, 3072), (3072, 768))
def transformer_layer(x, qkv, out, up, down):
    q, k, v = (part.reshape(16, 512, 12, 64) for part in jnp.split(normalized(x) @ qkv, 3, -1))
    x = x + attention(q, k, v).reshape(16, 512, 768) @ out
    return x + jax.nn.relu(normalized(x) @ up) @ down


@program((16, 512, 768), (768, 2304), (768, 768), (768, 3072), (3072, 768), donated=(1, 2, 3, 4))
def train_transformer_layer(x, *weights):
    gradients = jax.grad(lambda weights: mean_square(transformer_layer(x, *weights)))(weights)
    return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients)]


@program((16384, 2048), (2048, 2048))
def loop(x, w):
    return jax.lax.fori_loop(0, 8, lambda _, x: jnp.tanh(x @ w), x)


@program((8192, 4096))
def reductions(x):
    return jnp.max(x, 0), jnp.sum(x, 1), jnp.mean(jnp.exp(x))


@program((64, 1024, 128), (64, 128, 1024))
def batched_matmul(x, y):
    return jnp.einsum("bij,bjk->bik", x, y)


@program((4096, 8192), (8192, 4096))
def transposed(x, y):
    return (x + y.T) * 2, (x.T - y) * 2


@program((102_400, 1024), (1024, 102_400))
def result_too_large(x, w):
    return x @ w


@program((131_072, 1024), (1024, 65_536), (65_536, 1024))
def activations_too_large(x, up, down):
    return jnp.sort(x @ up, axis=0) @ down


@program((64, 1024), *[(1_200_000, 1024)] * 4, donated=(1, 2, 3, 4))
def state_too_large(x, *state):
    return [each + jnp.sum(x) for each in state]


@program(
    (16384, 1024),
    (1024, 4096),
    (4096, 1024),
    donated=(1, 2),
    mesh=("data",),
    specs=[PartitionSpec("data"), PartitionSpec(), PartitionSpec()],
    out_specs=[PartitionSpec(), PartitionSpec()],
)
def train_on_eight_replicas(x, *weights):
    return train_by_descent(x, *weights)


@program(
    (4096, 2048),
    (2048, 32768),
    (32768, 2048),
    mesh=("model",),
    specs=[PartitionSpec(), PartitionSpec(None, "model"), PartitionSpec("model", None)],
    out_specs=PartitionSpec(),
)
def forward_on_eight_cores(x, up, down):
    return jax.nn.relu(x @ up) @ down


def compiled(name):
    """Returns the compiler's numbers for a program."""
    function, arguments, donated, mesh, specs, out_specs = PROGRAMS[name]
    if mesh is None:
        device = devices("v5e:1x1", chips_per_host_bounds=(1, 1, 1))[0]
        shardings = {"in_shardings": SingleDeviceSharding(device)}
    else:
        of_mesh = functools.partial(NamedSharding, Mesh(np.array(devices("v5e:2x4")), mesh))
        shardings = {
            "in_shardings": jax.tree.map(of_mesh, tuple(specs), is_leaf=is_spec),
            "out_shardings": jax.tree.map(of_mesh, out_specs, is_leaf=is_spec),
        }
    lowered = jax.jit(function, donate_argnums=donated, **shardings).lower(*arguments)
    try:
        memory = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        return str(error)[:500]
    return {kind: getattr(memory, f"{kind}_size_in_bytes") for kind in KINDS}


def is_spec(value):
    return isinstance(value, PartitionSpec)


@functools.cache
def devices(name, **options):
    return topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices


if __name__ == "__main__":
    print(json.dumps(compiled(sys.argv[2]) if len(sys.argv) > 2 else list(PROGRAMS)))
