"""What is missing on a machine is a skipped test and one line; what is wrong is an error."""

import pathlib

import pytest

from tests.engines import java_server, tools


@pytest.fixture
def no_tools(monkeypatch):
    tools.version.cache_clear()
    monkeypatch.setenv("PATH", "")
    yield
    tools.version.cache_clear()


def test_what_is_missing_skips_and_says_where_it_comes_from(no_tools):
    with pytest.raises(pytest.skip.Exception) as caught:
        tools.skip_without("javac", "mvn")
    assert "javac is missing: a JDK" in str(caught.value)
    assert "openjdk-17-jdk-headless; mvn is missing: Maven" in str(caught.value)
    assert len(tools.report()) == 4
    assert all(" is missing: " in line for line in tools.report())


@pytest.mark.needs("mvn")
def test_a_library_that_can_not_be_had_is_named(tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(java_server, "CACHE", tmp_path / "cache")
    pom = tmp_path / "pom.xml"
    text = (pathlib.Path(__file__).parent / "model_server" / "pom.xml").read_text("utf-8")
    pom.write_text(text.replace("<version>2.8.9<", "<version>0.0.17<"), encoding="utf-8")
    with pytest.raises(
        java_server.UnavailableError, match=r"^com.google.code.gson:gson:jar:0.0.17 could"
    ):
        java_server.fetch(pom)
    assert not list(java_server.CACHE.iterdir())


@pytest.mark.needs("mvn")
def test_a_pom_that_maven_does_not_read_is_an_error(tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(java_server, "CACHE", tmp_path / "cache")
    (tmp_path / "pom.xml").write_text("<project>", encoding="utf-8")
    with pytest.raises(AssertionError, match="Maven failed"):
        java_server.fetch(tmp_path / "pom.xml")


@pytest.mark.needs("mvn")
def test_a_wanted_version_that_can_not_be_had_is_the_poms_instead(tmp_path, monkeypatch):
    monkeypatch.setattr(java_server, "CACHE", tmp_path / "cache")
    (tmp_path / "small").mkdir()
    pom = tmp_path / "small" / "pom.xml"
    dependency = "<groupId>com.google.code.gson</groupId><artifactId>gson</artifactId>"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>small</artifactId>"
        "<version>1</version><packaging>pom</packaging>"
        "<properties><gson.version>2.8.9</gson.version></properties>"
        f"<dependencies><dependency>{dependency}<version>${{gson.version}}</version></dependency></dependencies>"
        "</project>",
        encoding="utf-8",
    )
    folder = java_server.fetch(pom, gson_version="0.0.17")
    assert [jar.name for jar in folder.iterdir()] == ["gson-2.8.9.jar"]
    assert java_server.fetch(pom, gson_version="0.0.17") == folder
