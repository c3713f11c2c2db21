"""Whatever is desired when, and wherever runs are cut off: no key whose tokens may be valid is ever missing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from publish_kit import HOUR, START, key, wanted

from nodeattest_identity.issuer.keys import read_jwks
from nodeattest_identity.publish.plan import CONFIGURATION, STATE, Current, plan
from nodeattest_identity.publish.store import StoredObject

_JWKS = "openid/v1/jwks"
_NAMES = ("a", "b", "c")
_LIFE = 3 * HOUR


@dataclass(frozen=True)
class Run:
    """One run of a publisher."""

    names: tuple[str, ...]
    after: int
    """Seconds since the run before."""
    writes: int
    """After how many writes it is cut off."""


RUNS = st.lists(
    st.builds(
        Run,
        names=st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3, unique=True).map(tuple),
        after=st.integers(0, 6 * HOUR),
        writes=st.sampled_from([1, 2, 3, 9, 9]),
    ),
    min_size=1,
    max_size=8,
)


@dataclass
class World:
    """A store, and what an observer knows."""

    objects: dict[str, StoredObject] = field(default_factory=dict[str, StoredObject])
    last_desired: dict[str, int] = field(default_factory=dict[str, int])
    seen: set[str] = field(default_factory=set[str])

    def published(self) -> set[str]:
        stored = self.objects.get(_JWKS)
        return set() if stored is None else {each.kid for each in read_jwks(stored.body)}

    def run(self, order: Run, now: int) -> None:
        found = Current(
            state=self.objects.get(STATE),
            jwks=self.objects.get(_JWKS),
            configuration=self.objects.get(CONFIGURATION),
        )
        for write in plan(found, replace(wanted(*order.names), retire_after=_LIFE), now).writes[: order.writes]:
            assert write.replaces == self.objects.get(write.path)
            self.objects[write.path] = StoredObject(body=write.body, e_tag="")
            self.seen |= self.published()
            alive = {kid for kid in self.seen if now < self.last_desired[kid] + _LIFE}
            assert alive <= self.published()


@settings(max_examples=80, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking takes minutes
@given(RUNS)
def test_no_key_whose_tokens_may_be_valid_is_ever_missing(runs: list[Run]) -> None:
    world, now = World(), START
    for order in runs:
        now += order.after
        world.seen &= world.published()  # what has gone by now had to: each write was checked
        world.last_desired |= {key(name).kid: now for name in order.names}
        world.run(order, now)
    world.run(replace(runs[-1], writes=9), now + 1)
    assert {key(name).kid for name in runs[-1].names} <= world.published()
    assert not plan(
        Current(state=world.objects[STATE], jwks=world.objects[_JWKS], configuration=world.objects[CONFIGURATION]),
        replace(wanted(*runs[-1].names), retire_after=_LIFE),
        now + 1,
    ).writes
