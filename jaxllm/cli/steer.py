"""Commands on clamps: one prompt with and without, dose curves with controls, clamps in the weights, and the paper's checks."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from interp.clamp import Value
    from interp.concept import Concept
    from interp.sweep import Sweep as Result
    from jaxllm.load import Checkpoint


@dataclasses.dataclass(frozen=True)
class Clamp:
    """Hold neurons at a value and compare what the model writes with and without.

    Shows both continuations, the next token before and after, and for each neuron what it reads, what it writes, and which sign
    raises its concept. Everything is greedy, so the same command prints the same.
    """

    model: tyro.conf.Positional[str]
    """a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    prompt: tyro.conf.Positional[str]
    """the text to continue; with --chat, the user's message"""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="L29/N1342=-30")]
    """neuron and value: a number, or in the neuron's own units 3sd, max, min; repeat it for several"""
    site: Literal["up", "product", "gate_pre", "gate_act"] = "up"
    """what is held: the up-projection's output, its product with the gate, or the gate before or after SiLU"""
    mode: Literal["set", "add", "scale", "floor", "ceil", "set_if_active"] = "set"
    """what to do with the value"""
    threshold: float = 0.0
    """with --mode set_if_active: set the value only where the natural one is above this"""
    positions: str = "all"
    """all, prompt, generated, last (the prompt's last token), or positions of the prompt such as 0,3"""
    exclude_special: bool = False
    """leave special tokens alone"""
    token: str | None = None
    """the concept to follow, with its spellings (default: the top tokens of each neuron's up row)"""
    chat: bool = False
    """put the prompt into the checkpoint's chat template"""
    max_tokens: int = 48
    """stop after this many tokens, if no stop token came before"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """element type of the weights (default: as stored; float32 for quantised models)"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from interp.clamp import parse_clamp, parse_positions
        from interp.query import as_json
        from interp.steer import steer
        from jaxllm.cli import console, steer_tables

        options = {
            "site": self.site,
            "mode": self.mode,
            "threshold": self.threshold,
            "positions": parse_positions(self.positions),
            "exclude_special": self.exclude_special,
        }
        settings = [parse_clamp(text, **options) for text in self.set]
        checkpoint = _open(self.model)
        found = steer(
            checkpoint,
            settings,
            self.prompt,
            chat=self.chat,
            token=self.token,
            max_tokens=self.max_tokens,
            params=lambda: _load(checkpoint, self.dtype),
        )
        if self.json:
            console.write(json.dumps(as_json(found), indent=1, ensure_ascii=False, allow_nan=False))
            return
        for part in steer_tables.clamp_tables(found):
            console.stdout().print(part)
            console.write("")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Sweep a neuron's clamp over values, with controls: table, picture and CSV."""

    model: tyro.conf.Positional[str]
    """a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    neuron: str
    """layer and number, such as L29/N1342"""
    token: str | None = None
    """the concept to follow, with its spellings (default: the top tokens of the neuron's up row)"""
    values: str = "-100:100:9"
    """first, last and how many; or values with commas; units sd, max and min as in clamp"""
    sites: str = "up"
    """up, product, or both with a comma"""
    prompts: str = "neutral-v1"
    """a file with a prompt a line, or a list that ships: neutral-v1, questions-v1"""
    chat: bool = False
    """put each prompt into the checkpoint's chat template"""
    controls: int = 4
    """random neurons of the layer with down columns of like length"""
    max_tokens: int = 16
    """of each continuation; 0 leaves continuations out"""
    samples: int = 0
    """continuations drawn at temperature 1 and top-p 0.95 for each prompt and value, beside the greedy one"""
    seed: int = 0
    """draws the random neurons and the samples"""
    out: Path | None = None
    """folder of the files (default: sweeps/ and the neuron)"""
    dtype: Literal["float32", "bfloat16"] | None = None
    """element type of the weights (default: as stored; float32 for quantised models)"""
    json: bool = False
    """print JSON"""

    def run(self) -> None:
        import json

        from interp import prompts, sweep_files
        from interp.clamp import check_neurons, parse_values
        from interp.query import parse_neuron
        from interp.sweep import rows_of
        from jaxllm.cli import console, steer_tables
        from jaxllm.errors import UserError

        at = parse_neuron(self.neuron)
        values = parse_values(self.values)
        sites = list(dict.fromkeys(site.strip() for site in self.sites.split(",")))
        for site in sites:
            if site not in ("up", "product"):
                raise UserError(f"--sites {self.sites!r}: write up, product, or up,product")
        for name, least in (("controls", 0), ("max_tokens", 0), ("samples", 0)):
            if getattr(self, name) < least:
                raise UserError(f"--{name.replace('_', '-')} must be at least {least}, found {getattr(self, name)}")
        if self.samples and not self.max_tokens:
            raise UserError("--samples needs --max-tokens above 0")
        listed = prompts.read(self.prompts)
        checkpoint = _open(self.model)
        check_neurons(checkpoint.config, [at])
        tokenizer = checkpoint.tokenizer()
        template = checkpoint.chat_template() if self.chat else None
        ids = prompts.encode(listed.texts, tokenizer, chat=self.chat, template=template)
        concept = _concept(self.token, checkpoint)
        out = self.out or Path("sweeps") / f"L{at[0]}-N{at[1]}"
        sweep_files.make_folder(out)
        params = _load(checkpoint, self.dtype)
        doses = _doses(params, checkpoint, at, values, sites)
        total = rows_of(len(ids), doses, self.controls, self.max_tokens, self.samples)
        with console.progress("sweeping", total, "rows") as advance:
            found = _sweep(self, params, checkpoint, ids, at, concept, doses, advance)
        about = {
            "model": self.model,
            "chat": self.chat,
            "prompts_from": listed.name,
            "prompts_sha256": listed.sha256,
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "samples": self.samples,
            "values": self.values,
        }
        files = sweep_files.write(found, listed.texts, tokenizer, out, about)
        if self.json:
            console.write(json.dumps(sweep_files.facts(found, tokenizer, about), indent=1, ensure_ascii=False))
            return
        for part in steer_tables.sweep_tables(found):
            console.stdout().print(part)
        console.write("Files: " + ", ".join(map(str, files)))


@dataclasses.dataclass(frozen=True)
class Bake:
    """Write a copy of a model in which clamps are part of the weights.

    Any program that reads Hugging Face's Llama with an MLP bias then runs the clamped model.
    """

    model: tyro.conf.Positional[str]
    """a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    out: Path
    """the folder to be written; it must not exist, or be empty"""
    set: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="L29/N1342=-30")]
    """neuron and value, held at the up-projection's output for every token; repeat it for several"""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """element type of all weights (default: as stored; float32 for quantised models)"""

    def run(self) -> None:
        from interp.calibration import natural
        from interp.clamp import check_neurons, measure, parse_clamp, resolve
        from jaxllm.bake import bake
        from jaxllm.cli import console
        from jaxllm.cli.files import _dtype

        settings = [parse_clamp(text) for text in self.set]
        checkpoint = _open(self.model)
        check_neurons(checkpoint.config, [(setting.layer, setting.neuron) for setting in settings])
        measured = None
        if any(setting.value.unit for setting in settings):
            params = _load(checkpoint, None)
            tokenizer = checkpoint.tokenizer()
            measured = measure(settings, lambda at, site: natural(params, checkpoint.config, tokenizer, at, site))
        clamps = resolve(settings, measured)
        bake(checkpoint, clamps, self.out, dtype=None if self.dtype is None else _dtype(self.dtype))
        for setting, clamp in zip(settings, clamps, strict=True):
            console.write(f"L{clamp.layer}/N{clamp.neuron} is held at {clamp.value:.6g} ({setting.value})")
        console.write(f"wrote {self.out}")


@dataclasses.dataclass(frozen=True)
class Panel:
    """Run the checks of the paper on a model, or on a base model and its tuned one.

    R1 and R2 look for the neurons of two words, R3 clamps them, R4 asks for the favourite animal, R5 compares the maps, R6
    times decoding. Only on Llama 3.1 8B and its Instruct the paper's values stand beside.
    """

    model: tyro.conf.Positional[str]
    """the base model: a folder of safetensors, a .gguf file, a Hugging Face id, or smollm2"""
    tuned: tyro.conf.Positional[str | None] = None
    """the tuned model, for R4 and R5"""
    out: Path = Path("panel")
    """folder of report, pictures and maps; maps that are there are used again"""
    layers: Annotated[str | None, tyro.conf.arg(metavar="FROM:TO")] = None
    """layers to look at, TO excluded, such as 28:30 (default: all)"""
    max_tokens: int = 24
    """of each continuation"""
    samples: int = 8
    """sampled answers to the question of R4, beside the greedy one"""

    def run(self) -> None:
        from interp import panel, panel_report
        from jaxllm.cli import console
        from jaxllm.cli.map import parse_layers
        from jaxllm.errors import UserError

        if self.max_tokens < 1 or self.samples < 0:
            raise UserError("--max-tokens must be at least 1, and --samples at least 0")
        names = [self.model, *([] if self.tuned is None else [self.tuned])]
        pair = [_open(name) for name in names]
        layers = None if self.layers is None else tuple(parse_layers(self.layers))
        options = panel.Options(max_tokens=self.max_tokens, samples=self.samples, layers=layers)

        def tell(stage: str) -> None:
            console.stderr().print(stage)

        found = panel.run(pair[0], pair[1] if self.tuned else None, self.out, names=names, options=options, progress=tell)
        files = panel_report.write(found, self.out)
        console.write(panel_report.markdown(found))
        console.write("Files: " + ", ".join(map(str, files)))


COMMANDS: dict[str, type[Any]] = {"clamp": Clamp, "sweep": Sweep, "bake": Bake, "panel": Panel}


def _open(model: str) -> "Checkpoint":
    from jaxllm.hub import resolve
    from jaxllm.load import open_checkpoint

    return open_checkpoint(resolve(model))


def _load(checkpoint: "Checkpoint", dtype: str | None) -> Any:
    import jax.numpy as jnp

    from jaxllm.load import load_params

    return load_params(checkpoint, dtype=None if dtype is None else jnp.dtype(dtype))


def _sweep(
    asked: Sweep, params: Any, checkpoint: "Checkpoint", ids: Any, at: tuple[int, int], concept: Any, doses: Any, advance: Any
) -> "Result":
    import numpy as np

    from interp.concept import of_ids
    from interp.sweep import sweep
    from interp.written import written

    cfg, tokenizer = checkpoint.config, checkpoint.tokenizer()
    allowed = np.arange(cfg.vocab_size) < tokenizer.size
    neuron = written(params, cfg, *at, concept=None if concept is None else concept.ids, allowed=allowed)
    return sweep(
        params,
        cfg,
        tokenizer,
        ids,
        neuron,
        concept or of_ids(neuron.concept, tokenizer),
        doses,
        controls=asked.controls,
        seed=asked.seed,
        max_tokens=asked.max_tokens,
        samples=asked.samples,
        stop_ids=checkpoint.stop_ids,
        progress=advance,
    )


def _concept(token: str | None, checkpoint: "Checkpoint") -> "Concept | None":
    from interp.concept import of_token

    return None if token is None else of_token(token, checkpoint.tokenizer(), checkpoint.config.vocab_size)


def _doses(params: Any, checkpoint: "Checkpoint", at: tuple[int, int], values: "list[Value]", sites: list[str]) -> Any:
    """Site -> doses; values with units are turned into numbers by the calibration text."""
    from interp.calibration import natural
    from interp.sweep import Dose

    doses = {}
    for site in sites:
        measured = None
        if any(value.unit for value in values):
            measured = natural(params, checkpoint.config, checkpoint.tokenizer(), [at], site)
        doses[site] = [Dose(value.absolute(measured, 0), str(value)) for value in values]
    return doses
