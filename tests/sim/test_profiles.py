"""Network profiles: those that come with p2ptrain, what machines draw, and what is refused."""

import random
import statistics
from pathlib import Path

import pytest

from p2ptrain.config import shipped
from p2ptrain.errors import ConfigError, NetworkError
from p2ptrain.runtime import Address
from p2ptrain.sim.ports import SimWorld
from p2ptrain.sim.profiles import NetworkProfile, Place, Spread, load_network_profile, propagation

SHIPPED = ["datacenter", "home-internet", "hostile"]
ONE_CLASS = 'name = "mine"\n\n[[hosts]]\nname = "home"\nshare = 1\n'


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_network_profile(str(path))
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path))
    return message.removeprefix(str(path))


def test_three_profiles_come_with_p2ptrain_and_are_no_runs():
    assert sorted(shipped("configs/networks")) == SHIPPED
    assert not set(SHIPPED) & set(shipped("configs"))
    for name in SHIPPED:
        profile = load_network_profile(name)
        assert profile.name == name
        assert sum(kind.share for kind in profile.hosts) == pytest.approx(1.0)
        assert sum(kind.share for kind in profile.devices) == pytest.approx(1.0)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_seed_repeats_its_machines(name):
    profile = load_network_profile(name)

    def draw(seed: int) -> list[object]:
        chance = random.Random(seed)
        return [(profile.draw_host(chance), profile.draw_device(chance)) for _ in range(50)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_homes_are_as_the_world_has_them():
    profile, chance = load_network_profile("home-internet"), random.Random(1)
    hosts = [profile.draw_host(chance) for _ in range(4000)]
    assert sum(host.is_dialable for host in hosts) / len(hosts) == pytest.approx(0.2, abs=0.03)
    behind = [host for host in hosts if host.nat_kind is not None]
    assert sum(host.nat_kind == "port-restricted" for host in behind) > len(behind) / 2
    assert any(host.nat_kind == "symmetric" for host in behind) and any(host.carrier_kind for host in behind)
    slower_up = sum(host.up <= host.down for host in hosts if host.up and host.down)
    assert slower_up > 0.8 * len(hosts)
    assert 1e6 < statistics.median(host.up or 0 for host in hosts) < 5e6


def test_the_hostile_world_has_all_that_can_go_wrong():
    profile, chance = load_network_profile("hostile"), random.Random(1)
    hosts = [profile.draw_host(chance) for _ in range(2000)]
    assert all(0 < host.loss <= 0.03 and host.resets_per_hour > 0 and host.jitter > 0 for host in hosts)
    assert {host.nat_kind for host in hosts} == {
        None, "full-cone", "address-restricted", "port-restricted", "symmetric",
    }  # fmt: skip
    assert any(host.is_hidden for host in hosts) and any(host.refuses for host in hosts)
    assert any(host.up == 125_000 for host in hosts)  # 1 Mbit/s
    assert max(host.latency for host in hosts) > 0.2


def test_distances_are_near_published_round_trips():
    frankfurt, amsterdam, new_york = Place(50.1, 8.7), Place(52.4, 4.9), Place(40.7, -74.0)
    assert 0.070 < 2 * propagation(frankfurt, new_york) < 0.110
    assert 0.004 < 2 * propagation(frankfurt, amsterdam) < 0.012
    assert propagation(frankfurt, frankfurt) == 0.0


def test_a_quantity_has_its_median_and_its_90th_percentile():
    chance = random.Random(1)
    draws = sorted(Spread(median=20.0, p90=60.0).draw(chance) for _ in range(10_000))
    assert draws[5000] == pytest.approx(20.0, rel=0.05)
    assert draws[9000] == pytest.approx(60.0, rel=0.05)
    assert Spread(median=7.0).draw(chance) == 7.0


def test_machines_of_a_profile_reach_each_other_as_it_says():
    world, profile, chance = SimWorld(seed=1), load_network_profile("home-internet"), random.Random(4)

    async def story():
        network = world.network
        hosts = [profile.draw_host(chance) for _ in range(60)]
        names = [network.allocate(host) for host in hosts]
        assert len(set(names)) == 60
        for name in names:
            await world.runtime(name).network.listen(Address(name, 4001), lambda raw: None)
        for name, host in zip(names[1:], hosts[1:], strict=True):
            dial = network.host(names[0]).connect(Address(name, 4001))
            if host.is_dialable:
                stream = await dial
                expected = network.latency(names[0], name)
                assert 0.001 < expected < 0.4
                stream.abort()
            else:
                with pytest.raises(NetworkError, match="timed out"):
                    await dial

    world.run(story())


def test_other_profiles_are_read_from_a_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(ONE_CLASS + 'up_mbit = 8\nlatency_ms = { median = 5, p90 = 9 }\nreach = "symmetric"\n')
    profile = load_network_profile(str(path))
    assert isinstance(profile, NetworkProfile)
    host = profile.draw_host(random.Random(1))
    assert (host.up, host.down, host.nat_kind, host.place) == (1_000_000, None, "symmetric", None)
    assert profile.draw_device(random.Random(1)).speed == 1.0


def test_mistakes_are_one_line_each(tmp_path):
    assert refused(tmp_path, ONE_CLASS + "latency_ms = -5\n").startswith(":6: hosts")
    assert "-5" in refused(tmp_path, ONE_CLASS + "latency_ms = -5\n")
    assert "-1" in refused(tmp_path, ONE_CLASS + "jitter_ms = { median = -1 }\n")
    assert ":6:" in refused(tmp_path, ONE_CLASS + "latancy_ms = 5\n")
    assert "did you mean 'latency_ms'" in refused(tmp_path, ONE_CLASS + "latancy_ms = 5\n")
    assert "loss" in refused(tmp_path, ONE_CLASS + "loss = 1.5\n")
    assert "median" in refused(tmp_path, ONE_CLASS + "up_mbit = { median = 9, p90 = 3 }\n")
    assert "full-cone" in refused(tmp_path, ONE_CLASS + 'reach = "conical"\n')
    assert "carrier" in refused(tmp_path, ONE_CLASS + 'carrier = "symmetric"\n')
    assert "share" in refused(tmp_path, ONE_CLASS.replace("share = 1", "share = 0"))
    assert "hosts" in refused(tmp_path, 'name = "mine"\nhosts = []\n')
    assert "hosts" in refused(tmp_path, 'name = "mine"\n')
    assert "sessions" in refused(tmp_path, ONE_CLASS + "[sessions]\nstay = 4\n")


def test_a_profile_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(ConfigError, match=r"no network named 'home-internt' \(did you mean 'home-internet'\?\)"):
        load_network_profile("home-internt")
    with pytest.raises(ConfigError, match="No such file"):
        load_network_profile("nowhere.toml")
