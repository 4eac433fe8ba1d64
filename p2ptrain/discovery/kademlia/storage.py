"""What a node of the DHT stores: checked values only, and not without bound."""

import heapq
from collections.abc import Callable
from typing import Any, Final

from hivemind.dht.crypto import DHTRecord, RecordValidatorBase
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue

from p2ptrain.discovery.messages import MAX_VALUES, SUBKEY_BYTES
from p2ptrain.wire.messages import unpack

MAX_KEYS: Final = 1024  # that this node stores; a run has 16 buckets and some fragments

Check = Callable[[bytes, bytes, bytes, float], bool]  # key id (SHA-1 of the key), subkey, value, expires_at


class CheckingValidator(RecordValidatorBase):  # type: ignore[misc]
    """Applies `check` to everything that hivemind stores or returns."""

    def __init__(self, check: Check) -> None:
        self._check = check

    def validate(self, record: DHTRecord) -> bool:
        value = unpack(record.value)
        return isinstance(value, bytes) and self._check(
            record.key, record.subkey[-SUBKEY_BYTES:], value, record.expiration_time
        )


class BoundedStorage(DHTLocalStorage):  # type: ignore[misc]
    """Keeps dictionaries only, at most MAX_VALUES entries each, and the entry that lives longest."""

    def store(self, key: DHTID, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        known = self.get(key)
        if known is None and len(self) >= MAX_KEYS:
            return False
        dictionary = known.value if known is not None else DictionaryDHTValue(MAX_VALUES)
        previous = dictionary.get(subkey)
        if previous is not None and previous.expiration_time >= expiration_time:
            return False  # storing it would also shorten the life of the newer one
        stored: bool = dictionary.store(subkey, value, expiration_time)
        if stored:
            super().store(key, dictionary, dictionary.latest_expiration_time)
        _compact(dictionary)
        _compact(self)
        return stored


def _compact(storage: Any) -> None:
    if len(storage.expiration_heap) > 2 * len(storage.data) + MAX_VALUES:
        storage.expiration_heap = list(storage.key_to_heap.values())
        heapq.heapify(storage.expiration_heap)
