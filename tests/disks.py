"""Makes disks that fail, for tests in any environment."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(*, room: int = 0) -> Iterator[None]:
    """A disk that takes no file of more than some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
