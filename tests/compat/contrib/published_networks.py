"""The variables of published networks: a program that builds one and prints its variables as JSON.

    python tests/compat/contrib/published_networks.py NETWORK

Without a network, and run by TensorFlow 1.15, it writes `published_variables.json` next to it:

    uv venv --python 3.7 /tmp/contrib
    uv pip install --python /tmp/contrib/bin/python tensorflow==1.15.5 "numpy<1.19" "protobuf<3.21"
    uv pip install --no-deps --target /tmp/networks bert-tensorflow==1.0.1 albert-tensorflow==1.1
    uv pip install --no-deps --target /tmp/more malaya==3.9.0 tf-models-official==2.1.0.dev2
    cp /tmp/more/malaya/transformers/electra/modeling.py /tmp/networks/electra_modeling.py
    cp /tmp/more/official/r1/resnet/resnet_model.py /tmp/networks/
    PYTHONPATH=/tmp/networks /tmp/contrib/bin/python tests/compat/contrib/published_networks.py

The network's modules are next to this program, or on the path: see FILES. Runs with TensorFlow 1.15,
and as a program of TensorFlow 1 under `python -m tfx_tpu_trainer.compat --repair`.
"""

import json
import pathlib
import subprocess
import sys

import tensorflow as tf

RECORDING = pathlib.Path(__file__).with_name("published_variables.json")
# Small sizes: names follow the pattern, two layers show it.
SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 16,
}
# Network -> its package, the needed files, and their place next to the program.
FILES = {
    "bert": ("bert-tensorflow==1.0.1", "bert", "bert"),
    "albert": ("albert-tensorflow==1.1", "albert", "albert"),
    "electra": (
        "malaya==3.9.0",
        "malaya/transformers/electra/modeling.py",
        "electra_modeling.py",
    ),
    "resnet": (
        "tf-models-official==2.1.0.dev2",
        "official/r1/resnet/resnet_model.py",
        "resnet_model.py",
    ),
}


def _ids(length=8):
    return tf.zeros([2, length], tf.int32)


def _masked_lm_head(run_pretraining, config, model):
    run_pretraining.get_masked_lm_output(
        config,
        model.get_sequence_output(),
        model.get_embedding_table(),
        _ids(3),
        _ids(3),
        tf.ones([2, 3]),
    )


def bert():
    """BERT with the heads that it is pretrained with."""
    from bert import modeling, run_pretraining

    config = modeling.BertConfig(**SIZES)
    model = modeling.BertModel(config, is_training=True, input_ids=_ids())
    _masked_lm_head(run_pretraining, config, model)
    run_pretraining.get_next_sentence_output(
        config, model.get_pooled_output(), tf.zeros([2], tf.int32)
    )


def albert():
    """ALBERT with the heads that it is pretrained with."""
    from albert import modeling, run_pretraining

    config = modeling.AlbertConfig(embedding_size=16, **SIZES)
    model = modeling.AlbertModel(config, is_training=True, input_ids=_ids())
    _masked_lm_head(run_pretraining, config, model)
    run_pretraining.get_sentence_order_output(
        config, model.get_pooled_output(), tf.zeros([2], tf.int32)
    )


def electra():
    """ELECTRA's discriminator, and its smaller generator."""
    import electra_modeling as modeling

    config = modeling.BertConfig(**SIZES)
    for scope, untied in (("electra", False), ("generator", True)):
        modeling.BertModel(
            config,
            True,
            _ids(),
            token_type_ids=_ids(),
            scope=scope,
            embedding_size=16,
            untied_embeddings=untied,
        )


def resnet():
    """The official ResNet of 50 layers."""
    import resnet_model

    model = resnet_model.Model(
        resnet_size=50,
        bottleneck=True,
        num_classes=10,
        num_filters=64,
        kernel_size=7,
        conv_stride=2,
        first_pool_size=3,
        first_pool_stride=2,
        block_sizes=[3, 4, 6, 3],
        block_strides=[1, 2, 2, 2],
        data_format="channels_last",
    )
    model(tf.zeros([2, 64, 64, 3]), True)


def resnet_v1():
    """The ResNet of slim, of 50 layers; TensorFlow 1.15 has it."""
    from tensorflow.contrib import slim
    from tensorflow.contrib.slim import nets

    with slim.arg_scope(nets.resnet_v1.resnet_arg_scope()):
        nets.resnet_v1.resnet_v1_50(tf.zeros([2, 64, 64, 3]), 10)


NETWORKS = {each.__name__: each for each in (bert, albert, electra, resnet, resnet_v1)}


def main():
    """Builds the network that the command line names."""
    with tf.Graph().as_default():
        NETWORKS[sys.argv[1]]()
        found = [
            [each.op.name, each.shape.as_list(), each.dtype.base_dtype.name]
            for each in tf.compat.v1.global_variables()
        ]
    print(json.dumps(sorted(found)))


def record():
    """Writes the recording: one network a process, since their programs define the same flags."""
    recorded = {}
    for name in NETWORKS:
        command = [sys.executable, __file__, name]
        said = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()
        recorded[name] = json.loads(said.strip().splitlines()[-1])
    lines = [
        json.dumps(name) + ": [\n" + ",\n".join(map(json.dumps, found)) + "\n]"
        for name, found in sorted(recorded.items())
    ]
    RECORDING.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main() if sys.argv[1:] else record()
