"""How views become alike: push and pull with one random peer at a time, and news ahead of that.

Every interval a peer compares its view with that of a random live peer: a summary goes out, records that it lacks and
the names of those that the other lacks come back, and these follow. A member that came or left is news: it is passed
on at once to a few peers, who pass it on in turn when it is news to them, so that it reaches everybody in a few steps.
While a peer has few connections it talks to those whom it is not connected with; once it has enough, mostly to those
whom it is connected with, and now and then to somebody else, so that views stay mixed.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from p2ptrain.discovery.messages import MAX_RECORDS, Compare, Compared, Tell, Told
from p2ptrain.discovery.roster import Roster
from p2ptrain.errors import P2PTrainError, Refused
from p2ptrain.ids import PeerId
from p2ptrain.net.pool import ENOUGH_CONNECTIONS
from p2ptrain.net.transport import Transport
from p2ptrain.runtime import Runtime
from p2ptrain.tasks import TaskOwner

GOSSIP_INTERVAL: Final = 10.0  # seconds, give or take a quarter
MAX_INTERVAL: Final = 20.0  # the same with a full view: by then each exchange brings many records
INTERVAL_PER_MEMBER: Final = 0.2  # seconds: between the two
STRANGER_SHARE: Final = 0.1  # of exchanges, with somebody new, once there are enough connections
HURRY_INTERVAL: Final = 0.2  # seconds between exchanges with strangers
CALL_TIMEOUT: Final = 5.0  # seconds for an exchange of a few kB
NEWS_WINDOW: Final = 0.2  # seconds in which news is gathered into one message
NEWS_FANOUT: Final = 3  # peers told by each peer: reaches all but a few in log(N) steps; comparing does the rest
MIN_CONNECTIONS: Final = 8  # below, peers that are not connected come first: a small swarm becomes a full mesh
AVOID_WINDOW: Final = 60.0  # seconds for which a peer that could not be reached is not chosen again
MAX_CATCH_UP: Final = 4  # exchanges in a row with one peer: what a full view of 128 takes


class Gossip:
    """Keeps a roster's view up to date. `receive` takes in signed records, `on_failed` a peer that did not answer."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        transport: Transport,
        tasks: TaskOwner,
        roster: Roster,
        receive: Callable[[Iterable[bytes]], None],
        on_failed: Callable[[PeerId], None],
    ) -> None:
        self._runtime, self._transport, self._tasks = runtime, transport, tasks
        self._roster, self._receive, self._on_failed = roster, receive, on_failed
        self._avoid_until: dict[PeerId, float] = {}
        self._news: dict[PeerId, bytes] = {}  # at most one record per peer of the view
        self._has_news, self._hurry = asyncio.Event(), asyncio.Event()
        transport.handle_at_once(Compare, self._answer_compare)
        transport.handle_at_once(Tell, self._answer_tell)

    def start(self) -> None:
        self._tasks.spawn("gossip", self._gossip_forever())
        self._tasks.spawn("spread news", self._spread_news_forever())

    def spread(self, peers: Iterable[PeerId]) -> None:
        """Pass on the records of peers that came or say something new, and the farewells of those that left.

        With a full view nobody can tell who is new to the swarm, and nobody needs to know everybody.
        """
        for peer in peers:
            own, entry = self._roster.view.own, self._roster.view.get(peer)
            if own is not None and own.peer == peer:
                self._news[peer] = own.signed
            came = peer in self._roster.live and not self._roster.view.is_full
            if entry is not None and (came or entry.record.gone):
                self._news[peer] = entry.signed
        if self._news:
            self._has_news.set()
        if self._strangers():
            self._hurry.set()

    async def exchange(self, peer: PeerId) -> None:
        """Compare views with a peer until neither lacks anything that the other has."""
        for _ in range(MAX_CATCH_UP):
            try:
                num_exchanged = await self._compare(peer)
            except P2PTrainError:
                self._avoid_until[peer] = self._runtime.clock.monotonic() + AVOID_WINDOW
                self._on_failed(peer)
                return
            if num_exchanged < MAX_RECORDS:
                return

    async def tell(self, peer: PeerId, records: Iterable[bytes]) -> None:
        """Give a peer some records; that it cannot be reached is for others to find out."""
        try:
            await self._transport.call(peer, Tell(records=tuple(records)), Told, timeout=CALL_TIMEOUT)
        except P2PTrainError:
            return

    async def _compare(self, peer: PeerId) -> int:
        """Exchange what either side lacks, MAX_RECORDS each way at most; return the larger number of the two."""
        view, wall = self._roster.view, self._runtime.clock.wall
        question = Compare(summary=view.summary(wall()))
        answer = (await self._transport.call(peer, question, Compared, timeout=CALL_TIMEOUT)).message
        self._receive(answer.records)
        wanted = tuple(entry.signed for entry in view.tagged(set(answer.wanted), wall()))
        if wanted:
            await self._transport.call(peer, Tell(records=wanted), Told, timeout=CALL_TIMEOUT)
        return max(len(answer.records), len(wanted))

    def _answer_compare(self, sender: PeerId, request: Compare) -> Compared:
        chance = self._runtime.entropy.random
        try:
            lacking, wanted = self._roster.view.compare(request.summary, self._runtime.clock.wall(), chance)
        except ValueError as error:
            raise Refused("malformed", str(error)) from None
        return Compared(
            records=tuple(entry.signed for entry in chance.sample(lacking, min(len(lacking), MAX_RECORDS))),
            wanted=tuple(chance.sample(wanted, min(len(wanted), MAX_RECORDS))),
        )

    def _answer_tell(self, sender: PeerId, request: Tell) -> Told:
        self._receive(request.records)
        return Told()

    async def _gossip_forever(self) -> None:
        while True:
            peer = self._choose()
            if peer is not None:
                await self.exchange(peer)
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next exchange is due: soon while there are strangers to meet."""
        chance = self._runtime.entropy.random
        await asyncio.sleep(HURRY_INTERVAL * chance.uniform(0.5, 1.5))
        if not self._strangers():
            self._hurry.clear()
        try:
            async with asyncio.timeout(self._interval * chance.uniform(0.75, 1.25)):
                await self._hurry.wait()
        except TimeoutError:
            return

    @property
    def _interval(self) -> float:
        return min(max(GOSSIP_INTERVAL, INTERVAL_PER_MEMBER * len(self._roster.live)), MAX_INTERVAL)

    def _choose(self) -> PeerId | None:
        chance = self._runtime.entropy.random
        candidates = self._strangers() or self._approachable()
        if len(self._roster.connected) >= ENOUGH_CONNECTIONS and chance.random() >= STRANGER_SHARE:
            candidates = [peer for peer in candidates if peer in self._roster.connected] or candidates
        return chance.choice(candidates) if candidates else None

    def _strangers(self) -> list[PeerId]:
        """Return the peers to get connected with first, while connections are few."""
        if len(self._roster.connected) >= MIN_CONNECTIONS:
            return []
        return [peer for peer in self._approachable() if peer not in self._roster.connected]

    def _approachable(self) -> list[PeerId]:
        """Return who is connected or can be dialled; who says that nobody can dial it will come by itself."""
        now, connected = self._runtime.clock.monotonic(), self._roster.connected
        self._avoid_until = {peer: until for peer, until in self._avoid_until.items() if until > now}
        return [
            peer
            for peer, record in self._roster.live.items()
            if peer in connected or (peer not in self._avoid_until and record.reachable is not False)
        ]

    async def _spread_news_forever(self) -> None:
        while True:
            await self._has_news.wait()
            await asyncio.sleep(NEWS_WINDOW)
            told = list(self._news)[:MAX_RECORDS]
            news = {peer: self._news.pop(peer) for peer in told}
            if not self._news:
                self._has_news.clear()
            audience = sorted(self._roster.connected)
            chosen = self._runtime.entropy.random.sample(audience, min(NEWS_FANOUT, len(audience)))
            for peer in chosen:
                records = [record for about, record in news.items() if about != peer]
                if records:
                    self._tasks.spawn("tell news", self.tell(peer, records))
