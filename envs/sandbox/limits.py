"""What a session may use."""

import dataclasses

from jaxllm.errors import UserError

MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of one sandbox. None means: no bound of that kind, as browsers need for the address space."""

    address_space: int | None = 4096 * MIB
    """bytes of virtual memory of one process"""
    memory: int | None = 1024 * MIB
    """bytes of memory of the whole sandbox, where a memory cgroup can be made"""
    processes: int | None = 128
    """processes and threads of the whole sandbox"""
    cpu: int | None = 120
    """seconds of processor time of one process, after which it is killed"""
    open_files: int | None = 1024
    """descriptors of one process"""
    file_size: int | None = 64 * MIB
    """bytes of one file"""
    disk: int | None = 256 * MIB
    """bytes of all files in the session's folder, deleted but open ones included; above it the sandbox is killed"""
    files: int | None = 20_000
    """files and folders in the session's folder; above it the sandbox is killed"""
    tmp: int = 64 * MIB
    """bytes of /tmp, and of /dev/shm, which live in memory and end with their process"""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UserError(f"the limit {field.name} is a whole number above 0 or None, not {value!r}")
