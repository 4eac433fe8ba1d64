"""The inner loop: it trains, and at step boundaries hands over what is due and adopts what arrived. It never waits.

`step` runs on a thread of its own (`Compute.drive`). Everything that others want of it goes through an inbox and is
done at the next step boundary; what it answers goes back to the event loop through `post`. What it shows of itself is
one immutable `Progress`, replaced at every step.
"""

import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from p2ptrain.config import RunConfig
from p2ptrain.fragments.layout import Fragment, Layout
from p2ptrain.fragments.state import FragmentState
from p2ptrain.ids import PeerId
from p2ptrain.runtime import Clock
from p2ptrain.training.accounts import Adoption, FragmentAccount, HandOver, Tally
from p2ptrain.training.cursor import WindowCursor
from p2ptrain.training.schedule import learning_rate
from p2ptrain.training.task import Task

Vector = NDArray[np.float32]

MAX_DRAWN = 1 << 16  # positions kept for the log between two reports: more than anybody draws in a second
IDLE_SECONDS = 0.01  # how often a paused learner looks into its inbox
MEMORY = 0.9  # of the running means of step time and loss: about the last ten steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a learner has done so far."""

    inner_steps: int = 0
    tokens: int = 0
    loss: float = math.nan  # nats per token, running mean
    learning_rate: float = 0.0
    step_seconds: float = 0.0  # from one step to the next, running mean
    stepping_seconds: float = 0.0  # spent inside steps
    offered_seconds: float = 0.0  # since the first step began, less what it was paused
    position: int = 0  # of the window cursor

    @property
    def utilisation(self) -> float:
        """Time stepping / time offered."""
        return self.stepping_seconds / self.offered_seconds if self.offered_seconds else 0.0


@dataclass(frozen=True, slots=True)
class AdoptionReport:
    """What adopting a commit meant for this learner's work."""

    fragment: int
    version: int
    adoption: Adoption
    tally: Tally


class Learner:
    """One task, its accounts, and an inbox."""

    def __init__(
        self, *, task: Task, layout: Layout, config: RunConfig, clock: Clock, cursor: WindowCursor, post: Callable[..., None],
        me: PeerId, first_step: int, start: list[tuple[int, FragmentState]],
    ) -> None:  # fmt: skip
        """Begin on the states in `start`, (version, state) of each fragment; steps are numbered from `first_step` + 1."""
        self.progress = Progress(position=cursor.position)
        self._task, self._layout, self._config, self._clock = task, layout, config, clock
        self._cursor, self._post, self._me = cursor, post, me
        self._inbox: deque[Callable[[], None]] = deque()
        self._live: Collection[PeerId] = ()
        self._drawn: deque[int] = deque(maxlen=MAX_DRAWN)
        self._paused = False
        self._step_number = first_step
        self._stepped_at: float | None = None
        self._listener: Callable[[AdoptionReport], None] = lambda report: None
        self._steps_since_adoption = [0] * len(layout.fragments)
        self._accounts = [self._open_account(fragment, *start[fragment.index]) for fragment in layout.fragments]

    # For the event loop

    def on_adopted(self, listener: Callable[[AdoptionReport], None]) -> None:
        """Call `listener` on the event loop after each adoption."""
        self._listener = listener

    def set_live(self, live: Collection[PeerId]) -> None:
        """Share the windows with these peers from the next step on."""
        self._live = live

    def pause(self) -> None:
        """Train no more, but go on handing over and adopting."""
        self._paused = True

    @property
    def is_paused(self) -> bool:
        return self._paused

    def pending_steps(self, fragment: int) -> int:
        return self._accounts[fragment].pending_steps

    def tallies(self) -> list[Tally]:
        """Return the books of each fragment; exact while the learner is paused, else at most a step old."""
        return [account.tally() for account in self._accounts]

    @property
    def accounts(self) -> list[FragmentAccount]:
        """The books of each fragment, for whoever checks them from outside."""
        return self._accounts

    def adopt(self, fragment: int, version: int, state: FragmentState) -> None:
        """Move a fragment to a commit's state at the next step boundary."""
        self._inbox.append(lambda: self._adopt(fragment, version, state))

    def request_hand_over(self, fragment: int, answer: Callable[[HandOver | None], None]) -> None:
        """Snapshot a fragment's unmerged work at the next step boundary; `answer` is called on the event loop."""
        self._inbox.append(lambda: self._hand_over(fragment, answer))

    def take_drawn(self) -> list[int]:
        """Return the cursor's positions that were drawn since the last call, for the log to count double draws."""
        return [self._drawn.popleft() for _ in range(len(self._drawn))]

    def request_state(self, answer: Callable[[bytes], None]) -> None:
        """Copy the inner optimizer's state at the next step boundary."""
        self._inbox.append(lambda: self._post(answer, self._task.state_bytes()))

    # On the learner's thread

    def step(self) -> float:
        """Do what the inbox asks, then one inner step; return seconds to be left alone (when paused)."""
        while self._inbox:
            self._inbox.popleft()()
        if self._paused:
            self._stepped_at = None
            return IDLE_SECONDS
        began_at = self._clock.monotonic()
        previous = began_at if self._stepped_at is None else self._stepped_at
        rate = learning_rate(self._swarm_progress(), self._config.inner)
        positions, windows = self._cursor.draw(self._task.windows_per_step, self._live)
        self._drawn.extend(positions)
        loss, tokens = self._task.train_step(windows, rate)
        self._step_number += 1
        for account in self._accounts:
            account.count_step(self._step_number, tokens)
        self._steps_since_adoption = [since + 1 for since in self._steps_since_adoption]
        ended_at = self._stepped_at = self._clock.monotonic()
        self._show(loss, tokens, rate, stepping=ended_at - began_at, offered=ended_at - previous)
        return 0.0

    def _show(self, loss: float, tokens: int, rate: float, *, stepping: float, offered: float) -> None:
        before = self.progress
        first = before.inner_steps == 0
        self.progress = replace(
            before, inner_steps=before.inner_steps + 1, tokens=before.tokens + tokens, learning_rate=rate,
            loss=loss if first else MEMORY * before.loss + (1 - MEMORY) * loss,
            step_seconds=offered if first else MEMORY * before.step_seconds + (1 - MEMORY) * offered,
            stepping_seconds=before.stepping_seconds + stepping, offered_seconds=before.offered_seconds + offered,
            position=self._cursor.position,
        )  # fmt: skip

    def _swarm_progress(self) -> float:
        """Return how many inner steps the swarm has come: a newcomer is at the learning rate of the others at once.

        Versions x H, and the steps since the last adoption, of which a round has about H.
        """
        interval_steps = self._config.rounds.inner_steps
        steps = [
            interval_steps * account.version + min(interval_steps, since)
            for account, since in zip(self._accounts, self._steps_since_adoption, strict=True)
        ]
        return sum(steps) / len(steps)

    def _open_account(self, fragment: Fragment, version: int, state: FragmentState) -> FragmentAccount:
        self._scatter(fragment, state.anchor)
        rounds = self._config.rounds
        return FragmentAccount(
            anchor=state.anchor, version=version, merged_step=state.ledger.last_step(self._me),
            keep={"rebase": 1.0, "mix": rounds.mix_share, "overwrite": 0.0}[rounds.adopt], keep_late=rounds.late_share,
            max_staleness=rounds.max_staleness, max_reorg=self._config.limits.max_reorg,
        )  # fmt: skip

    def _hand_over(self, fragment: int, answer: Callable[[HandOver | None], None]) -> None:
        self._post(answer, self._accounts[fragment].hand_over(self._gather(self._layout.fragments[fragment])))

    def _adopt(self, index: int, version: int, state: FragmentState) -> None:
        fragment, account = self._layout.fragments[index], self._accounts[index]
        adoption = account.adopt(self._gather(fragment), state.anchor, version, state.ledger.last_step(self._me))
        self._scatter(fragment, adoption.parameters)
        self._steps_since_adoption[index] = 0
        self._post(self._listener, AdoptionReport(index, version, adoption, account.tally()))

    def _gather(self, fragment: Fragment) -> Vector:
        """Return the local parameters of a fragment as one vector (num_elements,)."""
        return gather(self._task.read, fragment)

    def _scatter(self, fragment: Fragment, values: Vector) -> None:
        for piece in fragment.pieces:
            part = values[piece.place]
            if piece.num_elements == piece.tensor.num_elements:
                self._task.write(piece.tensor.name, part)
                continue
            whole = np.array(self._task.read(piece.tensor.name))
            whole[piece.start : piece.stop] = part
            self._task.write(piece.tensor.name, whole)


def gather(read: Callable[[str], Vector], fragment: Fragment) -> Vector:
    """Return the values of a fragment's pieces as one vector (num_elements,); `read` gives a tensor's flat values."""
    vector = np.empty(fragment.num_elements, np.float32)
    for piece in fragment.pieces:
        vector[piece.place] = read(piece.tensor.name)[piece.start : piece.stop]
    return vector


def assemble(layout: Layout, vectors: list[Vector]) -> dict[str, Vector]:
    """Return each tensor's flat values, put together from the fragments' vectors; empty tensors are absent."""
    tensors: dict[str, Vector] = {}
    for fragment, vector in zip(layout.fragments, vectors, strict=True):
        for piece in fragment.pieces:
            whole = tensors.setdefault(piece.tensor.name, np.empty(piece.tensor.num_elements, np.float32))
            whole[piece.start : piece.stop] = vector[piece.place]
    return tensors
