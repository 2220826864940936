"""What a command sets up for its process."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, threading
import numpy as np
from jaxllm.cli.runtime import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(1 << 25)  # 256 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    keep_memory()
found = []
other = threading.Thread(target=lambda: found.extend([faults(), faults()]))
other.start()
other.join()
print(found[1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="elsewhere nothing is set")
def test_memory_that_is_kept_is_not_asked_of_the_system_again():
    counts = {}
    for how in ("keep", "control"):
        done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
        counts[how] = int(done.stdout)
    assert counts["keep"] < 100
    assert counts["control"] > 100  # a page has 4 KB, or 2 MB
