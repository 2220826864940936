"""One browser for the tests of a module, and pages written on the spot."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envs.browser import Browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the module's pages are."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the module's downloads go."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def shared(folder: Path, downloads: Path) -> Iterator[Browser]:
    """A browser of 300x200 pixels that the module's tests use one after the other."""
    with Browser.open((300, 200), files=folder, downloads=downloads, patience=30.0) as browser:
        yield browser


@pytest.fixture
def show(shared: Browser, folder: Path) -> Callable[[str], Browser]:
    """Opens a page with this body in the module's browser."""

    def show_body(body: str) -> Browser:
        page = folder / "page.html"
        page.write_text(f'<!doctype html><meta charset="utf-8"><body style="margin:0">{body}</body>', encoding="utf-8")
        shared.navigate(page.as_uri())
        return shared

    return show_body
