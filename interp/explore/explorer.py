"""What the explorer knows: a map made ready for questions, and with it, where given, its model, another map and a text."""

import dataclasses
import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from interp import query
from interp.atlas import FLAGS, NEURON_STATISTICS, POLE_STATISTICS, STATISTICS, Atlas
from interp.explore import index as inverted
from interp.explore import picture, search
from interp.explore.index import Index
from interp.explore.search import Words
from interp.ranking import RANKINGS, Ranking, rank
from jaxllm.errors import UserError

if TYPE_CHECKING:
    from interp.explore.brain import Brain
    from jaxllm.tensors import Checkpoint

BEST = 15  # neurons of each ranking on the first page
KEPT_ANSWERS = 512  # of those that took the model


@dataclasses.dataclass(frozen=True)
class Explorer:
    """All that is asked about. Reading methods may run in many threads; what takes the model may not (see `app`)."""

    atlas: Atlas
    index: Index
    words: Words
    rankings: Mapping[str, Ranking]
    brain: "Brain | None" = None  # None: no playground, decodes or contexts
    checkpoint: "Checkpoint | None" = None  # of the map, where it can be read: for neighbours
    other: Atlas | None = None  # the map to compare with
    text: Path | None = None  # where contexts are looked for
    answers: "Kept" = dataclasses.field(default_factory=lambda: Kept(KEPT_ANSWERS))

    def facts(self) -> dict[str, Any]:
        """What the page needs to know first, as JSON values."""
        atlas, model = self.atlas, self.atlas.meta["model"]
        best = {name: [self._best(*found) for found in r.top(BEST)] for name, r in self.rankings.items()}
        return {
            "model": {name: model[name] for name in ("name", "layers", "neurons", "width", "vocabulary")},
            "layers": atlas.layers,
            "top_k": atlas.top_k,
            "settings": {name: value for name, value in atlas.meta["settings"].items() if name != "poles"},
            "control": atlas.meta["control"] if atlas.has_control else None,
            "statistics": picture.CHOICES,
            "two_sided": picture.TWO_SIDED,
            "explained": STATISTICS,
            "pole_statistics": list(POLE_STATISTICS),
            "neuron_statistics": list(NEURON_STATISTICS),
            "flags": list(FLAGS),
            "rankings": RANKINGS,
            "best": best,
            "playground": None if self.brain is None else self._playground(self.brain),
            "neighbours": self.checkpoint is not None,
            "compare": None if self.other is None else self.other.meta["model"]["name"],
            "contexts": self.brain is not None and self.text is not None,
        }

    def _best(self, position: int, neuron: int, pole: int) -> dict[str, Any]:
        p = float(self.atlas.column("p1")[position, neuron, pole])
        return search.match(self.atlas, 2 * (position * self.atlas.num_neurons + neuron) + pole, p)

    def _playground(self, brain: "Brain") -> dict[str, Any]:
        from interp.explore import playground
        from jaxllm.clamp import SITES

        names = ("MAX_PROMPT", "MAX_NEW", "MAX_CLAMPS", "MAX_VALUE")
        limits = {name.lower(): getattr(playground, name) for name in names}
        return {"model": brain.name, "chat": brain.template is not None, "sites": SITES, **limits}

    def search(self, text: str, by: str, pole: str, limit: int) -> dict[str, Any]:
        """As `interp.explore.search.search`."""
        return search.search(self.atlas, self.index, self.words, text, by=by, pole=pole, limit=limit)

    def picture(self, statistic: str, text: str, by: str) -> picture.Picture:
        """Of a search where there is a text, else of a statistic. Raises UserError for a bad one of either."""
        if not text:
            return self.answers.get(("picture", statistic), lambda: picture.of_statistic(self.atlas, self.rankings, statistic))
        neuron = search.neuron_of(text)
        if neuron is not None:
            found = np.zeros(len(self.atlas.layers) * self.atlas.num_neurons, np.float32)
            position, number = self.atlas.position(*neuron)
            found[position * self.atlas.num_neurons + number] = 1
            return picture.of_search(self.atlas, found)
        asked = search.ask(self.words, self.index.uses, text, by)
        return picture.of_search(self.atlas, inverted.of_all(self.index, asked.ids))

    def label(self, layer: int, neuron: int) -> dict[str, Any]:
        """The first tokens of both poles, the better pole first. Raises UserError when not mapped."""
        position, number = self.atlas.position(layer, neuron)
        better = int(self.rankings["specialisation"].pole[position, number])
        row = 2 * (position * self.atlas.num_neurons + number)
        return {"poles": [search.match(self.atlas, row + pole, 1.0) for pole in (better, 1 - better)]}

    def neuron(self, layer: int, neuron: int, *, other: bool = False) -> dict[str, Any]:
        """All that the map, or the other map, tells of a neuron, as `interp.query.Neuron` in JSON values."""
        if not other:
            return query.as_json(query.show(self.atlas, layer, neuron, self.rankings))
        if self.other is None:
            raise UserError("there is no other map; start the explorer with --compare")
        return query.as_json(query.show(self.other, layer, neuron, self.other_rankings))

    def neighbours(self, layer: int, neuron: int, pole: str) -> list[dict[str, Any]]:
        """The neurons whose rows lie along the same line. Raises UserError without the model."""
        if self.checkpoint is None:
            raise UserError("the model of the map is not here; start the explorer with --model")
        self.atlas.position(layer, neuron)
        checkpoint = self.checkpoint
        return self.answers.get(
            ("neighbours", layer, neuron, pole),
            lambda: query.as_json(query.neighbours(self.atlas, checkpoint, layer, neuron, pole=pole, count=12)),
        )

    @functools.cached_property
    def other_rankings(self) -> dict[str, Ranking]:
        assert self.other is not None
        return {name: rank(self.other, name) for name in RANKINGS}

    @functools.cached_property
    def comparison(self) -> dict[str, Any]:
        """The two maps side by side, as `interp.compare_files.facts`. Raises UserError without another map."""
        from interp import compare, compare_files

        if self.other is None:
            raise UserError("there is no other map; start the explorer with --compare")
        return compare_files.facts(compare.compare(self.atlas, self.other), self.atlas.tokens)


class Kept:
    """The last answers that were expensive, by question; each is made once at a time."""

    def __init__(self, size: int):
        self._size, self._lock = size, threading.Lock()
        self._answers: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
                return self._answers[key]
        answer = make()
        with self._lock:
            self._answers[key] = answer
            while len(self._answers) > self._size:
                self._answers.popitem(last=False)
        return answer

    def peek(self, key: Hashable) -> Any:
        """The answer if it is there, else None."""
        with self._lock:
            return self._answers.get(key)


def open_explorer(
    atlas: Atlas,
    *,
    checkpoint: "Checkpoint | None" = None,
    brain: "Brain | None" = None,
    other: Atlas | None = None,
    text: Path | None = None,
) -> Explorer:
    """Prepares a map: index, vocabulary and rankings, some seconds for 459,000 neurons.

    Raises UserError for a damaged map, another one that cannot be compared with it, or a text that cannot be read.
    """
    if other is not None:
        from interp.alignment import align

        align(atlas, other)
    if text is not None:
        if brain is None:
            raise UserError("contexts need the model that reads the text: give --model too")
        if not text.is_file():
            raise UserError(f"{text}: no such file")
    rankings = {name: rank(atlas, name) for name in RANKINGS}
    return Explorer(atlas, inverted.build(atlas), search.words(atlas), rankings, brain, checkpoint, other, text)
