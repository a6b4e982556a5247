"""The strategies by the name that a criteria file gives in `strategy`."""

from tarsy_scoring.judge.strategies.rubric import RubricStrategy
from tarsy_scoring.judge.strategies.strategy import Strategy
from tarsy_scoring.judge.strategies.structured import Structured
from tarsy_scoring.judge.strategies.two_turn import TwoTurn

STRATEGIES: dict[str, Strategy] = {s.name: s for s in (TwoTurn(), Structured(), RubricStrategy())}
