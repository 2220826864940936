"""The command that imitates recorded episodes as a user meets it; and that no help waits for JAX."""

import subprocess
import sys

import pytest

NO_JAX = """
import sys
from jaxllm import cli
assert cli.main(sys.argv[1:]) == 0
assert "jax" not in sys.modules
"""


@pytest.mark.parametrize("arguments", [["train", "--help"]])
def test_help_does_not_import_jax(arguments: list[str]):
    subprocess.run([sys.executable, "-c", NO_JAX, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=120)
