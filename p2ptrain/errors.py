"""Errors by whose fault they are, and the exit code of each.

The command line turns any `P2PTrainError` into one line on stderr and its `exit_code`; nothing else ends a command.
Expected outcomes (a round that aborts, a peer that is busy) are events with a reason, not errors.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a shell sees. Documented in README.md; never renumber."""

    OK = 0
    BUG = 1
    USAGE = 2
    LINK = 3
    UNREACHABLE = 4
    ADDRESS_IN_USE = 5
    IDENTITY = 6
    IDENTITY_IN_USE = 7
    STORAGE = 8
    INCOMPATIBLE = 9
    DATA = 10
    JUDGEMENT = 11
    VIOLATION = 12
    INTERRUPTED = 130


class P2PTrainError(Exception):
    """The root: a sentence for the user, and the exit code of a command that ends with it."""

    exit_code = ExitCode.BUG


class ConfigError(P2PTrainError):
    """The user's value is wrong: names the key, the value, and what is allowed."""

    exit_code = ExitCode.USAGE


class LinkError(P2PTrainError):
    """A join link that is broken, or names a run that the peers behind it do not train."""

    exit_code = ExitCode.LINK


class UnreachableError(P2PTrainError):
    """None of the bootstrap addresses answered; the message has one line per address."""

    exit_code = ExitCode.UNREACHABLE


class AddressInUseError(P2PTrainError):
    """Another process listens on the address that this peer was told to use."""

    exit_code = ExitCode.ADDRESS_IN_USE


class IdentityError(P2PTrainError):
    """The identity file is there but cannot be used. It is never replaced."""

    exit_code = ExitCode.IDENTITY


class IdentityInUseError(P2PTrainError):
    """Another live process uses the same identity."""

    exit_code = ExitCode.IDENTITY_IN_USE


class StorageError(P2PTrainError):
    """A file in the data directory cannot be read or written; names the file."""

    exit_code = ExitCode.STORAGE


class IncompatibleError(P2PTrainError):
    """The other end does not speak p2ptrain, or no version of the protocol that this build speaks."""

    exit_code = ExitCode.INCOMPATIBLE


class DataError(P2PTrainError):
    """The text to train on is missing, unreadable or too short."""

    exit_code = ExitCode.DATA


class LocalProtocolError(P2PTrainError):
    """This build broke its own protocol: a bug in p2ptrain."""


class RemoteProtocolError(P2PTrainError):
    """A peer sent what the protocol does not allow. Its connection closes."""

    exit_code = ExitCode.INCOMPATIBLE

    def __init__(self, peer: str, code: str, message: str) -> None:
        super().__init__(f"{peer}: {message} ({code})")
        self.peer, self.code = peer, code


class NetworkError(P2PTrainError):
    """The world: refused, reset, timed out. Retried by policy; `reason` is a few words for a table."""

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NoRoomError(NetworkError):
    """A peer is there, and has as many connections as it can have."""


class Refused(P2PTrainError):
    """A peer understood a call and said no; a handler raises it to say no.

    `code` is a word for programs ("busy", "stale", "unknown-method"), the message a sentence for people, and
    `retry_after` the seconds after which asking again may help (None: it will not).
    """

    exit_code = ExitCode.UNREACHABLE

    def __init__(self, code: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code, self.message, self.retry_after = code, message, retry_after


class StateSyncError(P2PTrainError):
    """No donor gave a state whose bytes match their digest."""

    exit_code = ExitCode.UNREACHABLE
