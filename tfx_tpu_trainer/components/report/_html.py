"""Arranges sections as one HTML page: no script, and nothing loaded from anywhere."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

import jinja2

from tfx_tpu_trainer.components.report._charts import Chart, Table

_LONGEST_TEXT = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the page.

    Attributes:
        title: Its heading.
        says: What it comes to, in a sentence or two.
        mood: `"good"`, `"bad"`, `"warn"` or `""`.
        charts: Pictures with their tables.
        tables: Caption -> table, for what has no picture.
        notes: What has to be said beside.
    """

    title: str
    says: str
    mood: str = ""
    charts: tuple[Chart, ...] = ()
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


def render_sections(
    sections: Sequence[Section], *, title: str, written: float, unread: Sequence[str] = ()
) -> str:
    """Returns a page of sections.

    Args:
        sections: What it shows, in their order.
        title: Its title.
        written: When what it shows was gathered, in seconds since 1970.
        unread: What could not be read. Defaults to nothing.

    Returns:
        HTML.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                jinja2.PackageLoader("tfx_tpu_trainer.components.report", "templates"),
                jinja2.PackageLoader("tfx_tpu_trainer.preflight", "templates"),
            ]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("run.html.j2").render(
        title=title, written=time_text(written), sections=sections, unread=unread
    )


def time_text(seconds: float) -> str:
    """Returns a time for people, in UTC."""
    time = datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
    return f"{time:%Y-%m-%d %H:%M} UTC"


def short(text: str) -> str:
    """Returns a text that is short enough to be shown."""
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "…"
