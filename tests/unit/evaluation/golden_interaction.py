"""
Interaction metrics of recorded sessions, counted by reading their calls and never taken from the code under test.

Numbers in the comments are positions of the calls within their execution. In every recorded call `is_error` is known
and agrees with the status, no exit code is recorded, and nobody asks for help.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

Tally = tuple[int, int]
"""Commands, and how many of them failed."""

SAFELY = "kubectl.exec_kubectl_cmd_safely"
READ_ONLY = "kubectl.exec_read_only_kubectl_cmd"
SHELL = "aiopslab.exec_shell"
SUBMIT = "submit.submit_tool"
FINAL_SUBMIT = "submit.f_submit_tool"

KUBECTL = r"kubectl\s+(\S+)"
KUBECTL_TOOLS = (SAFELY, READ_ONLY)


class Counts(NamedTuple):
    total_commands: int = 0
    unique_commands: int = 0
    error_count: int = 0
    retry_count: int = 0
    repeated_after_failure: int = 0
    help_invocations: int = 0


class Rates(NamedTuple):
    """None where there was no command."""

    error_rate: Fraction | None = None
    retry_rate: Fraction | None = None
    first_try_success_rate: Fraction | None = None
    iteration_ratio: Fraction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """What one session comes to under one set of rules."""

    case: str
    session_id: str
    pattern: str | None = None
    shell_tools: tuple[str, ...] = ()
    completed: bool
    counts: Counts = field(default_factory=Counts)
    rates: Rates = field(default_factory=Rates)
    by_tool: Mapping[str, Tally] = field(default_factory=dict)
    by_subcommand: Mapping[str, Tally] = field(default_factory=dict)
    longest_identical_run: tuple[str, int] | None = None
    cycles: tuple[tuple[tuple[str, ...], int], ...] = ()


def _rates(errors: str, retries: str, first_try_successes: str, identities: str) -> Rates:
    return Rates(Fraction(errors), Fraction(retries), Fraction(first_try_successes), Fraction(identities))


NOTHING_COUNTS = (
    # One execution, an answer and no call.
    Golden(case="no-calls-and-failed", session_id="03c2203a-8eb8-59a3-89b1-7b8ff0b27e0e", completed=False),
    # The same, and the session ran out of time: only `completed` ends as completed.
    Golden(case="no-calls-and-timed-out", session_id="e997d230-33e1-56ec-9a78-fd44c50f7608", completed=False),
    # One execution, an answer, and completed.
    Golden(case="no-calls-and-completed", session_id="109c682f-90bf-5a26-9d09-a02bfe1a0a08", completed=True),
    # 23 calls, five of them failed bookings, all in eight chat stages.
    Golden(case="failures-in-chat-only", session_id="2326e90c-6c89-5f7e-8649-1e40bf7e5192", completed=True),
    # 27 calls in four chat stages; the thought of one holds the word "help".
    Golden(case="the-word-help-in-chat-only", session_id="676358f7-eebf-559d-968e-6a6a3cbef9b3", completed=True),
    # A pattern that finds nothing among 137 calls.
    Golden(
        case="a-pattern-without-a-match",
        session_id="402739fd-f12e-55c3-9448-03c44e91e818",
        pattern=r"helm\s+(\S+)",
        completed=False,
    ),
)

EVERY_CALL_COUNTS = (
    # Diagnosis: `get all` (1) comes again (3). Mitigation: one submission.
    Golden(
        case="one-repetition",
        session_id="b189cd0f-f803-5672-b9a8-e7abca5de30b",
        completed=True,
        counts=Counts(total_commands=5, unique_commands=4, error_count=0, retry_count=1, repeated_after_failure=0),
        rates=_rates("0", "1/5", "4/5", "4/5"),
        by_tool={READ_ONLY: (3, 0), FINAL_SUBMIT: (1, 0), SUBMIT: (1, 0)},
    ),
    # 3 + 9 calls, no two alike: a pipe into `grep` makes 7 another call than 8.
    Golden(
        case="no-repetition",
        session_id="fc2a69b5-607d-53bf-8a33-6385b49cecbb",
        completed=True,
        counts=Counts(total_commands=12, unique_commands=12, error_count=0, retry_count=0, repeated_after_failure=0),
        rates=_rates("0", "0", "1", "1"),
        by_tool={SAFELY: (8, 0), READ_ONLY: (2, 0), FINAL_SUBMIT: (1, 0), SUBMIT: (1, 0)},
    ),
    # pods, all, pods, all, pods, frontend pods, describe: two and a half rounds are no cycle.
    Golden(
        case="almost-a-cycle",
        session_id="d27181d9-ac9f-504c-a666-bdd3bbd6fe6f",
        completed=False,
        counts=Counts(total_commands=7, unique_commands=4, error_count=0, retry_count=3, repeated_after_failure=0),
        rates=_rates("0", "3/7", "4/7", "4/7"),
        by_tool={SAFELY: (7, 0)},
    ),
    # `get all` of the diagnosis is another tool's. Mitigation: `get all` 1 = 3 = 7, wait 2 = 6.
    Golden(
        case="same-command-by-two-tools",
        session_id="0323b695-afd1-51ea-b392-8cd0a27fa889",
        completed=True,
        counts=Counts(total_commands=12, unique_commands=9, error_count=0, retry_count=3, repeated_after_failure=0),
        rates=_rates("0", "1/4", "3/4", "3/4"),
        by_tool={"builtin.wait_tool": (2, 0), SAFELY: (5, 0), READ_ONLY: (3, 0), FINAL_SUBMIT: (1, 0), SUBMIT: (1, 0)},
    ),
    # 13 + 4 + 6 calls. Only diagnosis 1 = 11 repeats; `logs` and `describe` of the cart's pod and `get all` come in two
    # executions each, which is no repetition. The metrics query (2) failed.
    Golden(
        case="same-work-in-several-executions",
        session_id="cf413f72-d52d-50ce-90b1-ad95168eaa0e",
        completed=True,
        counts=Counts(total_commands=23, unique_commands=22, error_count=1, retry_count=1, repeated_after_failure=0),
        rates=_rates("1/23", "1/23", "21/23", "22/23"),
        by_tool={SAFELY: (22, 0), "prometheus.get_metrics": (1, 1)},
    ),
    # Diagnosis: `get all` 1 = 3. The graph of the last 5 minutes failed (5), of the last "5" did not (6: text is not
    # a number), of the last 5 failed again (7), and what 7 repeats had failed the last time.
    Golden(
        case="a-number-is-not-its-text",
        session_id="1892d7d2-be3d-5bf1-96a6-aa222a215be8",
        completed=True,
        counts=Counts(total_commands=12, unique_commands=10, error_count=2, retry_count=2, repeated_after_failure=1),
        rates=_rates("1/6", "1/6", "3/4", "5/6"),
        by_tool={
            "jaeger.get_dependency_graph": (3, 2),
            "jaeger.get_services": (1, 0),
            "jaeger.get_traces": (1, 0),
            SAFELY: (1, 0),
            READ_ONLY: (3, 0),
            "prometheus.get_metrics": (1, 0),
            FINAL_SUBMIT: (1, 0),
            SUBMIT: (1, 0),
        },
    ),
    # 13 + 6 calls; the dependency graph fails twice in a row (10, 11), nothing else repeats.
    Golden(
        case="repeated-at-once-after-failure",
        session_id="8e57e171-80a3-55d1-be0f-aa9ad91d8836",
        completed=True,
        counts=Counts(total_commands=19, unique_commands=18, error_count=2, retry_count=1, repeated_after_failure=1),
        rates=_rates("2/19", "1/19", "17/19", "18/19"),
        by_tool={
            "builtin.wait_tool": (1, 0),
            "jaeger.get_dependency_graph": (2, 2),
            "jaeger.get_services": (1, 0),
            "jaeger.get_traces": (1, 0),
            SAFELY: (4, 0),
            READ_ONLY: (5, 0),
            "prometheus.get_metrics": (3, 0),
            FINAL_SUBMIT: (1, 0),
            SUBMIT: (1, 0),
        },
        longest_identical_run=("jaeger.get_dependency_graph", 2),
    ),
    # 4 + 13 calls in five executions, three of them without calls. Mitigation: 5, 6, 8, 9, 11, 12 fail; 8 repeats 6 and
    # 11 repeats 9, each after its failure. The waits differ, and the submissions 12 (an object) and 13 (text) too.
    # First calls that fail: 5, 6, 9, 12.
    Golden(
        case="a-lost-cluster",
        session_id="a678cc9a-3b40-5f75-93dc-ffeac43d2bdd",
        completed=False,
        counts=Counts(total_commands=17, unique_commands=15, error_count=6, retry_count=2, repeated_after_failure=2),
        rates=_rates("6/17", "2/17", "11/17", "15/17"),
        by_tool={"builtin.wait_tool": (2, 0), SAFELY: (9, 5), READ_ONLY: (3, 0), FINAL_SUBMIT: (2, 1), SUBMIT: (1, 0)},
    ),
    # Diagnosis 4 calls. Mitigation 23: the deployment is asked for six times (3, 5, 7, 12, 15, 19), its pods four times
    # (8, 13, 16, 20), two waits of 30 s, two of 60 s, and `delete pvc` fails twice in a row (21, 22): 5+3+1+1+1 = 11.
    Golden(
        case="waiting-for-a-deployment",
        session_id="c319c132-d338-5c08-bb36-a788c6259e05",
        completed=False,
        counts=Counts(total_commands=27, unique_commands=16, error_count=2, retry_count=11, repeated_after_failure=1),
        rates=_rates("2/27", "11/27", "5/9", "16/27"),
        by_tool={"builtin.wait_tool": (4, 0), SAFELY: (18, 2), READ_ONLY: (3, 0), FINAL_SUBMIT: (1, 0), SUBMIT: (1, 0)},
        longest_identical_run=(SAFELY, 2),
    ),
    # Diagnosis 10, mitigation 16, of which 10-15 fail. 13 and 15 repeat 5 and 2, which had succeeded: so no repetition
    # after a failure, and first calls fail in 10, 11, 12, 14 only.
    Golden(
        case="fails-where-it-worked-before",
        session_id="d8aed876-cb15-5ee1-ad84-ffa2c6849a72",
        completed=False,
        counts=Counts(total_commands=26, unique_commands=24, error_count=6, retry_count=2, repeated_after_failure=0),
        rates=_rates("3/13", "1/13", "10/13", "12/13"),
        by_tool={SAFELY: (15, 6), READ_ONLY: (9, 0), FINAL_SUBMIT: (1, 0), SUBMIT: (1, 0)},
    ),
    # 3 good calls, then 134 times the same submission, which fails each time: 133 of them after a failure.
    Golden(
        case="a-hundred-identical-failures",
        session_id="402739fd-f12e-55c3-9448-03c44e91e818",
        completed=False,
        counts=Counts(
            total_commands=137, unique_commands=4, error_count=134, retry_count=133, repeated_after_failure=133
        ),
        rates=_rates("134/137", "133/137", "3/137", "4/137"),
        by_tool={SAFELY: (3, 0), "submit.conductor_submit_None": (134, 134)},
        longest_identical_run=("submit.conductor_submit_None", 134),
    ),
    # 4 good calls, then 477 times the same failing submission.
    Golden(
        case="hundreds-of-identical-failures",
        session_id="ac50de65-d21c-53ce-b67a-859610605d43",
        completed=False,
        counts=Counts(
            total_commands=481, unique_commands=5, error_count=477, retry_count=476, repeated_after_failure=476
        ),
        rates=_rates("477/481", "476/481", "4/481", "5/481"),
        by_tool={SAFELY: (4, 0), "submit.conductor_submit_None": (477, 477)},
        longest_identical_run=("submit.conductor_submit_None", 477),
    ),
    # Arguments are the source's own notation in one string, `{"raw": "\"ls /x\""}`. Repeated: 6 = 3, 7 = 4, 29 = 8, all
    # good. Failed: 2, 10, 11, 13, 14, 15, 22, 23, 24, 27, 28, all of them shell commands and all different.
    Golden(
        case="arguments-in-another-notation",
        session_id="2b2d8a21-a03c-53c3-9728-ab3019082481",
        completed=False,
        counts=Counts(total_commands=30, unique_commands=27, error_count=11, retry_count=3, repeated_after_failure=0),
        rates=_rates("11/30", "1/10", "8/15", "9/10"),
        by_tool={
            SHELL: (22, 11),
            "aiopslab.get_logs": (2, 0),
            "aiopslab.get_metrics": (1, 0),
            "aiopslab.get_traces": (1, 0),
            "aiopslab.read_logs": (2, 0),
            "aiopslab.read_metrics": (2, 0),
        },
    ),
    # Three answers were no call at all and stand as `unparsed` with prose as argument (18-20, failed). Repeated: 6 = 3,
    # 7 = 4. Failed besides: 2, 9, 10, 16, 21, 23, 27, 30.
    Golden(
        case="prose-as-argument",
        session_id="58aadbeb-143e-5d99-a53e-ee23df5578a9",
        completed=False,
        counts=Counts(total_commands=30, unique_commands=28, error_count=11, retry_count=2, repeated_after_failure=0),
        rates=_rates("11/30", "1/15", "17/30", "14/15"),
        by_tool={
            SHELL: (19, 6),
            "aiopslab.get_logs": (3, 2),
            "aiopslab.get_metrics": (1, 0),
            "aiopslab.read_logs": (2, 0),
            "aiopslab.read_metrics": (2, 0),
            "aiopslab.unparsed": (3, 3),
        },
    ),
    # Only 3 and 26 of 26 calls succeed; 9 repeats 8, while 10 differs from them in its quotes.
    Golden(
        case="nearly-everything-fails",
        session_id="943268b3-0ab2-5b44-a310-2d2bb974d3aa",
        completed=True,
        counts=Counts(total_commands=26, unique_commands=25, error_count=24, retry_count=1, repeated_after_failure=1),
        rates=_rates("12/13", "1/26", "1/13", "25/26"),
        by_tool={
            SHELL: (8, 8),
            "aiopslab.get_logs": (15, 15),
            "aiopslab.get_metrics": (1, 1),
            "aiopslab.get_traces": (1, 0),
            "aiopslab.submit": (1, 0),
        },
        longest_identical_run=(SHELL, 2),
    ),
    # Diagnosis 12, mitigation 141, the other three executions none. Repetitions in the mitigation: waits 9+1, restarts
    # 8+4, rollbacks 7, rollback submissions 7, submissions 1+1, patches 1+1+2+2, get
    # 10+4+1+1+1+2+2, describe 1+2+2+1, logs 3+1; in all 75. The only identical pair is 100, 101.
    Golden(
        case="a-long-session",
        session_id="8fafe867-fe0c-58f5-94ce-1a0dc1574691",
        completed=False,
        counts=Counts(total_commands=153, unique_commands=78, error_count=0, retry_count=75, repeated_after_failure=0),
        rates=_rates("0", "25/51", "26/51", "26/51"),
        by_tool={
            "builtin.wait_tool": (12, 0),
            SAFELY: (105, 0),
            READ_ONLY: (11, 0),
            "kubectl.rollback_command": (8, 0),
            "prometheus.get_metrics": (1, 0),
            FINAL_SUBMIT: (7, 0),
            "submit.r_submit_tool": (8, 0),
            SUBMIT: (1, 0),
        },
        longest_identical_run=(SAFELY, 2),
    ),
)

KUBECTL_COUNTS = (
    # The waits between them are no commands, so mitigation 1 and 3 now stand side by side.
    Golden(
        case="a-run-once-the-waits-are-gone",
        session_id="0323b695-afd1-51ea-b392-8cd0a27fa889",
        pattern=KUBECTL,
        shell_tools=KUBECTL_TOOLS,
        completed=True,
        counts=Counts(total_commands=8, unique_commands=6, error_count=0, retry_count=2, repeated_after_failure=0),
        rates=_rates("0", "1/4", "3/4", "3/4"),
        by_tool={SAFELY: (5, 0), READ_ONLY: (3, 0)},
        by_subcommand={"describe": (3, 0), "get": (4, 0), "patch": (1, 0)},
        longest_identical_run=(SAFELY, 2),
    ),
    # `get pods --all-namespaces | grep flagd` (7) ends at the pipe and so equals 8.
    Golden(
        case="a-command-ends-at-the-pipe",
        session_id="fc2a69b5-607d-53bf-8a33-6385b49cecbb",
        pattern=KUBECTL,
        shell_tools=KUBECTL_TOOLS,
        completed=True,
        counts=Counts(total_commands=10, unique_commands=9, error_count=0, retry_count=1, repeated_after_failure=0),
        rates=_rates("0", "1/10", "9/10", "9/10"),
        by_tool={SAFELY: (8, 0), READ_ONLY: (2, 0)},
        by_subcommand={"describe": (1, 0), "get": (9, 0)},
        longest_identical_run=(SAFELY, 2),
    ),
    # Of 15 calls to kubectl's tools one is `echo ... | kubectl apply` (a command) and one is prose (none), so
    # 9 + 4 commands. A glob names the tools; lines in a quoted here-string end nothing.
    Golden(
        case="prose-is-no-command",
        session_id="0b21448a-423c-534b-9869-380937db115a",
        pattern=KUBECTL,
        shell_tools=("kubectl.exec_*",),
        completed=True,
        counts=Counts(total_commands=13, unique_commands=13, error_count=0, retry_count=0, repeated_after_failure=0),
        rates=_rates("0", "0", "1", "1"),
        by_tool={SAFELY: (4, 0), READ_ONLY: (9, 0)},
        by_subcommand={"apply": (2, 0), "create": (1, 0), "describe": (4, 0), "get": (4, 0), "logs": (2, 0)},
    ),
    # No tools are named, so the sentence in the final submission counts as well: "a kubectl command for ...".
    Golden(
        case="no-named-tools-means-all",
        session_id="0b21448a-423c-534b-9869-380937db115a",
        pattern=KUBECTL,
        completed=True,
        counts=Counts(total_commands=14, unique_commands=14, error_count=0, retry_count=0, repeated_after_failure=0),
        rates=_rates("0", "0", "1", "1"),
        by_tool={SAFELY: (4, 0), READ_ONLY: (9, 0), FINAL_SUBMIT: (1, 0)},
        by_subcommand={
            "apply": (2, 0),
            "command": (1, 0),
            "create": (1, 0),
            "describe": (4, 0),
            "get": (4, 0),
            "logs": (2, 0),
        },
    ),
    # Diagnosis 3, mitigation 1-6, 8, 9, 11. Without the waits 6, 8 and 9, 11 are pairs. `get` fails in 6, 8, 9, 11,
    # `delete` in 5; bare tool names.
    Golden(
        case="failures-by-subcommand",
        session_id="a678cc9a-3b40-5f75-93dc-ffeac43d2bdd",
        pattern=KUBECTL,
        shell_tools=("exec_kubectl_cmd_safely", "exec_read_only_kubectl_cmd"),
        completed=False,
        counts=Counts(total_commands=12, unique_commands=10, error_count=5, retry_count=2, repeated_after_failure=2),
        rates=_rates("5/12", "1/6", "7/12", "5/6"),
        by_tool={SAFELY: (9, 5), READ_ONLY: (3, 0)},
        by_subcommand={"delete": (1, 1), "describe": (3, 0), "get": (7, 4), "patch": (1, 0)},
        longest_identical_run=(SAFELY, 2),
    ),
    # Without the waits the deployment is asked for three times in a row (3, 5, 7). `apply` is a here-document and ends
    # at its first line. 5 + 3 repeated reads and one repeated `delete`.
    Golden(
        case="three-in-a-row",
        session_id="c319c132-d338-5c08-bb36-a788c6259e05",
        pattern=KUBECTL,
        shell_tools=KUBECTL_TOOLS,
        completed=False,
        counts=Counts(total_commands=21, unique_commands=12, error_count=2, retry_count=9, repeated_after_failure=1),
        rates=_rates("2/21", "3/7", "11/21", "4/7"),
        by_tool={SAFELY: (18, 2), READ_ONLY: (3, 0)},
        by_subcommand={"apply": (1, 0), "delete": (3, 2), "describe": (4, 0), "get": (12, 0), "scale": (1, 0)},
        longest_identical_run=(SAFELY, 3),
    ),
    # As above without submissions: 9 + 15 commands, one failure for each of six subcommands.
    Golden(
        case="every-subcommand-fails-once",
        session_id="d8aed876-cb15-5ee1-ad84-ffa2c6849a72",
        pattern=KUBECTL,
        shell_tools=KUBECTL_TOOLS,
        completed=False,
        counts=Counts(total_commands=24, unique_commands=22, error_count=6, retry_count=2, repeated_after_failure=0),
        rates=_rates("1/4", "1/12", "3/4", "11/12"),
        by_tool={SAFELY: (15, 6), READ_ONLY: (9, 0)},
        by_subcommand={
            "describe": (7, 1),
            "exec": (4, 1),
            "get": (7, 1),
            "logs": (4, 1),
            "patch": (1, 1),
            "set": (1, 1),
        },
    ),
    # 3 good reads; the 134 failing submissions hold no kubectl.
    Golden(
        case="failures-that-the-pattern-leaves-out",
        session_id="402739fd-f12e-55c3-9448-03c44e91e818",
        pattern=KUBECTL,
        shell_tools=KUBECTL_TOOLS,
        completed=False,
        counts=Counts(total_commands=3, unique_commands=3, error_count=0, retry_count=0, repeated_after_failure=0),
        rates=_rates("0", "0", "1", "1"),
        by_tool={SAFELY: (3, 0)},
        by_subcommand={"get": (3, 0)},
    ),
    # 116 calls and 117 commands: mitigation 111 is `kubectl patch ... && kubectl patch ...`, both new. Of the 75
    # repetitions 26 were waits, rollbacks and submissions.
    Golden(
        case="two-commands-in-one-call",
        session_id="8fafe867-fe0c-58f5-94ce-1a0dc1574691",
        pattern=KUBECTL,
        shell_tools=KUBECTL_TOOLS,
        completed=False,
        counts=Counts(total_commands=117, unique_commands=68, error_count=0, retry_count=49, repeated_after_failure=0),
        rates=_rates("0", "49/117", "68/117", "68/117"),
        by_tool={SAFELY: (106, 0), READ_ONLY: (11, 0)},
        by_subcommand={
            "annotate": (4, 0),
            "delete": (1, 0),
            "describe": (26, 0),
            "exec": (1, 0),
            "get": (40, 0),
            "label": (1, 0),
            "logs": (12, 0),
            "patch": (17, 0),
            "rollout": (15, 0),
        },
        longest_identical_run=(SAFELY, 2),
    ),
)

OTHER_PATTERNS = (
    # 22 shell calls, seven of them (9-15) with two commands each. Both commands of a failed call fail: 2, 22, 23, 24,
    # 27, 28 once, 10, 11, 13, 14, 15 twice. The same `grep -i ...` ends 10, 11, 13, 14, 15: 4 repetitions after
    # failure; the others are 6 = 3 and 29 = 8. First calls that succeed: 3, 5, 8, 9 (both), 12 (both), 17, 20, 21, 30.
    Golden(
        case="pipelines-that-fail-as-one",
        session_id="2b2d8a21-a03c-53c3-9728-ab3019082481",
        pattern=r"\b(awk|cat|date|grep|head|ls)\s",
        shell_tools=(SHELL,),
        completed=False,
        counts=Counts(total_commands=29, unique_commands=23, error_count=16, retry_count=6, repeated_after_failure=4),
        rates=_rates("16/29", "6/29", "11/29", "23/29"),
        by_tool={SHELL: (29, 16)},
        by_subcommand={"awk": (3, 3), "cat": (1, 0), "date": (2, 0), "grep": (14, 13), "head": (2, 0), "ls": (7, 0)},
    ),
    # 11 shell calls, one of them `awk ... | head -n 20` (11); `&&` stands within awk's quotes. 13, 15, 16 failed.
    Golden(
        case="operators-within-quotes",
        session_id="6e09bc9a-e899-5f70-aa4c-df3246320e29",
        pattern=r"\b(awk|grep|head|ls|tail)\s",
        shell_tools=("exec_shell",),
        completed=True,
        counts=Counts(total_commands=12, unique_commands=12, error_count=3, retry_count=0, repeated_after_failure=0),
        rates=_rates("1/4", "0", "3/4", "1"),
        by_tool={SHELL: (12, 3)},
        by_subcommand={"awk": (3, 2), "grep": (1, 1), "head": (5, 0), "ls": (2, 0), "tail": (1, 0)},
    ),
    # Mitigation 2 (`-o yaml`), then the deployment D at 3, 5, 7, 12, 15, 19 and its pods P at 8, 13, 16, 20: a run of
    # three D, whose last begins D P D P D P D P.
    Golden(
        case="a-cycle-after-a-run",
        session_id="c319c132-d338-5c08-bb36-a788c6259e05",
        pattern=r"kubectl get (deployment|pods)",
        shell_tools=KUBECTL_TOOLS,
        completed=False,
        counts=Counts(total_commands=11, unique_commands=3, error_count=0, retry_count=8, repeated_after_failure=0),
        rates=_rates("0", "8/11", "3/11", "3/11"),
        by_tool={SAFELY: (11, 0)},
        by_subcommand={"deployment": (7, 0), "pods": (4, 0)},
        longest_identical_run=(SAFELY, 3),
        cycles=(((SAFELY, SAFELY), 4),),
    ),
    # Mitigation 7, 8, 11, 12, 15, 16, 20, 21, 27 are G P G P G P G P G: four whole rounds, and the last G begins a
    # fifth.
    Golden(
        case="a-cycle-that-breaks-off",
        session_id="c4f013bb-270f-57d5-8845-b1ae16616a85",
        pattern=r"kubectl get (deployment geo|pods -l io\.kompose\.service=geo)",
        shell_tools=KUBECTL_TOOLS,
        completed=True,
        counts=Counts(total_commands=9, unique_commands=2, error_count=0, retry_count=7, repeated_after_failure=0),
        rates=_rates("0", "7/9", "2/9", "2/9"),
        by_tool={SAFELY: (9, 0)},
        by_subcommand={"deployment geo": (5, 0), "pods -l io.kompose.service=geo": (4, 0)},
        cycles=(((SAFELY, SAFELY), 4),),
    ),
    # Diagnosis: `get all` once, by the other tool. Mitigation 2, 3, 8, 10, 11, 13, 16 are D A D A D A A: three rounds,
    # the fewest that make a cycle, and a run of two.
    Golden(
        case="the-shortest-cycle",
        session_id="41e46c9a-6bf1-5cea-9c0d-74f73f7645f3",
        pattern=r"kubectl get (deployments|all) -n astronomy-shop$",
        shell_tools=KUBECTL_TOOLS,
        completed=True,
        counts=Counts(total_commands=8, unique_commands=3, error_count=0, retry_count=5, repeated_after_failure=0),
        rates=_rates("0", "5/8", "3/8", "3/8"),
        by_tool={SAFELY: (7, 0), READ_ONLY: (1, 0)},
        by_subcommand={"all": (5, 0), "deployments": (3, 0)},
        longest_identical_run=(SAFELY, 2),
        cycles=(((SAFELY, SAFELY), 3),),
    ),
)

GOLDEN = NOTHING_COUNTS + EVERY_CALL_COUNTS + KUBECTL_COUNTS + OTHER_PATTERNS
