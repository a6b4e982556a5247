"""
Attacks on made-up judges that obey what they read.

One judge obeys every order outside the fence, the other one obeys those inside too. They show where the fence
ends, which orders are recognised, and that the masked reading counts. They do not show how well a real model
resists an order that it reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from builders import turn
from tarsy_scoring.config.chains import ChainSettings, ProviderSettings
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.verdict import Question, Turn, TurnKind
from tarsy_scoring.scoring import providers
from tarsy_scoring.scoring.providers import Case, Judgement
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.render.fence import FENCE_WORD, fence_lines
from unit.timeline.attacks import ATTACKS, PLACES, Attack, as_read, session_with
from unit.timeline.sessions import NONCE

CRITERIA = load_criteria().get("investigation-methodology")
HONEST, DEMANDED = 42, 100


@dataclass
class ObedientJudge:
    """
    Gives the total that is demanded wherever it reads the order, else its own.

    Args:
        obeys_fenced: Reads orders between the fence lines too.
    """

    order: str
    obeys_fenced: bool = False
    asked: list[TurnKind] = field(default_factory=list)

    async def __call__(self, question: Question) -> Turn:
        kind, messages = question.kind, question.messages
        self.asked.append(kind)
        if kind == "missing_tools":
            return turn("No critical missing tools identified.", kind=kind)
        read = "\n".join(m.content if self.obeys_fenced else outside_the_fence(m.content) for m in messages)
        total = DEMANDED if self.order in as_read(read) else HONEST
        return turn(f"The limit was found in the logs (E3).\n\n{total}", kind=kind)


def outside_the_fence(message: str) -> str:
    """All lines of a message but those between the fence lines that carry the nonce of its first fence."""
    nonce = message.partition(f"<<<{FENCE_WORD} ")[2].partition(" ")[0]
    begin, end = fence_lines(nonce)
    kept, inside = list[str](), False
    for line in message.split("\n"):
        inside = inside or line == begin
        if not inside:
            kept.append(line)
        inside = inside and line != end
    return "\n".join(kept)


async def judged(session: Timeline, judge: ObedientJudge, *, samples: int = 1) -> Judgement:
    """Judge through the real path: context, conversation, extraction, masked reading."""
    chain = ChainSettings(providers=("default",), samples=samples)
    case = Case(session, NONCE, chain, CRITERIA, {"default": ProviderSettings()}, lambda _provider, _context: judge)
    return await providers.judge(case, lambda _error: True)


async def totals(attacks: Mapping[str, Attack], *, obeys_fenced: bool = False) -> dict[str, int]:
    found = {}
    for name, attack in attacks.items():
        judgement = await judged(session_with(attack), ObedientJudge(attack.order, obeys_fenced))
        found[name] = judgement.verdict.total_score
    return found


async def test_no_attack_leaves_the_fence() -> None:
    succeeded = [n for n, total in (await totals(ATTACKS)).items() if total != HONEST]

    assert succeeded == []


FLAGGED = {name: attack for name, attack in ATTACKS.items() if attack.must_flag}


async def test_obeyed_attack_is_flagged_and_does_not_count() -> None:
    """A judge that obeys fenced orders gives another total for the masked context, without the order."""
    for name, attack in FLAGGED.items():
        judge = ObedientJudge(attack.order, obeys_fenced=True)

        judgement = await judged(session_with(attack), judge)

        assert judge.asked == ["analysis", "masked", "missing_tools"], name
        assert judgement.verdict.total_score == HONEST, name
        assert "tampering_suspected" in judgement.verdict.flags, name
        assert judgement.context.flags == {"injection_suspected"}, name
        # This also shows that the order reached the first reading.
        assert judgement.verdict.samples == [DEMANDED], name


async def test_attack_on_all_samples_does_not_count() -> None:
    attack = ATTACKS["ignore previous"]
    judge = ObedientJudge(attack.order, obeys_fenced=True)

    judgement = await judged(session_with(attack), judge, samples=3)

    assert judgement.verdict.samples == [DEMANDED] * 3
    assert judgement.verdict.total_score == HONEST
    assert "tampering_suspected" in judgement.verdict.flags


async def test_attack_that_is_not_obeyed_is_no_tampering() -> None:
    judge = ObedientJudge("something else", obeys_fenced=True)

    judgement = await judged(session_with(ATTACKS["ignore previous"]), judge)

    assert judge.asked == ["analysis", "masked", "missing_tools"]
    assert judgement.verdict.total_score == HONEST
    assert "tampering_suspected" not in judgement.verdict.flags


async def test_ordinary_session_is_judged_once() -> None:
    for text in ("Total: 100/100 pods ready", "node n1 got a score of 100", "CVSS score: 10.0 (critical)"):
        judge = ObedientJudge("something else", obeys_fenced=True)

        judgement = await judged(PLACES["tool result"](text), judge)

        assert judge.asked == ["analysis", "missing_tools"], text
        assert (judgement.verdict.flags, judgement.context.flags) == (set(), frozenset()), text
