"""Steps a second of environments: through our step server, and by the peers that do the same.

    python benchmarks/env_throughput.py                       all sections
    python benchmarks/env_throughput.py --only vector latency some of them
    python benchmarks/env_throughput.py --size 0.1 --rounds 1 a trial

Sections: `vector` (64 sessions that do nothing, against gymnasium's AsyncVectorEnv and an OpenEnv server), `miniwob` (a page in
a browser, against the package's own Selenium environment and playwright), `latency` (step times that differ, against lock
step), `envpool` (our vector against envpool itself). In a round every side runs once; figures are medians over rounds, after
one that is not counted. A peer that is not installed is named and left out. The last line is JSON: ratios, targets, what is
met.
"""

import argparse
import importlib
import json
import os
from typing import Any

SECTIONS = {"vector": "stepping", "miniwob": "browsers", "latency": "waiting", "envpool": "pools"}  # name -> module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=float, default=1.0, help="of a round, as a share of the real one")
    arguments = parser.parse_args()
    from environments.common import Scale  # here: gymnasium's processes load this file too

    if arguments.rounds < 1 or not 0 < arguments.size <= 1:
        parser.error("at least one round, and a size between 0 and 1")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {arguments.rounds} rounds", flush=True)
    result: dict[str, Any] = {"benchmark": "env_throughput", "cores": os.cpu_count()}
    for name in arguments.only:
        module = importlib.import_module(f"environments.{SECTIONS[name]}")
        result[name] = module.run(Scale(arguments.rounds, arguments.size))
    result["met"] = all(all(result[name]["met"].values()) for name in arguments.only)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
