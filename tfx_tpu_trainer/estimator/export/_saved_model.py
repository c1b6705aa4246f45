"""Writes a SavedModel for CPU and TPU hosts into a version folder that appears complete."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfx_tpu_trainer._support.file_systems import (
    check_can_be_opened,
    check_is_no_pattern,
    path_text,
)
from tfx_tpu_trainer._support.whole_files import commit_folder
from tfx_tpu_trainer.estimator._engine.checkpointing.checkpoint_errors import damage_explained
from tfx_tpu_trainer.estimator._engine.checkpointing.restored_variables import (
    find_misfit,
    restored_by,
)
from tfx_tpu_trainer.estimator._engine.sessions.lifecycle import placed_by_need
from tfx_tpu_trainer.estimator._modes import ModeKeys
from tfx_tpu_trainer.estimator.export._meta_graph import (
    MetaGraph,
    ModelCall,
    build_cpu_meta_graph,
    build_supervised_meta_graph,
)
from tfx_tpu_trainer.estimator.export._tpu_metagraph import build_tpu_meta_graph

v1 = tf.compat.v1


_logger = tf.get_logger()

ASSETS_EXTRA_FOLDER = "assets.extra"

MAX_ATTEMPTS = 10
# A server considers a version with one of these files complete. On an object store, files appear one by one, so these
# are moved last.
_LAST = ("saved_model.pb", "saved_model.pbtxt")

# In this order: the first graph saves the variables, and only the training's has the optimizer's slots.
_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


def export_saved_model(
    *,
    export_dir_base: str | os.PathLike[str],
    call_model: ModelCall,
    input_receiver_fns: Mapping[str, Callable[[], Any]],
    checkpoint_path: str,
    export_to_cpu: bool,
    export_to_tpu: bool,
    api_version: int,
    random_seed: int | None = None,
    session_config: v1.ConfigProto | None = None,
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    strip_default_attrs: bool = True,
) -> bytes:
    """Exports a model from a checkpoint, after building all its graphs."""
    if not export_to_cpu and not export_to_tpu:
        raise ValueError(
            "One of export_to_cpu and export_to_tpu must be true; both are false. Export for CPU "
            "hosts, TPU hosts or both."
        )
    if api_version not in (1, 2):
        raise ValueError(f"api_version must be 1 or 2, got: {api_version!r}.")
    check_receiver_fns(input_receiver_fns)
    assets_extra = _check_assets_extra(assets_extra)
    _check_base(export_dir_base)
    meta_graphs = list(
        build_meta_graphs(
            call_model,
            input_receiver_fns,
            export_to_cpu=export_to_cpu,
            export_to_tpu=export_to_tpu,
            api_version=api_version,
            random_seed=random_seed,
        )
    )
    if not meta_graphs:
        raise ValueError(
            f"No valid modes for exporting found. Got {input_receiver_fns.keys()}. Only "
            f"{ModeKeys.PREDICT!r} is exported for TPU hosts: set export_to_cpu=True."
        )
    return export_meta_graphs(
        meta_graphs,
        export_dir_base=export_dir_base,
        checkpoint_path=checkpoint_path,
        session_config=session_config,
        assets_extra=assets_extra,
        as_text=as_text,
        strip_default_attrs=strip_default_attrs,
    )


def export_meta_graphs(
    meta_graphs: Sequence[MetaGraph],
    *,
    export_dir_base: str | os.PathLike[str],
    checkpoint_path: str,
    session_config: v1.ConfigProto | None = None,
    assets_extra: Mapping[str, str] | None = None,
    as_text: bool = False,
    strip_default_attrs: bool = True,
) -> bytes:
    """Exports metagraphs with the variables of a checkpoint, after comparing them with it."""
    # The variables are written once, with the first graph, on any machine: no TPU op is run, or even placed.
    # The graph for TPUs restores what the first graph saved, so comparing the two suffices.
    for meta_graph in meta_graphs:
        if meta_graph is meta_graphs[0] or tf.saved_model.TPU not in meta_graph.tags:
            check_variables_in_checkpoint(meta_graph, checkpoint_path)
    # All metagraphs share one set of variables: the first one's saver writes it, and the others restore by name.
    for meta_graph in meta_graphs[1:]:
        check_same_variables(meta_graph, meta_graphs[0])

    with version_folder(os.fsdecode(export_dir_base)) as (temporary, final):
        _write(
            temporary,
            meta_graphs,
            checkpoint_path=checkpoint_path,
            session_config=session_config,
            as_text=as_text,
            strip_default_attrs=strip_default_attrs,
        )
        with write_errors_explained(os.path.dirname(temporary)):
            _copy_assets_extra(assets_extra or {}, temporary)
    return final.encode()


def check_receiver_fns(input_receiver_fns: Mapping[str, Callable[[], Any]]) -> None:
    """Checks that there are modes to export, with a function for each."""
    if not input_receiver_fns or not set(input_receiver_fns) <= set(_MODES):
        raise ValueError(
            f"No valid modes for exporting found. Got {input_receiver_fns.keys()}. The modes are "
            f"{', '.join(map(repr, _MODES))}."
        )
    for mode, receiver_fn in input_receiver_fns.items():
        if not callable(receiver_fn):
            raise ValueError(
                f"An input_receiver_fn must be defined. That of mode {mode!r} is {receiver_fn!r}, "
                "which is not a function. Use "
                "build_parsing_serving_input_receiver_fn(feature_spec) for serialised Examples."
            )


def build_meta_graphs(
    call_model: ModelCall,
    input_receiver_fns: Mapping[str, Callable[[], Any]],
    *,
    export_to_cpu: bool,
    export_to_tpu: bool,
    api_version: int,
    random_seed: int | None,
) -> Iterator[MetaGraph]:
    """Yields what `export_saved_model` would write for the same arguments."""
    for mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
        if mode not in input_receiver_fns:
            continue
        if export_to_tpu:
            _logger.warning(
                "TPUEstimator only handles mode PREDICT for exporting when `export_to_tpu` is `True`; "
                "Mode %s will be ignored for TPU.",
                mode,
            )
        if export_to_cpu:
            yield build_supervised_meta_graph(
                call_model, input_receiver_fns[mode], mode=mode, random_seed=random_seed
            )
    if ModeKeys.PREDICT not in input_receiver_fns:
        return
    receiver_fn = input_receiver_fns[ModeKeys.PREDICT]
    if export_to_cpu:
        yield build_cpu_meta_graph(call_model, receiver_fn, random_seed=random_seed)
    if export_to_tpu:
        yield build_tpu_meta_graph(
            call_model, receiver_fn, api_version=api_version, random_seed=random_seed
        )


def _write(
    folder: str,
    meta_graphs: Sequence[MetaGraph],
    *,
    checkpoint_path: str,
    session_config: v1.ConfigProto | None,
    as_text: bool,
    strip_default_attrs: bool,
) -> None:
    builder, base = v1.saved_model.Builder(folder), os.path.dirname(folder)
    for index, meta_graph in enumerate(meta_graphs):
        with meta_graph.graph.as_default():
            options = {
                "signature_def_map": dict(meta_graph.signatures),
                # On every metagraph; otherwise the vocabularies of later ones are not found.
                "assets_collection": v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
                "main_op": meta_graph.init_op,
                "saver": meta_graph.saver,
                "strip_default_attrs": strip_default_attrs,
            }
            tags = list(meta_graph.tags)
            # Later graphs share the first one's variables, and need no session.
            if index:
                with write_errors_explained(base):
                    builder.add_meta_graph(tags, **options)
                continue
            # The session only restores and saves variables. Other ops, such as a TPU's, may have no device here and are
            # not run.
            with v1.Session(config=placed_by_need(session_config)) as session:
                _restore(meta_graph.saver, session, checkpoint_path)
                with write_errors_explained(base):
                    builder.add_meta_graph_and_variables(session, tags, **options)
    with write_errors_explained(base):
        builder.save(as_text=as_text)


def _restore(saver: v1.train.Saver, session: v1.Session, checkpoint_path: str) -> None:
    try:
        with damage_explained(checkpoint_path):
            saver.restore(session, checkpoint_path)
    except tf.errors.DataLossError:
        raise
    except tf.errors.OpError as error:
        reason = reason_of(error).rstrip(".")
        advice = ""
        if "Cannot assign a device" in reason:
            advice = " Set allow_soft_placement=True in the session_config of RunConfig."
        raise ValueError(
            f"Could not restore the checkpoint {checkpoint_path}: {reason}.{advice}"
        ) from error


def _check_base(base: Any) -> None:
    if not isinstance(base, str | bytes | os.PathLike) or "\0" in os.fsdecode(base):
        raise ValueError(
            f"export_dir_base={base!r} is not a path: give the folder of the versions."
        )


def _check_assets_extra(assets_extra: Mapping[str, str] | None) -> dict[str, str]:
    checked = {}
    if not isinstance(assets_extra, Mapping | None):
        raise ValueError(
            f"assets_extra must be a dict of a path below {ASSETS_EXTRA_FOLDER}/ -> a file, got: "
            f"{assets_extra!r}."
        )
    for relative, source in (assets_extra or {}).items():
        relative, source = os.fsdecode(relative), os.fsdecode(source)
        normal = os.path.normpath(relative)
        if os.path.isabs(normal) or normal.split(os.sep)[0] in ("..", "."):
            raise ValueError(
                f"A key of assets_extra must be a path below {ASSETS_EXTRA_FOLDER}/, got: "
                f"{relative!r}."
            )
        if not tf.io.gfile.exists(source) or tf.io.gfile.isdir(source):
            raise ValueError(f"assets_extra[{relative!r}] must be a file, got: {source!r}.")
        checked[normal] = source
    return checked


def _copy_assets_extra(assets_extra: Mapping[str, str], folder: str) -> None:
    for relative, source in assets_extra.items():
        destination = os.path.join(folder, ASSETS_EXTRA_FOLDER, relative)
        tf.io.gfile.makedirs(os.path.dirname(destination))
        tf.io.gfile.copy(source, destination)


@contextlib.contextmanager
def version_folder(base: str) -> Iterator[tuple[str, str]]:
    """Reserves the next version in a folder, and moves it to its place when everything is written."""
    # A version is the time in seconds since the epoch. Files go to its sibling `temp-<version>`, which TensorFlow
    # Serving ignores, and which is renamed at the end. If the block raises, the sibling is removed. If the process is
    # killed, it stays and does no harm.
    check_can_be_opened("export_dir_base", base)
    with write_errors_explained(base):
        temporary, final = _reserve(base)
    try:
        yield temporary, final
        with write_errors_explained(base):
            commit_folder(temporary, final, last=_LAST)
    except BaseException:
        with contextlib.suppress(tf.errors.OpError):
            tf.io.gfile.rmtree(temporary)
        raise


@contextlib.contextmanager
def write_errors_explained(base: str) -> Iterator[None]:
    """Adds the path to a write error, since TensorFlow may report only a file name, or less."""
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        raise RuntimeError(
            f"Can't export to {base}: {reason_of(error)}. Nothing remains of this version. The "
            "folder must be writable, and its disk must have room."
        ) from error


def _reserve(base: str) -> tuple[str, str]:
    tf.io.gfile.makedirs(base)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        version = str(int(time.time()))
        temporary, final = os.path.join(base, f"temp-{version}"), os.path.join(base, version)
        # The temporary folder is the lock: of two processes that export in the same second, one makes it and the other
        # waits for the next second.
        if not tf.io.gfile.exists(final) and _make_new(temporary):
            return temporary, final
        _logger.warning(
            "Directory %s already exists; retrying (attempt %d/%d).", final, attempt, MAX_ATTEMPTS
        )
        time.sleep(1)
    raise RuntimeError(
        f"Failed to obtain a unique export directory name after {MAX_ATTEMPTS} attempts, one a "
        f"second, in {base}: others took these names. Give each process that exports its "
        "own folder."
    )


def _make_new(path: str) -> bool:
    """Makes a folder; returns whether it is new, so two exporters never share one."""
    if tf.io.gfile.exists(path):
        return False
    try:
        tf.io.gfile.mkdir(path)
    except tf.errors.AlreadyExistsError:
        return False
    return True


def reason_of(error: Exception) -> str:
    """Returns an error's message in one line."""
    # An error of a graph quotes all Python frames in which the op was made, on indented lines; here those are only the
    # exporter's.
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    # A session's error has its frames first, then "Node: '...'", then the reason.
    message = message.rpartition("\nNode: ")[2] if "\nNode: " in message else message
    lines = [
        line
        for line in message.splitlines()
        if line and not line[0].isspace() and not line.startswith("'")
    ]
    return " ".join(lines).rstrip(".")


def find_checkpoint(checkpoint_path: str | None, *, model_dir: str, warm_start: Any = None) -> str:
    """Returns the checkpoint to export, after checking that it exists."""
    if not checkpoint_path and warm_start is not None:
        checkpoint_path = warm_start.ckpt_to_initialize_from
        if tf.io.gfile.isdir(checkpoint_path):
            checkpoint_path = tf.train.latest_checkpoint(checkpoint_path)
    if not checkpoint_path:
        raise ValueError(
            f"Couldn't find trained model at {model_dir}: it has no checkpoint to export. Train "
            "before you export, or name a checkpoint_path."
        )
    checkpoint_path = path_text("checkpoint_path", checkpoint_path)
    check_is_no_pattern("checkpoint_path", checkpoint_path)
    if not tf.io.gfile.exists(f"{checkpoint_path}.index"):
        raise ValueError(
            f"Couldn't find trained model at {checkpoint_path}: this checkpoint does not exist. "
            "Train first, or give the checkpoint_path of a trained model "
            "(tf.train.latest_checkpoint(model_dir) returns it)."
        )
    return checkpoint_path


def check_variables_in_checkpoint(meta_graph: MetaGraph, checkpoint_path: str) -> None:
    """Checks that a checkpoint has every variable that a metagraph restores, in its shape."""
    # Restoring would not notice another shape: a resource variable accepts any.
    misfit = find_misfit(checkpoint_path, restored_variables(meta_graph))
    if misfit is not None:
        raise ValueError(
            "Could not load all requested variables from checkpoint. Please make sure your "
            "model_fn does not expect variables that were not saved in the checkpoint, and builds "
            f"the model as it was trained. With mode `{meta_graph.mode}`, tags "
            f"{list(meta_graph.tags)}: {misfit} Checkpoint: {checkpoint_path}."
        )


def check_same_variables(meta_graph: MetaGraph, first: MetaGraph) -> None:
    """Checks that a further metagraph restores only variables that the first one saves."""
    missing = sorted(set(restored_variables(meta_graph)) - set(restored_variables(first)))
    if missing:
        raise ValueError(
            f"The graph tagged {list(meta_graph.tags)} has variables that the one tagged "
            f"{list(first.tags)} lacks: {', '.join(map(repr, missing))}. The SavedModel holds only the "
            "variables of the latter; model_fn must create the same variables, under the same "
            "names, for both."
        )


def restored_variables(meta_graph: MetaGraph) -> dict[str, tf.TensorSpec]:
    """Returns the names that a metagraph's saver looks up in a checkpoint."""
    return restored_by(meta_graph.saver, meta_graph.graph)
