"""A peer: the services of one process, put together and taken apart in order.

    host    make (or resume) a run, listen, train
    join    dial the link's peers, fetch and verify the run, sync state, train
    both    register with leaders, follow chains, gossip; on `leave` say goodbye and save

The order of the services is the order of the imports below: transport, members, chains, rounds, learner.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from p2ptrain.averaging.merge import Merge, merge
from p2ptrain.averaging.rounds import Rounds
from p2ptrain.config import RunConfig
from p2ptrain.discovery.addresses import announced_addresses, only_loopback
from p2ptrain.discovery.directory import Directory
from p2ptrain.discovery.members import Members
from p2ptrain.discovery.records import HeadRecord
from p2ptrain.errors import LinkError, NetworkError, Refused, RemoteProtocolError, StorageError, UnreachableError
from p2ptrain.events import Events
from p2ptrain.fragments.chain import Commit
from p2ptrain.fragments.follower import Adopted
from p2ptrain.fragments.layout import Layout, TensorSpec, make_layout
from p2ptrain.fragments.messages import Done
from p2ptrain.fragments.pure import Pure
from p2ptrain.fragments.state import FragmentState
from p2ptrain.fragments.store import RunStore, hosted_runs
from p2ptrain.fragments.sync import ChainSync
from p2ptrain.ids import PeerId, RunId, format_run_id
from p2ptrain.link import JoinLink, LinkPeer
from p2ptrain.net import own_port
from p2ptrain.net.identity import Identity
from p2ptrain.net.transport import Transport, TransportLimits
from p2ptrain.run import MAX_MANIFEST_BYTES, HeldOut, RunManifest, create_run
from p2ptrain.runtime import Address, Drive, Runtime
from p2ptrain.tasks import TaskOwner, describe
from p2ptrain.training.cursor import WindowCursor
from p2ptrain.training.learner import AdoptionReport, Learner, assemble, gather
from p2ptrain.training.preparation import Training, import_torch, prepare, restore_inner_state
from p2ptrain.training.task import Task, tensor_specs
from p2ptrain.wire.messages import Message

JOIN_TIMEOUT = 30.0  # seconds to reach one of the link's peers
FETCH_TIMEOUT = 20.0
MANIFEST_ATTEMPTS = 4  # rounds of asking everybody who is connected: a connection may break at any time
SAVE_INTERVAL = 30.0  # seconds of work that a crash of every peer at once would cost
VALIDATION_INTERVAL = 15.0  # seconds; one validation costs about as much as two inner steps
PROGRESS_INTERVAL = 1.0
ADDRESS_INTERVAL = 15.0  # seconds between looks at this machine's own addresses
VIEW_WINDOW = 1.0  # seconds from announcing oneself to the first step, so that others have stopped drawing our windows
LEAVE_TIMEOUT = 4.0  # seconds for goodbyes and saving; the promise to the user is five
POSITION_MARGIN = (
    4096  # windows that live peers may draw before they know of a newcomer: some ten seconds of eight peers
)


class GetManifest(Message):
    """Send the run's manifest as the body."""

    method: ClassVar[str] = "run.manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """How this process takes part; from peers/*.toml and the command line."""

    listen: Address
    announce: tuple[Address, ...] = ()
    train: bool = True
    device: str = "cpu"
    threads: int = 1
    data: str = ""
    new_swarm: bool = False
    max_connections: int = 256
    use_directory: bool = True
    """Whether to take part in the DHT as well as in gossip."""
    progress_interval: float = PROGRESS_INTERVAL
    """Seconds between two accounts of itself, to the log and to the other peers."""
    validation_interval: float = VALIDATION_INTERVAL
    """Seconds between two validations of the anchors."""
    make_training: Callable[[RunConfig, HeldOut | None], Training] | None = None
    """Makes what a trainer has, in place of the run's own text and model: for simulations and tests."""
    pure: Pure | None = None
    """What is worked out from bytes alone, when that is shared by many peers of one process."""
    merge: Merge = merge
    """Merges a round when this peer leads it, in place of the run's rule: for tests of other rules."""

    def prepare(self, config: RunConfig, held_out: HeldOut | None) -> Training:
        """Read the text and make the model as these options say (on a worker thread)."""
        if self.make_training is not None:
            return self.make_training(config, held_out)
        return prepare(config, held_out, data=self.data, threads=self.threads, device=self.device)

    def specs(self, config: RunConfig) -> list[TensorSpec]:
        """Return what a peer that does not train needs to know of the model (on a worker thread)."""
        if self.make_training is not None:
            return self.make_training(config, None).task.shapes()
        return tensor_specs(config)


class Peer:
    """One peer. Make it with `hosting` or `joining`, then `start` it; it runs until `leave`."""

    def __init__(
        self, runtime: Runtime, identity: Identity, options: PeerOptions, events: Events, run_id: RunId
    ) -> None:
        self.run_id, self.options, self.events = run_id, options, events
        limits = TransportLimits.within(options.max_connections)
        self.transport = Transport(runtime=runtime, identity=identity, run_id=run_id, events=events, limits=limits)
        self.members: Members
        self.directory: Directory | None = None
        self.chains: ChainSync
        self.learner: Learner | None = None
        self.manifest: RunManifest
        self.listening_at: Address
        self.first_step = 0
        """Inner steps of this identity's earlier lives have lower numbers."""
        self.latest_validation: tuple[float, int] = (float("nan"), 0)  # loss, version
        self._begin_with: Callable[[], Awaitable[None]]
        self._runtime, self._identity = runtime, identity
        self._pure = options.pure or Pure.of_one_peer()
        self._store = RunStore(runtime.storage, run_id, self._pure)
        self._tasks = TaskOwner(events)
        self._vital_tasks = TaskOwner(events, on_failure=self._fail)  # what a peer cannot be without
        self._layout: Layout
        self._training: Training | None = None
        self._rounds: Rounds
        self._opened_at = 0.0
        self._drive: Drive | None = None
        self._left = False
        self._failure: BaseException | None = None
        self._has_failed = asyncio.Event()
        self._saving = asyncio.Lock()  # one writer at a time

    @property
    def peer_id(self) -> PeerId:
        return self.transport.peer_id

    # Two ways to begin

    @classmethod
    async def hosting(
        cls, runtime: Runtime, identity: Identity, config: RunConfig, options: PeerOptions, events: Events
    ) -> "Peer":
        """Return a peer that will start a new swarm for a run, or resume the one that this identity hosted before."""
        run = runtime.compute.run
        training = await run(options.prepare, config, None)
        layout = make_layout(training.task.shapes(), config.fragments.count)
        saved = [] if options.new_swarm else await run(hosted_runs, runtime.storage, options.pure or Pure.of_one_peer())
        manifest = next((one for one in saved if one.owner == identity.peer_id and one.config == config), None)
        states: list[FragmentState] = []
        if manifest is None:
            anchors = [gather(training.task.read, fragment) for fragment in layout.fragments]
            held_out = tuple(training.corpus.validation_manifest()) if training.corpus else ()
            manifest, states = create_run(
                config, layout, anchors, owner=identity.peer_id, signer=identity, nonce=runtime.entropy.bytes(16),
                now=runtime.clock.wall(), held_out=held_out,
            )  # fmt: skip
        peer = cls(runtime, identity, options, events, manifest.run_id)
        events.emit("run", run=format_run_id(manifest.run_id), run_name=config.name, resumed=not states)
        peer._begin_with = lambda: peer._host(manifest, layout, training, states)
        return peer

    @classmethod
    def joining(
        cls, runtime: Runtime, identity: Identity, link: JoinLink, options: PeerOptions, events: Events
    ) -> "Peer":
        """Return a peer that will join the run that a link names."""
        peer = cls(runtime, identity, options, events, link.run_id)
        peer._begin_with = lambda: peer._join(link)
        return peer

    async def start(self) -> None:
        """Take part, or raise what stands in the way (and leave nothing behind)."""
        try:
            await self._begin_with()
        except BaseException:
            await self._stop_everything()
            raise

    async def _host(
        self, manifest: RunManifest, layout: Layout, training: Training, states: list[FragmentState]
    ) -> None:
        self.manifest, self._layout = manifest, layout
        self._training = training if self.options.train else None
        manifest.check_layout(layout)
        await self._runtime.compute.run(self._store.save_manifest, manifest)
        await self._open([])
        saved = await self._runtime.compute.run(self._store.load_heads, layout, manifest.config.outer)
        missing = [index for index, head in enumerate(saved) if head is None]
        if missing:  # new, or killed before everything was saved: these fragments begin at the initial values
            states = states or self._remade_genesis(training.task)
            fresh = [(manifest.genesis_commit(index), states[index]) for index in missing]
            await self._runtime.compute.run(self._store.save_heads, fresh)
            for index, head in zip(missing, fresh, strict=True):
                saved[index] = head
        await self._begin([head for head in saved if head is not None])

    def _remade_genesis(self, task: Task) -> list[FragmentState]:
        outer, created_at = self.manifest.config.outer, self.manifest.created_at
        vectors = [gather(task.read, fragment) for fragment in self._layout.fragments]
        states = [FragmentState.genesis(vector, outer, created_at) for vector in vectors]
        if tuple(state.digest for state in states) != self.manifest.genesis:
            raise LinkError("this run's initial values are lost: host it anew with --new-swarm")
        return states

    async def _join(self, link: JoinLink) -> None:
        warm = (
            self._tasks.spawn("import what training needs", self._runtime.compute.run(import_torch))
            if self.options.train and self.options.make_training is None
            else None
        )
        started_at = self._runtime.clock.monotonic()
        await self._open(link.peers)
        if all(entry.peer == self.peer_id for entry in link.peers):
            await self._dial_own_address(link.peers[0].address)
        try:
            await self.members.wait_joined(JOIN_TIMEOUT)
        except UnreachableError as error:
            raise UnreachableError(f"none of the link's peers could be reached:\n{error}") from None
        self._stage("connected", started_at)
        self.manifest = await self._fetch_manifest()
        if warm is not None:
            await warm
        config, run = self.manifest.config, self._runtime.compute.run
        if self.options.train:
            self._training = await run(self.options.prepare, config, self.manifest.held_out)
        specs = self._training.task.shapes() if self._training else await run(self.options.specs, config)
        self._layout = make_layout(specs, config.fragments.count)
        self.manifest.check_layout(self._layout)
        self._stage("prepared", started_at)
        await self._runtime.compute.run(self._store.save_manifest, self.manifest)
        self.chains = self._make_chains()
        start = await self.chains.fetch_heads(lambda: [record.peer for record in self.members.live()])
        self._stage("synced", started_at)
        await self._begin(start)
        self.events.emit("joined", seconds=round(self._runtime.clock.monotonic() - started_at, 3))

    async def _dial_own_address(self, address: Address) -> None:
        """Find out who is behind a link that names only ourselves; IdentityInUseError when it is another process."""
        try:
            await self.transport.dial(address)
        except NetworkError as error:
            raise UnreachableError(f"the link names only this peer itself, at {address}: {error.reason}") from None

    def _stage(self, name: str, started_at: float) -> None:
        self.events.emit("stage", name=name, seconds=round(self._runtime.clock.monotonic() - started_at, 3))

    async def _fetch_manifest(self) -> RunManifest:
        """Return the run's manifest from disk or from any peer, checked against the link's run id."""
        saved = await self._runtime.compute.run(self._store.load_manifest)
        if saved is not None:
            return saved
        reasons: list[str] = []
        for attempt in range(MANIFEST_ATTEMPTS):
            reasons.clear()
            for peer in self.transport.connected():
                try:
                    reply = await self.transport.call(
                        peer, GetManifest(), Done, timeout=FETCH_TIMEOUT, bulk=True, max_body_bytes=MAX_MANIFEST_BYTES
                    )
                    return RunManifest.from_bytes(bytes(reply.body), expected=self.run_id, verify=self._pure.verify)
                except (NetworkError, Refused, RemoteProtocolError, LinkError) as error:
                    reasons.append(f"{peer[-6:]}: {error}")
            await asyncio.sleep(0.5 * (attempt + 1))
        raise LinkError(f"no peer could give the run's manifest: {'; '.join(reasons) or 'none is connected'}")

    # Services, from the network up

    async def _open(self, bootstrap: Sequence[LinkPeer]) -> None:
        self._opened_at = self._runtime.clock.monotonic()
        self.listening_at = await own_port.listen(self.transport, self._runtime, self.options.listen)
        self.transport.handle(GetManifest, self._serve_manifest)
        self.members = Members(
            runtime=self._runtime, transport=self.transport, identity=self._identity, events=self.events,
            role="trainer" if self.options.train else "bootstrap", bootstrap=bootstrap,
            own_addresses=announced_addresses(self.listening_at, self._runtime.network.local_hosts(), self.options.announce),
            verify=self._pure.verify, parse=self._pure.parse_member,
        )  # fmt: skip
        self.members.on_fatal(self._fail)
        await self.members.start()

    async def _open_directory(self) -> None:
        """Take part in the DHT; nothing waits for it, since who is in the view is found without."""
        directory = Directory(
            runtime=self._runtime,
            transport=self.transport,
            identity=self._identity,
            events=self.events,
            members=self.members,
        )
        self.directory = directory
        await directory.start()
        for follower in self.chains.followers:
            follower.on_adopted(lambda adopted: directory.publish_head(self._head_record(adopted.commit)))

    def _head_record(self, commit: Commit) -> HeadRecord:
        return HeadRecord(
            fragment=commit.fragment, digest=commit.digest, total_work=commit.total_work, holders=(self.peer_id,),
            issued_at=self._runtime.clock.wall(),
        )  # fmt: skip

    async def _serve_manifest(self, _sender: PeerId, _request: GetManifest, _body: bytearray) -> tuple[Done, bytes]:
        if not hasattr(self, "manifest"):
            raise Refused("not-yet", "this peer is joining itself", retry_after=1.0)
        return Done(), self.manifest.to_bytes()

    def _make_chains(self) -> ChainSync:
        return ChainSync(
            config=self.manifest.config, layout=self._layout, transport=self.transport, runtime=self._runtime,
            events=self.events, pure=self._pure, others=self.transport.connected,
        )  # fmt: skip

    async def _begin(self, start: Sequence[tuple[Commit, FragmentState]]) -> None:
        """Serve and follow chains from these heads, lead and take part in rounds, and train."""
        if not hasattr(self, "chains"):
            self.chains = self._make_chains()
        self.chains.begin(start)
        for follower in self.chains.followers:
            follower.on_adopted(self._report_adoption)
        if self._training is not None:
            self.learner = await self._make_learner(self._training.task, start)
        self._rounds = Rounds(
            sync=self.chains, config=self.manifest.config, transport=self.transport, runtime=self._runtime, events=self.events,
            signer=self._identity, pure=self._pure, others=self._possible_leaders, can_lead=self.members.can_be_dialled,
            num_live=self.num_live_trainers, merge=self.options.merge,
        )  # fmt: skip
        self._rounds.start(self.learner)
        self.events.emit(
            "started", peer=self.peer_id, run=format_run_id(self.run_id), run_name=self.manifest.config.name,
            role="trainer" if self.options.train else "bootstrap", listen=str(self.listening_at), link=str(self.join_link()),
            data=self._training.corpus.describe() if self._training and self._training.corpus else "",
        )  # fmt: skip
        self._tasks.spawn("save", self._save_now_and_then())
        if not self.options.announce:
            self._tasks.spawn("watch own addresses", self._watch_addresses())
        if self.options.use_directory:
            self._tasks.spawn("take part in the DHT", self._open_directory())
        if self.options.train:
            self._tasks.spawn("validate", self._validate_now_and_then())
        if self.learner is not None:
            self._drive = self._runtime.compute.drive(self.learner.step)
            self._vital_tasks.spawn("learner", self._drive.stopped())
            self._tasks.spawn("show progress", self._show_progress(self.learner))

    async def _make_learner(self, task: Task, start: Sequence[tuple[Commit, FragmentState]]) -> Learner:
        reserved = await self._runtime.compute.run(self._store.reserve_steps)
        self.first_step = max(reserved, *(state.ledger.last_step(self.peer_id) for _, state in start))
        position, inner_state = await self._runtime.compute.run(self._store.load_learner)
        await asyncio.sleep(max(0.0, self._opened_at + VIEW_WINDOW - self._runtime.clock.monotonic()))
        if inner_state:
            await self._runtime.compute.run(restore_inner_state, task, inner_state)
        cursor = WindowCursor(run_id=self.run_id, me=self.peer_id, num_windows=task.num_windows, position=position)
        cursor.join([record.position for record in self.members.live()], POSITION_MARGIN)
        learner = Learner(
            task=task, layout=self._layout, config=self.manifest.config, clock=self._runtime.clock, cursor=cursor,
            post=self._runtime.compute.post, me=self.peer_id, first_step=self.first_step,
            start=[(commit.version, state) for commit, state in start],
        )  # fmt: skip
        learner.on_adopted(self._report_dropped)
        if self.manifest.config.data.source != "path":  # who brings his own text shares no windows
            learner.set_live(self.members.trainers())
            self.members.on_change(lambda: learner.set_live(self.members.trainers()))
        for follower in self.chains.followers:
            follower.on_adopted(
                lambda adopted: learner.adopt(adopted.commit.fragment, adopted.commit.version, adopted.state)
            )
        return learner

    def _fail(self, error: BaseException) -> None:
        """Note what this peer cannot go on after; the first such error is the one that its user hears of."""
        self._failure = self._failure or error
        self._has_failed.set()

    def _possible_leaders(self) -> list[PeerId]:
        """Return the others that may lead: trainers, and those that help without training and can be dialled."""
        can_be_dialled = self.members.can_be_dialled
        return [one.peer for one in self.members.live() if one.role == "trainer" or can_be_dialled(one.peer)]

    # What may be asked of it

    def num_live_trainers(self) -> int:
        """Return how many trainers are alive in this peer's view, itself included."""
        return len(self.members.trainers()) + int(self.learner is not None)

    @property
    def only_loopback(self) -> bool:
        """Whether nobody outside this machine can use the join link."""
        return only_loopback(self.members.own_record.addresses)

    async def failed(self) -> None:
        """Wait until the learner or the membership fails, and raise what it raised."""
        await self._has_failed.wait()
        assert self._failure is not None  # set before the event
        raise self._failure

    def join_link(self) -> JoinLink:
        """Return a link with this peer first, and others that are alive now; if nobody can dial this one, without it."""
        own = [LinkPeer(self.peer_id, address) for address in self.members.own_record.addresses[:1]]
        others = self.members.dialable()
        if self.members.own_record.reachable is False and others:
            return JoinLink.of(self.run_id, others)
        return JoinLink.of(self.run_id, own + others)

    def drain(self) -> None:
        """Train no more; merge what is pending without waiting for intervals."""
        if self.learner is not None:
            self.learner.pause()
        self._rounds.hurry()
        self.events.emit("draining")

    async def leave(self) -> None:
        """Say goodbye, save, and stop; takes at most five seconds."""
        if self._left:
            return
        self._left = True
        began_at = self._runtime.clock.monotonic()
        if self._drive is not None:
            self._drive.stop()
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT):
                await self.members.leave()
                if self.directory is not None:
                    await self.directory.leave()
                await self._save_heads()
                if self.learner is not None and self._drive is not None:
                    await self._drive.stopped()  # its step may be long; what it has not merged is lost anyway
                    await self._save_learner(self.learner, await self._runtime.compute.run(self._inner_state))
        except TimeoutError:
            self.events.emit("leave-timeout", seconds=LEAVE_TIMEOUT)
        except StorageError as error:
            self.events.emit("not-saved", reason=str(error))
        except Exception as error:  # noqa: BLE001 - the border of a life: whatever failed is said, and it ends all the same
            self.events.emit("task-failed", task="leave", error=describe(error))
        await self._stop_everything()
        self.events.emit("left", seconds=round(self._runtime.clock.monotonic() - began_at, 3))

    async def abandon(self) -> None:
        """Stop without a goodbye and without saving."""
        self._left = True
        await self._stop_everything()

    async def _stop_everything(self) -> None:
        if self._drive is not None:
            self._drive.stop()
        await self._tasks.close()
        await self._vital_tasks.close()
        if hasattr(self, "_rounds"):
            await self._rounds.close()
        if hasattr(self, "chains"):
            await self.chains.close()
        if self.directory is not None:
            await self.directory.close()
        if hasattr(self, "members"):
            await self.members.leave()
        await self.transport.close()

    def anchors(self) -> list[FragmentState]:
        return [follower.archive.state for follower in self.chains.followers]

    # In the background

    def _report_adoption(self, adopted: Adopted) -> None:
        commit = adopted.commit
        if self.peer_id in commit.next:
            self.members.reachability.role_matters()
        self.events.emit(
            "adopted", fragment=commit.fragment, version=commit.version, commit=commit.digest.hex(), parent=commit.parent.hex(),
            leader=commit.leader, total_work=commit.total_work, committed_at=commit.committed_at, depth=adopted.depth,
            tokens=commit.tokens, included=self.peer_id in commit.contributors,
        )  # fmt: skip

    def _report_dropped(self, report: AdoptionReport) -> None:
        for reason, tokens in report.adoption.dropped.items():
            self.events.emit("dropped", fragment=report.fragment, tokens=tokens, reason=reason)

    async def _watch_addresses(self) -> None:
        """Announce other addresses when this machine gets others, as from Wi-Fi to mobile."""
        announced = set(self.members.own_record.addresses)
        while True:
            await asyncio.sleep(ADDRESS_INTERVAL)
            addresses = announced_addresses(self.listening_at, self._runtime.network.local_hosts())
            if set(addresses) != announced:
                announced = set(addresses)
                self.members.set_addresses(addresses)

    async def _show_progress(self, learner: Learner) -> None:
        tokens_before, at_before = 0, self._runtime.clock.monotonic()
        while True:
            at_before_sleep = self._runtime.clock.monotonic()
            await asyncio.sleep(self.options.progress_interval)
            progress, now = learner.progress, self._runtime.clock.monotonic()
            if tokens_before == 0 and progress.inner_steps:
                self.events.emit("training", first_step=progress.inner_steps)
            rate = (progress.tokens - tokens_before) / (now - at_before)
            tokens_before, at_before = progress.tokens, now
            self.members.update_own(
                position=progress.position, num_inner_steps=progress.inner_steps, tokens_per_second=rate
            )
            tallies, counters = learner.tallies(), self.transport.counters()
            self.events.emit(
                "progress", inner_steps=progress.inner_steps, tokens=progress.tokens, loss=progress.loss,
                learning_rate=progress.learning_rate, tokens_per_second=rate, utilisation=progress.utilisation,
                position=progress.position, tokens_merged=sum(tally.merged for tally in tallies) // len(tallies),
                pending=sum(tally.pending for tally in tallies) // len(tallies), drawn=learner.take_drawn(),
                bytes_sent=counters["bytes_sent"], bytes_received=counters["bytes_received"],
                loop_lag=round(max(0.0, now - at_before_sleep - self.options.progress_interval), 4),
            )  # fmt: skip

    async def _validate_now_and_then(self) -> None:
        while True:
            await self.validate()
            await asyncio.sleep(self.options.validation_interval)

    async def validate(self) -> float:
        """Return the validation loss (nats per token) of the anchors as they are now; NaN without a model here."""
        if self._training is None:
            return float("nan")
        version = min(follower.archive.head.version for follower in self.chains.followers)
        tensors = assemble(self._layout, [state.anchor for state in self.anchors()])
        loss, num_windows = await self._runtime.compute.run(self._training.evaluator.evaluate, tensors.__getitem__)
        self.latest_validation = loss, version
        self.events.emit("validation", loss=loss, version=version, num_windows=num_windows)
        return loss

    async def _save_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(SAVE_INTERVAL)
            try:
                await self._save()
            except StorageError as error:  # a full disk must not end the training; it may have room again next time
                self.events.emit("not-saved", reason=str(error))

    async def _save(self) -> None:
        """Write heads, the learner's position and the inner optimizer's state to disk."""
        await self._save_heads()
        if self.learner is not None:
            answer: asyncio.Future[bytes] = asyncio.Future()
            self.learner.request_state(lambda state: None if answer.done() else answer.set_result(state))
            await self._save_learner(self.learner, await answer)

    async def _save_heads(self) -> None:
        heads = [(follower.archive.head, follower.archive.state) for follower in self.chains.followers]
        async with self._saving:
            await self._runtime.compute.run(self._store.save_heads, heads)

    async def _save_learner(self, learner: Learner, inner_state: bytes) -> None:
        async with self._saving:
            await self._runtime.compute.run(self._store.save_learner, learner.progress.position, inner_state)

    def _inner_state(self) -> bytes:
        """Return the inner optimizer's state; only once the learner has stopped, since the task is its own till then."""
        assert self._training is not None
        return self._training.task.state_bytes()
