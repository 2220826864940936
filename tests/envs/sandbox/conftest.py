"""What tests of the sandbox share."""

import pytest

from envs.sandbox import Sandbox, Shell


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="module")
def sandbox(folder):
    with Sandbox(folder) as made:
        yield made


@pytest.fixture(scope="module")
def shell(sandbox):
    """One shell for all tests of a module, which leave it as they found it."""
    made = Shell(sandbox)
    yield made
    made.close()
