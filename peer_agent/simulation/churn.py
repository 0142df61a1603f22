"""Bad luck: at random moments something dies, sleeps, freezes, returns or is started again."""

from collections.abc import Callable

from msgspec import Struct

from peer_agent.simulation.trainer import Trainer
from peer_agent.simulation.world import World


class Weather(Struct, frozen=True, kw_only=True):
    """Mean virtual seconds between misfortunes of each kind; 0: never. All of them, not each peer's."""

    trainer_s: float = 4.0
    relay_s: float = 60.0
    host_s: float = 120.0


def befall(world: World, weather: Weather) -> None:
    """Let the weather begin."""
    _repeat(world, weather.trainer_s, lambda: _strike_trainer(world))
    _repeat(world, weather.relay_s, lambda: _strike_relay(world))
    _repeat(world, weather.host_s, lambda: _strike_host(world))


def _repeat(world: World, mean_s: float, strike: Callable[[], None]) -> None:
    if not mean_s:
        return

    def again() -> None:
        strike()
        _repeat(world, mean_s, strike)

    world.clock.after(world.chance.expovariate(1 / mean_s), again)


def _strike_trainer(world: World) -> None:
    trainer = list(world.trainers.values())[world.chance.randrange(len(world.trainers))]
    if not trainer.alive:
        trainer.start()
        return
    away_s = world.chance.uniform(0.5, 20.0)
    strikes: tuple[Callable[[], None], ...] = (
        lambda: _die(world, trainer, away_s),
        lambda: trainer.reconnect(away_s),
        lambda: _freeze(world, trainer, away_s),
        trainer.give_back,
    )
    strikes[world.chance.randrange(len(strikes))]()


def _die(world: World, trainer: Trainer, away_s: float) -> None:
    trainer.kill()
    world.clock.after(away_s, lambda: None if trainer.alive else trainer.start())


def _freeze(world: World, trainer: Trainer, away_s: float) -> None:
    trainer.freeze()
    world.clock.after(away_s, trainer.thaw)


def _strike_relay(world: World) -> None:
    if not world.relays:
        return
    relay = list(world.relays.values())[world.chance.randrange(len(world.relays))]
    if relay.alive:
        relay.kill()
        world.clock.after(world.chance.uniform(0.5, 5.0), lambda: None if relay.alive else relay.start())


def _strike_host(world: World) -> None:
    host = world.host
    if host is None:
        return
    if world.chance.random() < 0.5:
        world.restart_host(world.chance.uniform(0.2, 3.0))
    else:
        host.freeze()
        world.clock.after(world.chance.uniform(1.0, 15.0), host.thaw)
