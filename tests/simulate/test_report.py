"""The files of a report."""

import json
import math
from pathlib import Path

import pytest

from p2ptrain.errors import StorageError
from p2ptrain.events import Event
from p2ptrain.simulate.lives import End, Life
from p2ptrain.simulate.process import parse_event
from p2ptrain.simulate.report import write_report


def a_life(number: int, born_at: float) -> Life:
    life = Life(number=number, born_at=born_at)
    life.hear([Event("started", born_at, 0.0, {"peer": f"peer-{number}"})])
    for second in range(5):
        life.hear([Event("progress", born_at + second, float(second), {"loss": 5.0 / (second + 1)})])
    life.hear(
        [Event("progress", born_at + 5, 5.0, {"loss": math.nan}), Event("validation", born_at + 5, 5.0, {"loss": 3.0})]
    )
    return life


def test_a_report_is_three_files(tmp_path: Path) -> None:
    killed = a_life(2, 100.5)
    killed.close(End.KILLED, 103.0)
    write_report(tmp_path / "new" / "report", {"anchors_agree": True}, [a_life(1, 100.0), killed], 100.0)
    assert json.loads((tmp_path / "new/report/summary.json").read_text()) == {"anchors_agree": True}
    assert (tmp_path / "new/report/loss.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "new/report/loss.png").stat().st_size > 10_000


def test_events_of_all_peers_are_merged_by_time_and_say_whose_they_are(tmp_path: Path) -> None:
    first, second = a_life(1, 100.0), a_life(2, 100.5)
    second.close(End.KILLED, 103.0)
    again = a_life(2, 108.0)
    write_report(tmp_path, {}, [first, second, again], 100.0)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    assert {(event["peer_number"], event["peer_life"], event["peer_id"]) for event in events} == {
        (1, 1, "peer-1"), (2, 1, "peer-2"), (2, 2, "peer-2"),
    }  # fmt: skip
    assert [event["at"] for event in events if event["kind"] == "killed"] == [103.0]


def test_a_swarm_that_said_nothing_has_a_picture_too(tmp_path: Path) -> None:
    write_report(tmp_path, {}, [Life(number=1, born_at=0.0)], 0.0)
    assert (tmp_path / "loss.png").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(StorageError, match=r"summary\.json"):
        write_report(tmp_path, {}, [], 0.0)


def test_an_event_survives_its_file() -> None:
    event = Event("adopted", 12.5, 1.5, {"fragment": 3, "tokens": {"peer-1": 5}})
    assert parse_event(event.to_json().encode()) == event
