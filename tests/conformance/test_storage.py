"""The Storage port."""

import pytest

from p2ptrain.errors import StorageError


def test_blobs_are_replaced_listed_and_deleted(world):
    async def story():
        storage = world.runtime(1).storage
        assert storage.read("checkpoints/a.msgpack") is None
        storage.write("checkpoints/a.msgpack", b"old")
        storage.write("checkpoints/a.msgpack", memoryview(b"new"))
        storage.write("known-peers.msgpack", bytearray(b""))
        assert storage.read("checkpoints/a.msgpack") == b"new"
        assert storage.read("known-peers.msgpack") == b""
        assert storage.names() == ["checkpoints/a.msgpack", "known-peers.msgpack"]
        storage.delete("checkpoints/a.msgpack")
        storage.delete("checkpoints/a.msgpack")
        assert storage.names() == ["known-peers.msgpack"]

    world.run(story)


@pytest.mark.parametrize("name", ["", "../key", "/etc/passwd", "a/../b", "a//b", ".hidden", "a b", "a/", "ü.bin"])
def test_a_name_that_leads_elsewhere_is_refused(world, name):
    async def story():
        storage = world.runtime(1).storage
        with pytest.raises(StorageError):
            storage.write(name, b"x")
        with pytest.raises(StorageError):
            storage.read(name)

    world.run(story)
