"""Cells, decoders and random fields of contrib. Runs with TensorFlow 1.15 too."""

import numpy as np
import tensorflow as tf

from tests.compat.contrib.graph_facts import input_values

v1 = tf.compat.v1


def _run(cell, x, name=None):
    with v1.variable_scope(name or "rnn"):
        outputs, state = v1.nn.dynamic_rnn(cell, x, sequence_length=[5, 3], dtype=tf.float32)
    return outputs, state


def cells(contrib):
    x = tf.constant(input_values(2, 5, 4))
    rnn = contrib.rnn
    made = {
        "block": rnn.LSTMBlockCell(3),
        "peephole": rnn.LSTMBlockCell(3, forget_bias=0.5, cell_clip=0.3, use_peephole=True),
        "normalized": rnn.LayerNormBasicLSTMCell(3),
        "plain": rnn.LayerNormBasicLSTMCell(3, layer_norm=False),
        "input": rnn.InputProjectionWrapper(v1.nn.rnn_cell.GRUCell(3), 2, activation=tf.tanh),
        "output": rnn.OutputProjectionWrapper(v1.nn.rnn_cell.GRUCell(3), 2),
    }
    fetches = {}
    for name in sorted(made):
        outputs, state = _run(made[name], x, name)
        fetches[name] = outputs
        if name == "peephole":
            fetches["state"] = state[0]
    return fetches


def cudnn_cells(contrib):
    x = tf.constant(input_values(2, 5, 4))
    return {
        "lstm": _run(contrib.cudnn_rnn.CudnnCompatibleLSTMCell(3), x, "lstm")[0],
        "gru": _run(contrib.cudnn_rnn.CudnnCompatibleGRUCell(3), x, "gru")[0],
    }


def stacked_both_ways(contrib):
    x = tf.constant(input_values(2, 5, 4))
    cell = v1.nn.rnn_cell.LSTMCell
    outputs, forwards, backwards = contrib.rnn.stack_bidirectional_dynamic_rnn(
        [cell(3), cell(2)], [cell(3), cell(2)], x, dtype=tf.float32, sequence_length=[5, 3]
    )
    return {"outputs": outputs, "forwards": forwards[1][1], "backwards": backwards[0][0]}


def _decoded(contrib, helper, cell=None, state=None, **options):
    cell = cell or v1.nn.rnn_cell.GRUCell(4)
    state = cell.zero_state(2, tf.float32) if state is None else state
    layer = v1.layers.Dense(6, name="projection")
    decoder = contrib.seq2seq.BasicDecoder(cell, helper, state, output_layer=layer)
    return contrib.seq2seq.dynamic_decode(decoder, **options)


def decoding_in_training(contrib):
    x = tf.constant(input_values(2, 5, 4))
    helper = contrib.seq2seq.TrainingHelper(x, tf.constant([5, 3]))
    outputs, state, lengths = _decoded(contrib, helper, impute_finished=True)
    return {
        "outputs": outputs.rnn_output,
        "samples": outputs.sample_id,
        "state": state,
        "lengths": lengths,
    }


def decoding_by_itself(contrib):
    embedding = tf.constant(input_values(6, 4))
    helper = contrib.seq2seq.GreedyEmbeddingHelper(embedding, [1, 2], 0)
    outputs, _, lengths = _decoded(contrib, helper, maximum_iterations=7, output_time_major=True)
    return {"outputs": outputs.rnn_output, "samples": outputs.sample_id, "lengths": lengths}


def decoding_with_functions(contrib):
    def start():
        return tf.constant([False, False]), tf.constant(input_values(2, 4))

    def sample(time, outputs, state):
        return tf.cast(tf.argmax(outputs, -1), tf.int32)

    def following(time, outputs, state, sample_ids):
        return tf.tile([time >= 2], [2]), outputs[:, :4], state

    helper = contrib.seq2seq.CustomHelper(start, sample, following)
    outputs, _, lengths = _decoded(contrib, helper)
    return {"outputs": outputs.rnn_output, "lengths": lengths}


def _attention_case(name, make):
    def case(contrib):
        memory = tf.constant(input_values(2, 6, 3))
        cell, start = make(contrib.seq2seq, memory, tf.constant([6, 4]))
        x = tf.constant(input_values(2, 5, 4))
        helper = contrib.seq2seq.TrainingHelper(x, tf.constant([5, 3]))
        state = cell.zero_state(2, tf.float32)
        state = state.clone(cell_state=start) if start is not None else state
        outputs, last, _ = _decoded(contrib, helper, cell, state)
        fetches = {"outputs": outputs.rnn_output, "attention": last.attention}
        if not isinstance(last.alignment_history, tuple):
            fetches["history"] = last.alignment_history.stack()
        return fetches

    case.__name__ = name
    return case


def _luong(seq2seq, memory, lengths):
    mechanism = seq2seq.LuongAttention(4, memory, lengths)
    cell = v1.nn.rnn_cell.GRUCell(4)
    return seq2seq.AttentionWrapper(cell, mechanism, 5, alignment_history=True), tf.ones([2, 4])


def _luong_scaled(seq2seq, memory, lengths):
    mechanism = seq2seq.LuongAttention(4, memory, scale=True)
    cell = v1.nn.rnn_cell.LSTMCell(4)
    return seq2seq.AttentionWrapper(cell, mechanism, output_attention=False), None


def _bahdanau(seq2seq, memory, lengths):
    mechanism = seq2seq.BahdanauAttention(4, memory, lengths)
    return seq2seq.AttentionWrapper(v1.nn.rnn_cell.GRUCell(4), mechanism, 5), None


def _both(seq2seq, memory, lengths):
    first = seq2seq.BahdanauAttention(4, memory, lengths, normalize=True)
    second = seq2seq.LuongAttention(4, memory)
    return seq2seq.AttentionWrapper(v1.nn.rnn_cell.GRUCell(4), [first, second], [2, 3]), None


def _beam(contrib, weight, steps):
    embedding = tf.constant(3.0 * input_values(6, 4))
    cell = v1.nn.rnn_cell.GRUCell(4)
    start = contrib.seq2seq.tile_batch(tf.constant(input_values(2, 4)), 3)
    layer = v1.layers.Dense(6, name="projection")
    decoder = contrib.seq2seq.BeamSearchDecoder(
        cell, embedding, [1, 2], 0, start, 3, layer, length_penalty_weight=weight
    )
    return contrib.seq2seq.dynamic_decode(decoder, maximum_iterations=steps)


def _beam_case(name, weight, steps):
    def case(contrib):
        outputs, state, lengths = _beam(contrib, weight, steps)
        made = outputs.beam_search_decoder_output
        return {
            "ids": outputs.predicted_ids,
            "scores": made.scores,
            "parents": made.parent_ids,
            "log_probs": state.log_probs,
            "lengths": lengths,
        }

    case.__name__ = name
    return case


def trees(contrib):
    ids = tf.constant([[[1, 2, 3]], [[4, 5, 6]], [[7, 8, 9]], [[2, 1, 0]]])
    parents = tf.constant([[[0, 0, 0]], [[0, 1, 1]], [[2, 1, 2]], [[1, 0, 2]]])
    return {
        "whole": contrib.seq2seq.gather_tree(ids, parents, [4], 10),
        "short": contrib.seq2seq.gather_tree(ids, parents, [3], 10),
        "ended": contrib.seq2seq.gather_tree(ids, parents, [4], 5),
    }


def random_fields(contrib):
    crf = contrib.crf
    scores = tf.constant(input_values(3, 4, 3))
    tags = tf.constant([[0, 1, 2, 0], [2, 2, 1, 0], [1, 0, 0, 0]])
    lengths = tf.constant([4, 3, 1])
    likelihood, transitions = crf.crf_log_likelihood(scores, tags, lengths)
    found, best = crf.crf_decode(scores, transitions, lengths)
    gradient = tf.gradients(tf.reduce_sum(likelihood), [transitions, scores])
    path, score = crf.viterbi_decode(input_values(4, 3), np.float32(input_values(3, 3)))
    return {
        "likelihood": likelihood,
        "norm": crf.crf_log_norm(scores, lengths, transitions),
        "best": best,
        "tags": found * tf.sequence_mask(lengths, 4, tf.int32),
        "gradient": gradient[0],
        "of_scores": gradient[1],
        "path": tf.constant(path),
        "score": tf.constant(score),
    }


CASES = (
    cells,
    cudnn_cells,
    stacked_both_ways,
    decoding_in_training,
    decoding_by_itself,
    decoding_with_functions,
    _attention_case("attention_luong", _luong),
    _attention_case("attention_luong_scaled", _luong_scaled),
    _attention_case("attention_bahdanau", _bahdanau),
    _attention_case("attention_to_two", _both),
    _beam_case("beams", 0.0, 6),
    _beam_case("beams_with_penalty", 1.0, 9),
    trees,
    random_fields,
)
