import io
import pathlib
import re
import tokenize

from tfx_tpu_trainer import estimator

ENGINE = pathlib.Path(estimator.__file__).parent / "_engine"

# Names of the API: what a TPUEstimatorSpec calls `host_call`, and a keyword of `extending`'s `slice_eval_metrics`.
OF_THE_API = re.compile(r"host_call\w*|\w*HostCall\w*|HostFunction|host_function|on_this_host")

# TensorFlow's own modules and classes, and the names of files in a model_dir.
OF_TENSORFLOW = re.compile(
    r"autograph\.core\S*|`TPUStrategy`|^from tensorflow\S* import.*|/host<number>-<step>"
)

PLACE = re.compile(
    r"(?<![A-Za-z])(?i:cores?|strateg(?:y|ies)|hosts?)(?![a-z])|(?:Core|Host|Strateg)[a-z]*"
)


def _names_and_prose(path):
    """Yields names, comments and docstrings of a module; what a program is told in strings is left out."""
    source = path.read_text()
    lines = source.splitlines()
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_docstring = (
            token.type == tokenize.STRING
            and previous
            in (
                tokenize.NEWLINE,
                tokenize.INDENT,
                tokenize.NL,
            )
            and token.string.startswith(('"""', 'r"""'))
        )
        is_import = token.type == tokenize.NAME and lines[token.start[0] - 1].startswith(
            "from tensorflow"
        )
        if (
            is_docstring
            or token.type == tokenize.COMMENT
            or (token.type == tokenize.NAME and not is_import)
        ):
            yield token.start[0], token.string
        previous = token.type


def test_the_engine_knows_no_place():
    named = [
        f"{path.relative_to(ENGINE)}:{line}: {found[0]}"
        for path in sorted(ENGINE.rglob("*.py"))
        for line, text in _names_and_prose(path)
        for found in PLACE.finditer(OF_TENSORFLOW.sub("", OF_THE_API.sub("", text)))
    ]
    assert not named, "a place's own code belongs to estimator/places or estimator/tpu/cores"
