"""The port that a peer had last time: whoever knew it then, and is cut off now, finds it there again.

A peer that was told to take any free port takes the one of its last life, if that is still free. Where a router forwards
a port, or a peer remembers an address, both go on being right.
"""

from contextlib import suppress
from typing import Final

from p2ptrain.errors import AddressInUseError, StorageError
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Address, Runtime

STORAGE_NAME: Final = "port.txt"


async def listen(transport: Transport, runtime: Runtime, wanted: Address) -> Address:
    """Listen at an address, at the last port if any will do; return the bound address. AddressInUseError, ConfigError."""
    if wanted.port:
        return await transport.listen(wanted)
    last_port = await _last_port(runtime)
    if last_port is not None:
        with suppress(AddressInUseError):
            return await transport.listen(Address(wanted.host, last_port))
    bound = await transport.listen(wanted)
    with suppress(StorageError):  # a full disk costs only the memory of it
        await runtime.compute.run(runtime.storage.write, STORAGE_NAME, str(bound.port).encode())
    return bound


async def _last_port(runtime: Runtime) -> int | None:
    """Return the port of the last life; None when there is none, or nothing that can be read as one."""
    try:
        data = await runtime.compute.run(runtime.storage.read, STORAGE_NAME)
        port = int(data or b"")
    except (StorageError, ValueError):
        return None
    return port if 1024 <= port <= 65535 else None
