"""The map in a browser: search, a picture of all neurons, a page for each, a playground for clamps, and two maps side by side.

explorer = open_explorer(Atlas("maps/smollm2"))
with serving(explorer, Door("127.0.0.1", None)) as address: ...       # or `run`, until Ctrl-C
"""

from interp.explore.explorer import Explorer, open_explorer
from interp.explore.guard import Door
from interp.explore.server import address, listen, run, serving

__all__ = ["Door", "Explorer", "address", "listen", "open_explorer", "run", "serving"]
