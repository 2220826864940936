"""The command that shows a map in a browser."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

if TYPE_CHECKING:
    from interp.atlas import Atlas
    from interp.explore import Explorer
    from jaxllm.load import Checkpoint

TOKEN_VARIABLE = "JAXLLM_TOKEN"


@dataclasses.dataclass(frozen=True)
class Explore:
    """Explore a map in the browser: search, picture, neurons, playground, comparison.

    The page is for this machine alone. With --host others may open it, but only with the secret of --token.
    """

    map: tyro.conf.Positional[Path]
    """folder of a map"""
    model: str | None = None
    """the mapped model, for the playground and for all that needs it: a folder, a .gguf file, a Hugging Face id, or smollm2"""
    compare: Path | None = None
    """folder of another map to compare with"""
    text: Path | None = None
    """a UTF-8 text in which the contexts that move a neuron are looked for; needs --model"""
    host: str = "127.0.0.1"
    """address to listen on; any but this machine's own needs --token"""
    port: int = 8765
    """port to listen on; 0 takes a free one"""
    token: str | None = None
    """secret that a visitor must give, at least 16 characters (default: the environment variable JAXLLM_TOKEN)"""
    no_open: bool = False
    """do not open a browser"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """element type of the model's weights (default: as stored; float32 for quantised models)"""

    def run(self) -> None:
        import os

        from interp import explore
        from interp.atlas import Atlas
        from jaxllm.cli import console

        door = explore.Door(self.host, self.token if self.token is not None else os.environ.get(TOKEN_VARIABLE) or None)
        sock = explore.listen(self.host, self.port)
        with sock:
            explorer = self._explorer(Atlas(self.map))
            address = explore.address(sock, self.host)
            console.write(f"Explorer: {address}  (Ctrl-C ends it)")
            explore.run(explorer, door, sock, lambda: None if self.no_open else _open(address))

    def _explorer(self, atlas: "Atlas") -> "Explorer":
        from interp import explore
        from interp.atlas import Atlas

        brain, checkpoint = None, self._checkpoint(atlas)
        if self.model is not None and checkpoint is not None:
            import jax.numpy as jnp

            from interp.explore.brain import load

            brain = load(checkpoint, atlas, self.model, None if self.dtype is None else jnp.dtype(self.dtype))
        other = None if self.compare is None else Atlas(self.compare)
        return explore.open_explorer(atlas, checkpoint=checkpoint, brain=brain, other=other, text=self.text)

    def _checkpoint(self, atlas: "Atlas") -> "Checkpoint | None":
        """The map's model; without --model, where it was mapped, if it is still there."""
        from jaxllm.errors import UserError
        from jaxllm.hub import resolve
        from jaxllm.load import open_checkpoint

        if self.model is not None:
            return open_checkpoint(resolve(self.model))
        path = Path(str(atlas.meta["model"].get("path", "")))
        try:
            checkpoint = open_checkpoint(path)
        except (UserError, OSError):
            return None
        return checkpoint if checkpoint.config.to_hf() == atlas.meta["model"].get("config") else None


def _open(address: str) -> None:
    import webbrowser

    webbrowser.open(address)


COMMANDS: dict[str, type[Any]] = {"explore": Explore}
