"""What a peer says about itself is always newer than what it said before."""

from dataclasses import dataclass, replace

from p2ptrain.discovery.own_record import OwnRecord
from p2ptrain.discovery.records import MemberRecord
from p2ptrain.ids import RunId, digest
from p2ptrain.net.identity import Identity

RUN_ID = RunId(digest("test", b"run"))


@dataclass
class SteppingClock:
    now: float

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return 0.0


def own_record(clock: SteppingClock) -> OwnRecord:
    return OwnRecord(clock=clock, identity=Identity(bytes(32)), run_id=RUN_ID, role="trainer", addresses=())


def test_a_record_is_newer_than_the_last_even_when_the_clock_steps_back() -> None:
    clock = SteppingClock(1000.0)
    own = own_record(clock)
    first = own.record
    clock.now = 900.0
    signed = own.issue(position=7)
    assert own.record.age_key > first.age_key
    assert MemberRecord.from_bytes(signed, run_id=RUN_ID, now=1000.0) == own.record
    assert own.record.position == 7


def test_a_clock_that_was_too_far_ahead_is_given_up_when_it_is_set_right() -> None:
    clock = SteppingClock(5000.0)
    own = own_record(clock)
    clock.now = 1000.0
    signed = own.issue(position=7)
    assert MemberRecord.from_bytes(signed, run_id=RUN_ID, now=999.0).position == 7


def test_a_record_of_an_earlier_life_is_outbid_once() -> None:
    own = own_record(SteppingClock(1000.0))
    echo = replace(own.record, issued_at=1050.0, sequence=3, gone=True)
    assert own.outbid(echo)
    assert own.record.age_key > echo.age_key and not own.record.gone
    assert not own.outbid(echo)
