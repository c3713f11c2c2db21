"""Whatever is wanted when, wherever runs are cut off: no live key is missing, and none counts as settled too early."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from publish_kit import HOUR, START, key, wanted

from nodeattest_identity.issuer.keys import read_jwks
from nodeattest_identity.publish import state as states
from nodeattest_identity.publish.paths import STATE
from nodeattest_identity.publish.plan import Current, plan
from nodeattest_identity.publish.store import StoredObject

_JWKS, _CONFIGURATION = "openid/v1/jwks", ".well-known/openid-configuration"
_NAMES = ("a", "b", "c")
_LIFE = 3 * HOUR
_ROUNDS = 4


@dataclass(frozen=True)
class Run:
    """One run of a publisher."""

    names: tuple[str, ...]
    after: int
    """Seconds since the run before."""
    writes: int
    """After how many writes it is cut off; one before its first wished nothing that anybody could know."""
    max_age: int


RUNS = st.lists(
    st.builds(
        Run,
        names=st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3, unique=True).map(tuple),
        after=st.integers(0, 6 * HOUR),
        writes=st.sampled_from([1, 2, 3, 9, 9]),
        max_age=st.sampled_from([60, HOUR, 5 * HOUR]),
    ),
    min_size=1,
    max_size=8,
)


@dataclass
class World:
    """A place, and what whoever watches it knows."""

    objects: dict[str, StoredObject] = field(default_factory=dict[str, StoredObject])
    last_wanted: dict[str, int] = field(default_factory=dict[str, int])
    seen: set[str] = field(default_factory=set[str])
    lacked_until: dict[str, int] = field(default_factory=dict[str, int])
    """Until when a cache may hold a key set without this key."""

    def there(self) -> set[str]:
        stored = self.objects.get(_JWKS)
        return set() if stored is None else {each.kid for each in read_jwks(stored.body)}

    def served(self, now: int) -> None:
        """Let a cache read the key set now."""
        stored = self.objects.get(_JWKS)
        if stored is None:
            return
        assert stored.cache_control is not None
        held = now + int(stored.cache_control.rpartition("=")[2])
        there = self.there()
        for name in _NAMES:
            kid = key(name).kid
            if kid not in there:
                self.lacked_until[kid] = max(held, self.lacked_until.get(kid, 0))

    def run(self, order: Run, now: int) -> None:
        want = replace(wanted(*order.names), retire_after=_LIFE, max_age=order.max_age)
        left = order.writes
        for _ in range(_ROUNDS):
            found = Current(
                state=self.objects.get(STATE),
                jwks=self.objects.get(_JWKS),
                configuration=self.objects.get(_CONFIGURATION),
            )
            for write in plan(found, want, now).writes:
                if left == 0:
                    return
                left -= 1
                self.served(now)
                version = None if (there := self.objects.get(write.path)) is None else there.version
                assert write.version == version
                self.objects[write.path] = StoredObject(
                    body=write.body,
                    version=f"{version}+",
                    content_type=write.content_type,
                    cache_control=write.cache_control,
                )
                self.check(now)

    def check(self, now: int) -> None:
        there = self.there()
        self.seen |= there
        alive = {kid for kid in self.seen if now < self.last_wanted[kid] + _LIFE}
        assert alive <= there
        for record in states.parse(self.objects[STATE].body).keys:
            if record.settled is not None and record.retire is None:
                assert record.key.kid in there
                assert record.settled >= self.lacked_until.get(record.key.kid, 0)


@settings(max_examples=80, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking takes minutes
@given(RUNS)
def test_no_live_key_is_ever_missing_and_none_counts_as_settled_too_early(runs: list[Run]) -> None:
    world, now = World(), START
    for order in runs:
        now += order.after
        world.served(now)
        world.seen &= world.there()  # what has gone by now had to: each write was checked
        world.last_wanted |= {key(name).kid: now for name in order.names}
        world.run(order, now)
    world.run(replace(runs[-1], writes=99), now + 1)
    assert {key(name).kid for name in runs[-1].names} <= world.there()
    assert states.parse(world.objects[STATE].body).changed is not None
