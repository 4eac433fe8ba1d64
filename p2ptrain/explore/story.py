"""One seed: a swarm that trains, faults at their moments, and the judgement after the last of them.

    0 s            a bootstrap peer hosts, an observer and trainers join
    40 s …         one fault after the other is armed; each waits until somebody is in its role of its phase
    the end        everything heals, whoever is away comes back, the swarm trains on for a while, then it is drained:
                   all live peers must come to one head per fragment with nothing pending, and every checker must agree

A phase that does not come by itself is brought about: somebody is started again, asked to leave, or cut off and healed.
"""

import asyncio
import contextlib
import random
import traceback
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final

from p2ptrain.config import DataConfig, FragmentsConfig, InnerConfig, ModelConfig, RunConfig
from p2ptrain.events import Event
from p2ptrain.explore.cast import Cast, Scene
from p2ptrain.explore.plan import Cell, Plan, PlannedFault
from p2ptrain.explore.trouble import Trouble
from p2ptrain.ids import digest
from p2ptrain.sim.checkers import Violation
from p2ptrain.sim.swarm import SimSwarm

STEP_SECONDS: Final = 1.0  # of an inner step
INNER_STEPS: Final = 20  # H: a round every 20 s
MAX_REORG: Final = 48  # commits: what a fast peer makes alone while cut off; a deeper split is people's business
PATIENCE: Final = 75.0  # virtual seconds for which an armed fault waits for its moment
PROVOKE_AFTER: Final = 1.0  # s until the moment is brought about
RETURN_TIMEOUT: Final = 150.0  # s within which everybody is back after the last fault
TRAIN_ON: Final = 60.0  # s of training after that
SETTLE_TIMEOUT: Final = 240.0  # s for a drained swarm to come to one head per fragment
MAX_SKIP: Final = 6  # moments that a fault lets pass, so that it does not always hit the first
MAX_DELAY: Final = 0.4  # s between a moment and its fault, in half of the cases

METHODS: Final = {
    "gathering": ("round.register",),
    "collecting": ("round.call", "round.contribute"),
    "closing": ("round.hold",),
    "spreading": ("chain.announce",),
    "syncing": ("run.manifest", "chain.heads", "chain.snapshot"),
}


def hunt_config(config: RunConfig) -> RunConfig:
    """Return a run like this one that costs little to simulate: the quadratic, P = 2, H = 20."""
    return config.model_copy(
        update={
            "model": ModelConfig(kind="quadratic", dim=8, layers=2),
            "data": DataConfig(source="none"),
            "inner": InnerConfig(learning_rate=0.1, warmup_steps=0, total_steps=1_000_000, windows_per_step=1),
            "fragments": FragmentsConfig(count=2),
            "rounds": config.rounds.model_copy(update={"inner_steps": INNER_STEPS}),
            "limits": config.limits.model_copy(update={"max_reorg": max(config.limits.max_reorg, MAX_REORG)}),
        }
    )


@dataclass(kw_only=True)
class Outcome:
    """What became of a seed."""

    plan: Plan
    rule: str = ""
    """The checker that complained; empty when all is well."""
    failure: str = ""
    at: float = 0.0
    """When it was over (virtual s)."""
    hits: list[tuple[int, Cell, float]] = field(default_factory=list)
    """Faults that found their moment: number, cell, when."""
    num_messages: int = 0
    versions: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    """The last things that were said in the swarm, of a failure."""

    @property
    def failed(self) -> bool:
        return bool(self.rule)


@dataclass(eq=False)
class _Armed:
    """A fault that waits for its moment."""

    fault: PlannedFault
    chance: random.Random
    skip: int
    delay: float
    done: asyncio.Event = field(default_factory=asyncio.Event)
    victim: str = ""
    """Chosen beforehand when its phase has to be brought about."""
    since: float = 0.0


class Story:
    """Runs one plan."""

    def __init__(self, config: RunConfig, plan: Plan, make_swarm: Callable[[RunConfig, Plan], SimSwarm]) -> None:
        self._plan = plan
        self.swarm = make_swarm(config, plan)
        self.outcome = Outcome(plan=plan)
        self._cast = Cast(self.swarm)
        self._armed: list[_Armed] = []
        self._trouble: Trouble
        self._listen: Callable[[str, Event], None]

    def run(self) -> Outcome:
        """Return what became of it; nothing that goes wrong in the swarm is raised."""
        outcome = self.outcome
        try:
            self.swarm.run(self._tell())
        except Violation as violation:
            outcome.rule, outcome.failure, outcome.at = violation.rule, str(violation), violation.at
        except AssertionError as error:
            outcome.rule, outcome.failure = "task-failed", str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the hunt has found it
            outcome.rule = type(error).__name__
            outcome.failure = f"seed {self._plan.seed}: {error}\n{traceback.format_exc(limit=-6)}"
        if outcome.failed:
            outcome.events = [
                f"{host} {event.kind} {event.fields}" for host, event in list(self.swarm.events)[-400:]
                if event.kind not in ("progress", "validation")
            ][-60:]  # fmt: skip
        return outcome

    async def _tell(self) -> None:
        chance = random.Random(digest("story", str(self._plan.seed).encode()))
        await self._begin(chance)
        faults = [asyncio.create_task(self._stage(fault)) for fault in self._plan.faults]
        await asyncio.sleep(max(0.0, self._plan.seconds - self._now))
        for task in faults:
            task.cancel()
        self._armed.clear()
        await self._judge()

    async def _begin(self, chance: random.Random) -> None:
        swarm = self.swarm
        host_trains = chance.random() < 0.5
        first = await swarm.host(train=host_trains)
        self._cast.bootstrap = first
        self._trouble = Trouble(swarm, bootstrap=first)
        if not host_trains:
            self._trouble.observers.add(first)
        swarm.hooks.append(self._hear_message)
        listen, swarm.on_event = swarm.on_event, self._hear_event
        self._listen = listen
        for number in range(self._plan.peers - 1):
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            if number == 0:
                self._trouble.observers.add(await swarm.join(train=False))
            else:
                await swarm.join(step_seconds=STEP_SECONDS)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # Faults and their moments

    async def _stage(self, fault: PlannedFault) -> None:
        await asyncio.sleep(max(0.0, fault.at - self._now))
        chance = self._plan.chance_of(fault)
        delay = chance.uniform(0.0, MAX_DELAY) if chance.random() < 0.5 else 0.0
        armed = _Armed(fault, chance, skip=chance.randrange(MAX_SKIP), delay=delay, since=self._now)
        self._armed.append(armed)
        try:
            async with asyncio.timeout(PATIENCE):
                await self._bring_about(armed)
                await armed.done.wait()
        except TimeoutError:
            pass
        finally:
            if armed in self._armed:
                self._armed.remove(armed)

    async def _bring_about(self, armed: _Armed) -> None:
        """Make sure that the role and the phase will be there."""
        fault, chance = armed.fault, armed.chance
        if fault.role == "newcomer" and fault.phase not in ("starting", "syncing") and not self._newcomers():
            self._born(self._trouble.newcomer(chance))
            while not self._newcomers():
                await asyncio.sleep(0.5)
        if fault.phase in ("starting", "syncing", "leaving"):
            await self._begin_or_end_a_life(armed)
        elif fault.phase == "reorg":
            await self._part_and_heal(armed)

    async def _begin_or_end_a_life(self, armed: _Armed) -> None:
        fault, chance = armed.fault, armed.chance
        while not armed.done.is_set():
            if fault.role == "newcomer" and fault.phase != "leaving":
                armed.victim = self._trouble.newcomer(chance)
                self._born(armed.victim)
            else:
                armed.victim = self._somebody(armed) or ""
                if armed.victim and fault.phase == "leaving":
                    self._trouble.leave_for_a_while(armed.victim, chance.choice([1.0, 10.0]))
                elif armed.victim:
                    self._trouble.restart_now(armed.victim)
            if armed.victim and fault.phase in ("starting", "leaving"):
                await asyncio.sleep(chance.uniform(0.06, 0.3) if fault.phase == "starting" else chance.uniform(0, 0.3))
                if armed.victim in (self.swarm.starting if fault.phase == "starting" else self.swarm.leaving):
                    self._strike(armed, armed.victim)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(12.0 if armed.victim else 1.0):
                    await armed.done.wait()

    def _somebody(self, armed: _Armed) -> str | None:
        """Return a host that plays the role on any fragment's head now."""
        hosts = [
            host
            for scene in self._cast.heads()
            for host in self._cast.who(armed.fault.role, scene, self._now, self._up())
        ]
        return armed.chance.choice(hosts) if hosts else None

    async def _part_and_heal(self, armed: _Armed) -> None:
        """Let two halves go their own ways for a round or two; the lighter one will have to come back."""
        chance = armed.chance
        while not armed.done.is_set():
            hosts = list(self.swarm.peers)
            left = chance.sample(hosts, len(hosts) // 2)
            mend = self._trouble.part(left, [host for host in self.swarm.host_names if host not in left])
            try:
                await asyncio.sleep(INNER_STEPS * STEP_SECONDS * chance.uniform(1.2, 1.7))
            finally:
                mend()
            armed.skip = chance.randrange(3)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(15.0):
                    await armed.done.wait()

    def _newcomers(self) -> list[str]:
        return [host for host in self._up() if self._cast.is_newcomer(host, self._now)]

    def _born(self, host: str) -> None:
        self._cast.born_at[host] = self._now

    def _up(self) -> list[str]:
        return [host for host in self.swarm.peers if host not in self._trouble.down]

    def _hear_message(self, host: str, direction: str, method: str) -> None:
        self.outcome.num_messages += 1
        for armed in list(self._armed):
            phase = armed.fault.phase
            if method not in METHODS.get(phase, ()):
                continue
            if phase == "syncing":
                if host == armed.victim and host not in self.swarm.peers and direction == "send":
                    self._consider(armed, [host])
            elif phase == "spreading":
                self._consider(armed, self._candidates(armed, self._spreading_scenes(host)))
            else:
                self._consider(armed, self._candidates(armed, list(self._cast.scenes(phase))))

    def _hear_event(self, host: str, event: Event) -> None:
        self._listen(host, event)
        if event.kind not in ("reorg", "resync", "fork"):
            return
        for armed in list(self._armed):
            if armed.fault.phase == "reorg":
                self._consider(armed, self._candidates(armed, self._spreading_scenes(host)))

    def _spreading_scenes(self, host: str) -> list[Scene]:
        peer = self.swarm.peers.get(host)
        if peer is None:
            return []
        scenes = []
        for follower in peer.chains.followers:
            head = follower.archive.head
            behind = any(
                other.chains.followers[head.fragment].archive.head.digest != head.digest
                for other in self.swarm.peers.values()
            )
            if behind:
                scenes.append(self._cast.scene_of(head))
        return scenes

    def _candidates(self, armed: _Armed, scenes: list[Scene]) -> list[str]:
        up = self._up()
        return [host for scene in scenes for host in self._cast.who(armed.fault.role, scene, self._now, up)]

    def _consider(self, armed: _Armed, hosts: list[str]) -> None:
        """Strike if somebody is in the role, unless this moment is to pass."""
        if not hosts or armed.done.is_set():
            return
        if armed.skip > 0 and self._now - armed.since < PATIENCE / 2:
            armed.skip -= 1
            return
        self._strike(armed, armed.chance.choice(hosts))

    def _strike(self, armed: _Armed, victim: str) -> None:
        if armed.done.is_set():
            return
        armed.done.set()
        fault = armed.fault
        self.outcome.hits.append((fault.number, fault.cell, round(self._now, 3)))
        if armed.delay and fault.phase not in ("starting", "syncing", "leaving"):
            asyncio.get_running_loop().call_later(armed.delay, self._begin_trouble, armed, victim, context=Context())
        else:
            self._begin_trouble(armed, victim)

    def _begin_trouble(self, armed: _Armed, victim: str) -> None:
        if victim in self._trouble.retired or (
            armed.delay and victim in self._trouble.down and armed.fault.phase not in ("starting", "syncing", "leaving")
        ):
            return  # something else was faster
        self._trouble.begin(armed.fault.kind, victim, armed.chance)

    # The judgement

    async def _judge(self) -> None:
        swarm, checkers = self.swarm, self.swarm.checkers
        healed_at = self._now
        missing = await self._trouble.heal_everything(RETURN_TIMEOUT)
        if missing:
            checkers.complain("return", f"{', '.join(missing)} did not come back within {RETURN_TIMEOUT:g} s", missing)
        await asyncio.sleep(TRAIN_ON)
        try:
            await swarm.settle(SETTLE_TIMEOUT)
        except TimeoutError:
            checkers.check_convergence(list(swarm.peers.values()), self._now - healed_at)
            checkers.complain("convergence", f"work is still pending {self._now - healed_at:g} s after the last fault")
        self.outcome.versions = swarm.versions()
        self.outcome.at = self._now


def run_plan(config: RunConfig, plan: Plan, make_swarm: Callable[[RunConfig, Plan], SimSwarm] | None = None) -> Outcome:
    """Run a plan on a swarm of its own and return what became of it."""
    return Story(config, plan, make_swarm or make_hunted_swarm).run()


def make_hunted_swarm(config: RunConfig, plan: Plan) -> SimSwarm:
    """Return the swarm of a plan, on the network that it names."""
    network: Any = None
    if plan.network:
        from p2ptrain.sim.profiles import load_network_profile

        network = load_network_profile(plan.network)
    return SimSwarm(config, seed=plan.seed, latency=0.05, network=network, step_seconds=STEP_SECONDS)
