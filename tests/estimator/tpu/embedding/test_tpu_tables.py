"""Embeddings under a TPUStrategy: the graph of a step, the tables' way to the TPU, and what it would look up."""

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.bad_input import case, row
from tests.estimator._engine import fake_tpu
from tests.estimator.tpu.embedding import embedded
from tests.estimator.tpu.embedding.embedded import CoreMemory
from tests.sweeps import mostly_swept
from tfx_tpu_trainer.estimator import tpu
from tfx_tpu_trainer.estimator._engine.tracing import fresh_graph
from tfx_tpu_trainer.estimator.tpu import experimental
from tfx_tpu_trainer.estimator.tpu.embedding import tpu_configs

v1 = tf.compat.v1

pytestmark = pytest.mark.matrix

REPLICAS = 2
ADAGRAD = experimental.AdagradParameters(0.1)
PARAMETERS = {
    "sgd": experimental.StochasticGradientDescentParameters(0.1),
    "adagrad": ADAGRAD,
    "adam": experimental.AdamParameters(0.05),
    "ftrl": experimental.FtrlParameters(0.1, l1_regularization_strength=0.01),
}
SPARSE_CORES = {"feature": fake_tpu.Feature.V2, "sparse_cores": 4}
EMBEDDING_CORES = {"feature": fake_tpu.Feature.V1}

# One table of each kind of feature: weighted ids, one dense id a row, positions of a sequence.
TABLES = {
    "words": experimental.TableConfig(embedded.WORDS, 4, combiner="mean"),
    "tags": experimental.TableConfig(embedded.TAGS, 3, combiner=None),
    "visited": experimental.TableConfig(7, 4, combiner="sqrtn"),
}
FEATURES = {
    "word": experimental.FeatureConfig("words", weight_key="weight"),
    "tag": experimental.FeatureConfig("tags"),
    "visits": experimental.FeatureConfig("visited", max_sequence_length=2),
}


def kinds_input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    random = np.random.RandomState(2)
    words, tags, labels = embedded.data()
    there = random.uniform(size=(embedded.ROWS, 3, 2)) < 0.6
    visits = np.where(there, random.randint(0, 7, there.shape), -1)
    ids = embedded.sparse(words)
    features = {
        "word": ids,
        "weight": tf.SparseTensor(
            ids.indices, tf.cast(ids.values % 3 + 1, tf.float32), ids.dense_shape
        ),
        "tag": tags,
        "visits": embedded.sparse(visits),
    }
    rows = tf.data.Dataset.from_tensor_slices((features, labels)).repeat()
    return rows.batch(params["batch_size"], drop_remainder=True)


def kinds_activations(features: dict[str, tf.Tensor]) -> tf.Tensor:
    # Sequences come with their lengths; a model divides by those.
    visits = tf.reshape(features["visits"], [-1, 2 * 4])
    return tf.concat([features["word"], features["tag"], visits], axis=1)


def kinds_spec(parameters: Any = ADAGRAD) -> Any:
    return experimental.EmbeddingConfigSpec(
        feature_to_config_dict=FEATURES,
        table_to_config_dict=TABLES,
        optimization_parameters=parameters,
    )


def estimator_of(folder: Any, strategy: Any, *, parameters: Any = ADAGRAD, **options: Any) -> Any:
    return embedded.under_strategy(tpu, folder, parameters, strategy, **options)


def with_kinds(folder: Any, strategy: Any, parameters: Any = ADAGRAD, **options: Any) -> Any:
    model_fn = embedded.model_fn_for(tpu, activations=kinds_activations)
    spec = kinds_spec(parameters)
    return estimator_of(folder, strategy, model_fn=model_fn, spec=spec, **options)


@contextlib.contextmanager
def creator_of_training(estimator: Any, input_fn: Any = embedded.input_fn, **options: Any) -> Any:
    """The creator of the session that a training would run in."""
    strategy = estimator.config.train_distribute
    with fresh_graph():
        place = estimator._calls.under_strategy(input_fn, "train", strategy)
        plan, _ = place.plan_training(steps=2, max_steps=None)
        yield plan.session_creator(scaffold=v1.train.Scaffold(), **options)


@pytest.fixture
def memory(monkeypatch) -> CoreMemory:
    return CoreMemory(monkeypatch)


# How the ops begin by which SparseCores look up and train; how they end depends on TensorFlow's version.
LOOKUP = "XlaSparseDenseMatmulWith"
GRADIENTS = {
    "sgd": "XlaSparseDenseMatmulGradWithSgd",
    "adagrad": "XlaSparseDenseMatmulGradWithAdagrad",
    "adam": "XlaSparseDenseMatmulGradWithAdam",
    "ftrl": "XlaSparseDenseMatmulGradWithFtrl",
}


def count(ops: Mapping[str, int], start: str) -> int:
    return sum(number for op, number in ops.items() if op.startswith(start))


def assert_ids_stay_on_the_host(graph: tf.Graph) -> None:
    on_tpu, on_host = fake_tpu.split_by_place(graph)
    assert on_host["DeserializeManySparse"] and not on_tpu["DeserializeManySparse"]
    # The trace's own lookups and updates are left out.
    for lookup in ("ResourceGather", "SparseSegmentMean", "ResourceScatterUpdate"):
        assert not on_tpu[lookup] and not on_host[lookup]


@mostly_swept("optimizer", GRADIENTS, kept=["adam"])
def test_sparse_cores_look_up_and_train_in_the_replicas_program(tmp_path, optimizer):
    strategy = fake_tpu.strategy_of(REPLICAS, **SPARSE_CORES)
    estimator = with_kinds(tmp_path, strategy, PARAMETERS[optimizer])
    with creator_of_training(estimator, kinds_input_fn) as creator:
        graph = fake_tpu.traced_steps(creator)
    assert_ids_stay_on_the_host(graph)
    on_tpu, on_host = fake_tpu.split_by_place(graph)
    # All three tables are of one padded width and optimizer: a single stack.
    assert count(on_tpu, LOOKUP) == count(on_tpu, GRADIENTS[optimizer]) == 1
    preprocessing = ("ConvertToCoo", "ConvertToListOfSparseCoreCoo")
    assert sum(count(on_host, start) for start in preprocessing) == len(FEATURES)
    assert not any(count(on_tpu, start) for start in preprocessing)


def test_embedding_cores_get_ids_from_the_host_and_gradients_from_the_replicas(tmp_path, memory):
    strategy = fake_tpu.strategy_of(REPLICAS, **EMBEDDING_CORES)
    with creator_of_training(with_kinds(tmp_path, strategy), kinds_input_fn) as creator:
        graph = fake_tpu.traced_steps(creator)
    assert_ids_stay_on_the_host(graph)
    on_tpu, on_host = fake_tpu.split_by_place(graph)
    assert on_host["EnqueueTPUEmbeddingArbitraryTensorBatch"] == REPLICAS
    assert on_tpu["RecvTPUEmbeddingActivations"] == on_tpu["SendTPUEmbeddingGradients"] == 1
    enqueued = [
        node.attr["device_ordinal"].i
        for node in fake_tpu.nodes_of(graph)
        if node.op == "EnqueueTPUEmbeddingArbitraryTensorBatch"
    ]
    assert sorted(enqueued) == [0, 1]


@mostly_swept("hardware", ["sparse", "embedding"], kept=["embedding"])
def test_an_evaluation_looks_up_and_trains_nothing(tmp_path, memory, hardware):
    options = SPARSE_CORES if hardware == "sparse" else EMBEDDING_CORES
    strategy = fake_tpu.strategy_of(REPLICAS, **options)
    estimator = with_kinds(tmp_path, strategy)
    with fresh_graph():
        place = estimator._calls.under_strategy(kinds_input_fn, "eval", strategy)
        plan, _ = place.plan_evaluation(steps=1)
        creator = plan.session_creator(scaffold=v1.train.Scaffold())
        session = creator.create_session()
        steps = creator._steps

        def trace() -> tf.Graph:
            element = steps._feed.distribute(next(steps._groups))
            return steps._function.get_concrete_function(element).graph

        graph = steps._feed.eager.run(trace)
        session.close()
    assert_ids_stay_on_the_host(graph)
    on_tpu, _ = fake_tpu.split_by_place(graph)
    assert count(on_tpu, LOOKUP) + count(on_tpu, "RecvTPUEmbeddingActivations") == 1
    assert not any("Grad" in op for op in on_tpu)


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


@mostly_swept(
    ("hardware", "optimizer"),
    [(hardware, name) for hardware in ("sparse", "embedding") for name in PARAMETERS],
    kept=[("sparse", "adam"), ("embedding", "adagrad")],
)
def test_a_checkpoint_of_emulated_cores_goes_to_the_tpu_and_back(
    tmp_path, memory, hardware, optimizer
):
    """Tables and slots are as before when they are fetched from where the steps would have them."""
    emulated = embedded.estimator(
        tpu,
        tmp_path,
        kinds_spec(PARAMETERS[optimizer]),
        embedded.model_fn_for(tpu, activations=kinds_activations),
        cores=2,
    )
    emulated.train(kinds_input_fn, steps=3)
    expected = embedded.variables(emulated)
    options = SPARSE_CORES if hardware == "sparse" else EMBEDDING_CORES
    strategy = fake_tpu.strategy_of(REPLICAS, **options)
    estimator = with_kinds(tmp_path, strategy, PARAMETERS[optimizer])
    with creator_of_training(estimator, kinds_input_fn, checkpoint_dir=str(tmp_path)) as creator:
        variables = {variable.op.name: variable for variable in v1.global_variables()}
        saver = v1.train.Saver()
        session = creator.create_session()
        assert_same(session.run(variables), expected)
        # Nothing is taken from the session: what a step has changed is what is saved.
        steps = creator._steps
        steps._feed.eager.run(_change, steps._tables, memory)
        session._mark_stale()
        path = saver.save(session, str(tmp_path / "of_tpu"))
        session.close()
    reader = tf.train.load_checkpoint(path)
    for name, value in expected.items():
        added = 1 if name.split("/")[0] in TABLES else 0
        np.testing.assert_array_equal(reader.get_tensor(name), value + added, err_msg=name)


@pytest.mark.skipif(
    not hasattr(tf.tpu.experimental.embedding, "SparseCoreEmbeddingConfig"),
    reason="TensorFlow has no SparseCoreEmbeddingConfig",
)
def test_tensorflows_settings_for_sparse_cores_are_handed_on(tmp_path):
    settings = tf.tpu.experimental.embedding.SparseCoreEmbeddingConfig(disable_table_stacking=True)
    spec = experimental.EmbeddingConfigSpec(
        feature_to_config_dict=FEATURES,
        table_to_config_dict=TABLES,
        optimization_parameters=ADAGRAD,
        sparse_core_embedding_config=settings,
    )
    strategy = fake_tpu.strategy_of(REPLICAS, **SPARSE_CORES)
    model_fn = embedded.model_fn_for(tpu, activations=kinds_activations)
    estimator = estimator_of(tmp_path, strategy, model_fn=model_fn, spec=spec)
    with creator_of_training(estimator, kinds_input_fn) as creator:
        on_tpu, _ = fake_tpu.split_by_place(fake_tpu.traced_steps(creator))
    assert count(on_tpu, LOOKUP) == count(on_tpu, GRADIENTS["adagrad"]) == len(TABLES)


def _change(tables: Any, memory: CoreMemory) -> None:
    """Adds 1 to every number that the TPU keeps."""
    if memory.tables:
        variables = [value for kept in memory.tables.values() for value in kept.values()]
    else:
        stacks = tables._embedding.variables.values()
        variables = [each for slots in stacks for slot in slots.values() for each in slot.values]
    for variable in variables:
        variable.assign(variable.numpy() + 1)
    tables.step()


def of_one_batch(estimator: Any) -> tuple[Any, Any, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The tables; ids, weights; the tables' values and what the engine itself looks up."""
    with creator_of_training(estimator, kinds_input_fn) as creator:
        session = creator.create_session()
        steps, tables = creator._steps, creator._steps._tables
        values = session.run(dict(tables._lookups.tables))
        batch = next(iter(steps._feed.eager.run(lambda: list(_input_of(estimator).take(1)))))
        flat = [tensor.numpy() for tensor in tf.nest.flatten(batch, expand_composites=True)]
        feed = dict(zip((p.name for p in steps._feed.placeholders[:-1]), flat, strict=True))
        lookups = tables._lookups
        wanted = [dict(lookups.ids), dict(lookups.weights), dict(lookups.activations)]
        found = v1.Session.run(session, wanted, feed)
        session.close()
    return tables, found[0], found[1], values, found[2]


def _input_of(estimator: Any) -> tf.data.Dataset:
    place = estimator._calls.under_strategy(
        kinds_input_fn, "train", estimator.config.train_distribute
    )
    call = place.embed(place.call, place.strategy).call
    return call.call_input_fn(place.added, tf.distribute.InputContext())


def _sparse(value: Any) -> Any:
    return (
        tf.SparseTensor(*value) if isinstance(value, v1.SparseTensorValue) else tf.constant(value)
    )


def test_tensorflows_embedding_for_serving_looks_up_the_same(tmp_path):
    """The translated configuration, on a CPU, with the tables that the session has."""
    strategy = fake_tpu.strategy_of(REPLICAS, **SPARSE_CORES)
    tables, ids, weights, values, expected = of_one_batch(with_kinds(tmp_path, strategy))
    configs = tpu_configs.make_feature_configs(
        tables._plan, tables._samples, tpu_configs.StepRates()
    )
    serving = tf.tpu.experimental.embedding.TPUEmbeddingForServing(configs, optimizer=None)
    for config, variable in serving.embedding_tables.items():
        variable.assign(values[config.name])
    found = serving(
        {name: _sparse(value) for name, value in ids.items()},
        {name: _sparse(weights[name]) if name in weights else None for name in ids},
    )
    for name, value in expected.items():
        np.testing.assert_allclose(
            np.reshape(found[name], value.shape), value, rtol=1e-5, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize(
    ("hardware", "parameters", "tables"),
    [
        case(
            "estimator",
            "`embedding_config_spec` under a TPUStrategy of v5e",
            "TPUStrategyV2 (2 replicas)",
            "neither embedding cores nor SparseCores",
            "v5e",
            "use_tpu=False",
            values=({}, ADAGRAD, {}),
        ),
        case(
            "estimator",
            "an optimizer of embedding tables that TPUs lack",
            "Table words has MomentumParameters",
            "SparseCores use one of StochasticGradientDescentParameters",
            values=(SPARSE_CORES, experimental.MomentumParameters(0.1, 0.9), {}),
        ),
        case(
            "estimator",
            "embedding weights clipped on SparseCores",
            "Table words",
            "clip_weight_max",
            "TPUEmbeddingV2 ignores",
            values=(SPARSE_CORES, experimental.AdagradParameters(0.1, clip_weight_max=1.0), {}),
        ),
        case(
            "estimator",
            "`lazy_adam=False` on SparseCores",
            "Table words",
            "lazy_adam=False",
            "emulated cores",
            values=(SPARSE_CORES, experimental.AdamParameters(0.1, lazy_adam=False), {}),
        ),
        case(
            "estimator",
            "FTRL without an accumulator on a TPU",
            "Table words: initial_accumulator_value must be positive",
            "0.0",
            values=(
                SPARSE_CORES,
                experimental.FtrlParameters(0.1, initial_accumulator_value=0.0),
                {},
            ),
        ),
        case(
            "estimator",
            "embedding tables larger than a TPU's memory",
            "GiB on each of 2 TPU devices",
            "even a v5p has 95.74 GiB",
            "words, of 2,000,000,000 rows",
            values=(SPARSE_CORES, ADAGRAD, {"words": 2_000_000_000, "dimension": 160}),
        ),
        case(
            "estimator",
            "an embedding table of more rows than 32 bits number",
            "Table words has 3,000,000,000 rows",
            "at most 2,147,483,647",
            values=(SPARSE_CORES, ADAGRAD, {"words": 3_000_000_000}),
        ),
    ],
)
def test_what_a_tpu_cannot_embed_is_refused_before_anything_is_traced(
    tmp_path, refused, hardware, parameters, tables
):
    strategy = fake_tpu.strategy_of(REPLICAS, **hardware)
    rows, dimension = tables.get("words", embedded.WORDS), tables.get("dimension", 4)
    words = experimental.TableConfig(rows, dimension, combiner="mean")
    spec = experimental.EmbeddingConfigSpec(
        feature_to_config_dict=FEATURES,
        table_to_config_dict={**TABLES, "words": words},
        optimization_parameters=parameters,
    )
    estimator = estimator_of(tmp_path, strategy, spec=spec)
    with refused(ValueError):
        estimator.train(kinds_input_fn, steps=1)


@row(
    "estimator",
    "rows of a replica that its SparseCores can't share",
    "Feature word has 3 samples on a replica",
    "multiple of 4",
)
def test_samples_must_divide_over_the_sparse_cores(tmp_path, refused):
    strategy = fake_tpu.strategy_of(REPLICAS, **SPARSE_CORES)
    estimator = with_kinds(tmp_path, strategy, train_batch_size=6)
    with refused(ValueError):
        estimator.train(kinds_input_fn, steps=1)


@row(
    "estimator",
    "embeddings under a TPUStrategy, batches without `drop_remainder=True`",
    "Feature word has no static number of rows",
    "drop_remainder=True",
)
def test_rows_must_be_static(tmp_path, refused):
    def input_fn(params):
        return kinds_input_fn(params).unbatch().batch(params["batch_size"])

    estimator = with_kinds(tmp_path, fake_tpu.strategy_of(REPLICAS, **SPARSE_CORES))
    with refused(ValueError):
        estimator.train(input_fn, steps=1)


@row(
    "estimator",
    "embedding cores that were set up for other tables or batches",
    "embedding cores were set up for other tables, optimizers or batch sizes",
    "initialize_tpu_system",
)
def test_embedding_cores_are_set_up_once(tmp_path, refused, memory):
    strategy = fake_tpu.strategy_of(REPLICAS, **EMBEDDING_CORES)
    estimator = with_kinds(tmp_path, strategy, eval_batch_size=2 * embedded.BATCH)
    with creator_of_training(estimator, kinds_input_fn) as creator:
        creator.create_session().close()
    with creator_of_training(estimator, kinds_input_fn) as creator:
        creator.create_session().close()
    with refused(RuntimeError):
        estimator.evaluate(kinds_input_fn, steps=1)


@row(
    "estimator",
    "an evaluation on embedding cores while they train",
    "hold the tables of a training that is running",
    "eval_on_tpu=False",
)
def test_embedding_cores_are_not_taken_from_a_training(tmp_path, refused, memory):
    estimator = with_kinds(tmp_path, fake_tpu.strategy_of(REPLICAS, **EMBEDDING_CORES))
    with creator_of_training(estimator, kinds_input_fn) as creator:
        saver = v1.train.Saver()
        session = creator.create_session()
        saver.save(session, str(tmp_path / "model.ckpt"), global_step=0)
        with refused(RuntimeError):
            estimator.evaluate(kinds_input_fn, steps=1)
        session.close()


def test_the_rate_of_adam_corrects_its_bias():
    rates = tpu_configs.StepRates()
    rate = rates.rate(experimental.AdamParameters(0.1, beta1=0.8, beta2=0.9), None)
    assert rate is rates.rate(experimental.AdamParameters(0.1, beta1=0.8, beta2=0.9), None)
    with rates.at(tf.constant(2, tf.int64)):
        np.testing.assert_allclose(rate(), 0.1 * np.sqrt(1 - 0.9**3) / (1 - 0.8**3), rtol=1e-6)
