"""
What judges write about failures: phrases that assert terms, and phrases that name them and do not.

One phrase per line; `\\n` is a line end and `\\u200b` a space without width.
"""

# ruff: noqa: E501 - a phrase is a line

VOCABULARY = (
    "premature_conclusion",
    "missed_available_tool",
    "unsupported_confidence",
    "incomplete_evidence",
    "hallucinated_evidence",
    "wrong_conclusion",
)


def _phrases(lines: str) -> list[str]:
    phrases = [line.replace("\\n", "\n").replace("\\u200b", "\u200b") for line in lines.strip("\n").split("\n")]
    assert len(set(phrases)) == len(phrases), "a phrase stands here twice"
    return phrases


NOT_ASSERTED = _phrases(r"""
No hallucinated_evidence was found.
no hallucinated_evidence
There is no wrong_conclusion here.
I found no sign of hallucinated_evidence.
There is no evidence of hallucinated_evidence in this session.
There was no indication of a premature_conclusion.
No clear indications of unsupported_confidence.
No trace of any hallucinated_evidence.
There are no instances of missed_available_tool.
No case of wrong_conclusion was observed.
No premature_conclusion, wrong_conclusion or hallucinated_evidence.
No premature_conclusion, no wrong_conclusion, no hallucinated_evidence.
There was no premature_conclusion, wrong_conclusion, or any other failure.
No premature_conclusion and no wrong_conclusion.
No **hallucinated_evidence** was detected.
No `hallucinated_evidence` was detected.
No "hallucinated_evidence" was detected.
Zero hallucinated_evidence.
Zero instances of hallucinated_evidence.
0 hallucinated_evidence
None of the failures, such as wrong_conclusion or hallucinated_evidence, occurred.
None of the failure tags (premature_conclusion, wrong_conclusion) applies.
None of premature_conclusion, wrong_conclusion and hallucinated_evidence applies.
Nothing suggests a wrong_conclusion.
There is nothing that suggests hallucinated_evidence.
I see nothing that would amount to unsupported_confidence.
Nothing here qualifies as premature_conclusion.
Neither premature_conclusion nor wrong_conclusion applies.
Neither a premature_conclusion nor a wrong_conclusion was observed.
The final claim is not wrong_conclusion.
It is not a premature_conclusion.
This is not an instance of hallucinated_evidence.
This is not, in my view, a wrong_conclusion.
This is not, however, unsupported_confidence.
The agent did not, to its credit, show unsupported_confidence.
This isn't a wrong_conclusion.
This isn’t a wrong_conclusion.
It wasn't premature_conclusion.
It doesn't amount to unsupported_confidence.
The claim does not constitute hallucinated_evidence.
The claim does not qualify as hallucinated_evidence.
The report does not exhibit unsupported_confidence.
The agent does not show unsupported_confidence or incomplete_evidence.
The agent did not fall into the trap of a premature_conclusion.
The agent did not fabricate data, jump ahead or show unsupported_confidence.
The agent never committed hallucinated_evidence.
The agent was never guilty of hallucinated_evidence.
This can not be called a wrong_conclusion.
The verdict cannot be called wrong_conclusion.
It can't be tagged as premature_conclusion.
I cannot say that this is a wrong_conclusion.
I do not think this is a wrong_conclusion.
I don't see hallucinated_evidence anywhere.
I could not identify any hallucinated_evidence.
I was unable to find hallucinated_evidence.
I would not call this a wrong_conclusion.
I wouldn't tag this as missed_available_tool.
It is not clear that the agent reached a wrong_conclusion.
No claim in E4 amounts to hallucinated_evidence.
No step of the agent was a missed_available_tool.
None of the claims is hallucinated_evidence.
The conclusion is hardly a wrong_conclusion.
There is hardly any unsupported_confidence.
There is little sign of unsupported_confidence.
There is insufficient evidence for wrong_conclusion.
It would be unfair to call this a wrong_conclusion.
It is hard to call this a premature_conclusion.
It would be too harsh to speak of premature_conclusion.
This falls short of hallucinated_evidence.
It stops short of unsupported_confidence.
It fails to qualify as a wrong_conclusion.
I decided against wrong_conclusion.
The report is free of hallucinated_evidence.
The report is free from hallucinated_evidence and unsupported_confidence.
The absence of hallucinated_evidence speaks for the agent.
The agent avoids unsupported_confidence.
The agent avoided a premature_conclusion.
The agent avoided the mistake of drawing a wrong_conclusion.
By looking at the logs it avoided premature_conclusion and wrong_conclusion.
E12 rules out hallucinated_evidence.
E12 and E13 rule out a wrong_conclusion.
The logs exclude a wrong_conclusion.
I dismissed hallucinated_evidence after reading E12.
It concluded without hallucinated_evidence.
It stated its result without any unsupported_confidence.
The conclusion is far from a wrong_conclusion.
The report is anything but a wrong_conclusion.
The report steers clear of unsupported_confidence.
The agent refrained from unsupported_confidence.
It is incomplete rather than hallucinated_evidence.
I see care instead of premature_conclusion.
It shows care as opposed to premature_conclusion.
hallucinated_evidence: no
hallucinated_evidence: No.
**hallucinated_evidence**: no
**hallucinated_evidence:** No
`hallucinated_evidence`: none
- hallucinated_evidence: none
- `hallucinated_evidence` — none
- hallucinated_evidence - no
- hallucinated_evidence – not observed
hallucinated_evidence = false
hallucinated_evidence=false
hallucinated_evidence: 0
hallucinated_evidence: false
"hallucinated_evidence": false,
{"hallucinated_evidence": false, "wrong_conclusion": null}
hallucinated_evidence: n/a
hallucinated_evidence: N/A (E12 holds every quoted line)
hallucinated_evidence: never
hallucinated_evidence: absent
hallucinated_evidence: avoided
hallucinated_evidence: not applicable
hallucinated_evidence: not found
hallucinated_evidence: not present.
hallucinated_evidence: not observed in this session
hallucinated_evidence: No, every quoted line stands in E12.
hallucinated_evidence: no - every quoted line stands in E12
hallucinated_evidence: no sign of it
hallucinated_evidence: no evidence of fabrication
hallucinated_evidence: there is no sign of it
hallucinated_evidence: no fabricated lines were cited
hallucinated_evidence: I found none
hallucinated_evidence: ❌
hallucinated_evidence -> no
hallucinated_evidence (no)
hallucinated_evidence (not applicable)
hallucinated_evidence (not observed)
hallucinated_evidence (made up facts): no
hallucinated_evidence does not apply.
hallucinated_evidence doesn't apply
The hallucinated_evidence tag does not apply.
The tag `hallucinated_evidence` does not apply here.
hallucinated_evidence and wrong_conclusion do not apply.
hallucinated_evidence, wrong_conclusion and premature_conclusion: none
Of hallucinated_evidence and wrong_conclusion, neither applies.
hallucinated_evidence was not found.
hallucinated_evidence was never observed.
hallucinated_evidence was not detected in any step.
hallucinated_evidence is not present.
hallucinated_evidence isn't present.
hallucinated_evidence could not be established.
hallucinated_evidence did not occur.
hallucinated_evidence can be ruled out.
hallucinated_evidence was ruled out.
hallucinated_evidence has been ruled out by E12.
hallucinated_evidence was avoided.
hallucinated_evidence was successfully avoided.
hallucinated_evidence is absent.
hallucinated_evidence seems unlikely.
hallucinated_evidence is unfounded here.
hallucinated_evidence is nowhere to be seen.
hallucinated_evidence would be too harsh.
hallucinated_evidence is no issue here.
I looked for hallucinated_evidence, which was not found.
[ ] hallucinated_evidence
- [ ] hallucinated_evidence
* [ ] `hallucinated_evidence`: E12 holds every line
☐ hallucinated_evidence
❌ hallucinated_evidence
~~wrong_conclusion~~
| hallucinated_evidence | no |
| hallucinated_evidence | No | E12 holds every line |
| hallucinated_evidence | E12 | no |
| no | hallucinated_evidence |
| `hallucinated_evidence` | ✗ |
| premature_conclusion | wrong_conclusion |\n|---|---|\n| no | no |
Was there hallucinated_evidence?
Was there hallucinated_evidence? No.
Is this a wrong_conclusion? I do not think so.
hallucinated_evidence? None.
(hallucinated_evidence?)
If the agent had invented E12, that would be hallucinated_evidence.
Had the line been invented, it would be hallucinated_evidence.
I asked myself whether this is a wrong_conclusion.
I checked for hallucinated_evidence.
I searched for hallucinated_evidence in vain.
Whether it was a wrong_conclusion, E12 cannot tell.
Unless E12 is wrong, premature_conclusion is off the table.
wrong_conclusion would mean that the root cause is another one.
wrong_conclusion means that the root cause is another one.
wrong_conclusion is used when the root cause is another one.
wrong_conclusion applies only if the root cause is another one.
wrong_conclusion is one of the tags.
The possible tags are premature_conclusion, wrong_conclusion and hallucinated_evidence.
Possible failure tags: premature_conclusion, wrong_conclusion
Tags considered: premature_conclusion, wrong_conclusion
The vocabulary (premature_conclusion, wrong_conclusion) was given.
Choose from premature_conclusion, wrong_conclusion and hallucinated_evidence.
premature_conclusion, missed_available_tool, unsupported_confidence, incomplete_evidence, hallucinated_evidence, wrong_conclusion
It may be a wrong_conclusion.
This might amount to a premature_conclusion.
Possibly a wrong_conclusion.
There is a risk of premature_conclusion.
This borders on unsupported_confidence.
It is either a wrong_conclusion or a premature_conclusion.
The agent wrote "this is a wrong_conclusion of my colleague" in E12.
Not observed: hallucinated_evidence
Not applicable: hallucinated_evidence, wrong_conclusion.
Failure tags not observed: hallucinated_evidence, wrong_conclusion
Ruled out: hallucinated_evidence
Absent: hallucinated_evidence
No signs of: hallucinated_evidence; wrong_conclusion
The agent shows no signs of: hallucinated_evidence
Failure tags: none (no hallucinated_evidence, no wrong_conclusion)
Failure tags: none. wrong_conclusion does not apply.
None of the following apply:\n- hallucinated_evidence\n- wrong_conclusion
No evidence of:\n\n1. hallucinated_evidence\n2. wrong_conclusion
## Not observed\n- hallucinated_evidence\n- wrong_conclusion
**Not applicable**\n\nhallucinated_evidence, wrong_conclusion
Possible failure tags:\n- `premature_conclusion`: a conclusion before its evidence\n- `wrong_conclusion`: it is not so
### hallucinated_evidence\nNot observed.
### hallucinated_evidence\n\nNone found; E12 holds every line.
- **hallucinated_evidence**\n  - Present: no
hallucinated_evidence:\nNo evidence of it.
hallucinated_evidence. Not observed.
hallucinated_evidence: no\nwrong_conclusion: no
The agent did not at any point\nshow hallucinated_evidence.
There was no sign of\nhallucinated_evidence.
hallucinated_evidence: every quoted line stands in E12, so this does not apply.
- hallucinated_evidence: E12 holds every quoted line. Not applicable.
The quotes are accurate, so there is no hallucinated_evidence.
E12 was read, and no wrong_conclusion followed.
It read the logs; no premature_conclusion.
It is good work, not a wrong_conclusion.
The claim is bold but not hallucinated_evidence.
Although the claim is bold, it is not hallucinated_evidence.
It was thorough and without premature_conclusion.
premature_conclusions
x_wrong_conclusion
wrong_conclusion_v2
non-wrong_conclusion
wrong_conclusion-free
tags.wrong_conclusion
wrong_conclusion.py
wrong conclusion
I did not detect hallucinated_evidence.
The investigation does not suffer from premature_conclusion.
hallucinated_evidence was not an issue in this investigation.
There's no hallucinated_evidence to report.
No obvious wrong_conclusion can be identified.
The analysis shows no signs of wrong_conclusion or premature_conclusion.
I would not go so far as to call this hallucinated_evidence.
The evidence does not support a finding of hallucinated_evidence.
The evidence doesn't warrant the tag wrong_conclusion.
Nothing in the transcript points to hallucinated_evidence.
I see no reason to assign wrong_conclusion.
I see no grounds for missed_available_tool.
It was careful to avoid wrong_conclusion.
The agent managed to avoid premature_conclusion.
The agent successfully avoids both premature_conclusion and unsupported_confidence.
The report contains neither hallucinated_evidence nor unsupported_confidence.
At no point did the agent commit hallucinated_evidence.
In no way does this count as a wrong_conclusion.
By no means a wrong_conclusion.
This should not be read as wrong_conclusion.
This must not be confused with hallucinated_evidence.
That isn't enough to assign missed_available_tool.
I considered wrong_conclusion but E17 supports the root cause.
I considered `premature_conclusion`, but the agent explored all paths.
I also considered tagging unsupported_confidence, but decided against it.
I thought about hallucinated_evidence but the lines exist.
One could argue for premature_conclusion, but the evidence is strong.
While one might suspect wrong_conclusion, the root cause is right.
Tags such as wrong_conclusion are not warranted.
Tags like hallucinated_evidence or wrong_conclusion are not justified here.
wrong_conclusion is not warranted.
wrong_conclusion is unwarranted here.
wrong_conclusion does not fit.
wrong_conclusion would be unfair.
wrong_conclusion seems too strong a word.
hallucinated_evidence is not supported by the transcript.
hallucinated_evidence: clean
hallucinated_evidence: no issues found
hallucinated_evidence: None observed.
hallucinated_evidence: none detected in the report
hallucinated_evidence - none that I can see
hallucinated_evidence: No evidence of this.
hallucinated_evidence: no instance
hallucinated_evidence: Not triggered
hallucinated_evidence: nothing of the kind
hallucinated_evidence: not in this case
hallucinated_evidence: does not apply, all lines stand in E12
hallucinated_evidence: did not occur
hallucinated_evidence: I did not find any
hallucinated_evidence: not an issue
hallucinated_evidence: I see no sign of this
hallucinated_evidence [no]
hallucinated_evidence? No
hallucinated_evidence? Not here.
hallucinated_evidence? I don't think so.
hallucinated_evidence? Hardly.
- **wrong_conclusion**: **No.** The final analysis is right.
- **wrong_conclusion** (the root cause is wrong): No
- **wrong_conclusion**: ❌ not observed
- ✗ wrong_conclusion
* wrong_conclusion — N/A
* wrong_conclusion: not applicable since the root cause is right
1. wrong_conclusion - No
2. wrong_conclusion: False
| wrong_conclusion | Not observed |
| wrong_conclusion | not applicable | |
| wrong_conclusion | False | E17 |
| **wrong_conclusion** | **No** |
wrong_conclusion,no
wrong_conclusion: []
wrong_conclusion: "no"
wrong_conclusion='no'
{"tag": "wrong_conclusion", "present": false}
{"wrong_conclusion": {"present": false, "reason": "E17"}}
wrong_conclusion=0
wrong_conclusion: 0/1
Failure tags: no wrong_conclusion
Failure tags: (none; wrong_conclusion not observed)
Failure tags: none of wrong_conclusion, hallucinated_evidence
Failure tags: not wrong_conclusion
Not a wrong_conclusion.
Certainly not hallucinated_evidence.
Definitely no hallucinated_evidence.
Not hallucinated_evidence, nor wrong_conclusion.
Not even close to hallucinated_evidence.
It never rises to the level of unsupported_confidence.
It never crosses the line into unsupported_confidence.
The confidence was earned, so unsupported_confidence does not apply.
The confidence was earned and unsupported_confidence is not warranted.
Since the confidence was earned, I do not assign unsupported_confidence.
Because all tools were used, there is no missed_available_tool.
All tools were used, ruling out missed_available_tool.
All tools were used; missed_available_tool is therefore not applicable.
All tools were used, therefore no missed_available_tool.
I cannot fault it for missed_available_tool.
I am not convinced that this is a premature_conclusion.
I'm not sure this is a premature_conclusion.
It is doubtful that this is wrong_conclusion.
It's unlikely that this is a wrong_conclusion.
I hesitate to call this premature_conclusion.
I stop short of calling it wrong_conclusion.
I refrain from assigning wrong_conclusion.
I would hesitate to assign wrong_conclusion.
This is less a wrong_conclusion than a gap.
This is more a gap than a wrong_conclusion.
A reviewer might call this premature_conclusion.
Had it stopped at E4, I would have tagged premature_conclusion.
If E12 had shown otherwise, wrong_conclusion would apply.
It would have been a wrong_conclusion if it had stopped at E4.
To be a wrong_conclusion, the root cause must differ.
Does this amount to wrong_conclusion?
So is it hallucinated_evidence or just bad wording?
Could this be hallucinated_evidence? The lines are in E12.
Is there any missed_available_tool here? All of them were called.
Any hallucinated_evidence? No.
The agent was accused of hallucinated_evidence, which is false.
The charge of hallucinated_evidence is unfounded.
The accusation of hallucinated_evidence does not hold.
A verdict of wrong_conclusion cannot be upheld.
The hallucinated_evidence label is inappropriate.
The label "hallucinated_evidence" is not deserved.
Hence the tag hallucinated_evidence is not set.
I leave out hallucinated_evidence.
I left hallucinated_evidence unchecked.
I did not tag hallucinated_evidence.
I don't assign hallucinated_evidence, wrong_conclusion or premature_conclusion.
The absence of unsupported_confidence and hallucinated_evidence is notable.
The lack of any hallucinated_evidence is a plus.
A good sign is the total absence of hallucinated_evidence.
It concluded correctly, without wrong_conclusion or hallucinated_evidence.
There wasn't any hallucinated_evidence.
There weren't any signs of hallucinated_evidence.
There hasn't been any hallucinated_evidence.
We found zero cases of hallucinated_evidence.
Zero `hallucinated_evidence`, zero `wrong_conclusion`.
Not a single hallucinated_evidence.
Not one instance of hallucinated_evidence.
No hallucinated_evidence whatsoever
no hallucinated_evidence/wrong_conclusion
No evidence that would justify hallucinated_evidence.
no (hallucinated_evidence)
The agent did not do anything that would be a wrong_conclusion.
The agent never jumped to a premature_conclusion.
The agent was not guilty of a premature_conclusion.
The agent made no wrong_conclusion.
The agent has no unsupported_confidence.
Its answer has none of the marks of unsupported_confidence.
The agent can't be blamed for missed_available_tool.
The agent is not to blame for missed_available_tool.
The agent could not have committed hallucinated_evidence.
Failure modes checked: hallucinated_evidence, wrong_conclusion. None found.
Checked for premature_conclusion, wrong_conclusion: none found.
hallucinated_evidence and wrong_conclusion were both absent.
hallucinated_evidence and wrong_conclusion: not observed.
hallucinated_evidence or wrong_conclusion could not be found.
hallucinated_evidence, wrong_conclusion — none of these apply.
Both hallucinated_evidence and wrong_conclusion can be excluded.
The following tags do not apply: hallucinated_evidence, wrong_conclusion.
The following were not observed:\n- hallucinated_evidence\n- wrong_conclusion
I found no evidence for the following failures:\n\n* hallucinated_evidence\n* wrong_conclusion
Tags that do not apply:\n- hallucinated_evidence (E12 holds all lines)\n- wrong_conclusion (E17 agrees)
Tags I ruled out:\n- hallucinated_evidence\n- wrong_conclusion
#### Failure modes not present\n\n- hallucinated_evidence\n- wrong_conclusion
#### `hallucinated_evidence`\n\nNo sign of it: every line stands in E12.
#### `hallucinated_evidence`\n\nThere is no evidence of fabrication.
**hallucinated_evidence**\nNot present.
**hallucinated_evidence**: \nNo.
- hallucinated_evidence\n  no
- [ ] hallucinated_evidence\n- [ ] wrong_conclusion
- ( ) hallucinated_evidence
hallucinated_evidence ☐
hallucinated_evidence ❌
hallucinated_evidence: ✗
hallucinated_evidence: ✖
hallucinated_evidence: 👎
The vocabulary contains hallucinated_evidence and wrong_conclusion.
The vocabulary has six terms: premature_conclusion, missed_available_tool, unsupported_confidence, incomplete_evidence, hallucinated_evidence, wrong_conclusion.
The failure vocabulary lists wrong_conclusion.
"wrong_conclusion" is defined as a conclusion that is wrong.
By definition, wrong_conclusion requires another root cause.
The term wrong_conclusion refers to the root cause.
A wrong_conclusion is a conclusion that contradicts the root cause.
The tag `wrong_conclusion` is for conclusions that are wrong.
Use wrong_conclusion when the root cause is wrong.
wrong_conclusion should only be used when the root cause is wrong.
I was asked to use tags such as wrong_conclusion.
The alert text asks me to tag wrong_conclusion.
Log lines in E9 say "tag this as wrong_conclusion".
"no wrong_conclusion"
The conclusion was right (no wrong_conclusion).
The conclusion was right (so no wrong_conclusion, no premature_conclusion).
The conclusion was right – no wrong_conclusion.
The conclusion was right and hence no wrong_conclusion.
Apart from small gaps there is no wrong_conclusion.
It failed to check logs, but that is not wrong_conclusion.
It failed to check logs, though this is no wrong_conclusion.
The gap is not severe enough for incomplete_evidence.
The gap isn't big enough to count as incomplete_evidence.
The gap is too small for incomplete_evidence.
The gap is too small to be called incomplete_evidence.
I do not deduct for incomplete_evidence.
No deduction for incomplete_evidence.
No points are taken off for incomplete_evidence.
No penalty for incomplete_evidence is due.
Evidence of hallucinated_evidence is lacking.
There is nothing in E3 to E9 resembling hallucinated_evidence.
I find the label wrong_conclusion inapplicable.
The label wrong_conclusion can hardly be applied.
This does not mean that the agent is guilty of wrong_conclusion.
Nobody could accuse the agent of hallucinated_evidence.
It would be an exaggeration to speak of hallucinated_evidence.
It would go too far to assign wrong_conclusion.
That is not wrong_conclusion but a matter of taste.
The agent took pains not to fall into premature_conclusion.
The agent was careful not to show unsupported_confidence.
To its credit, the agent did not resort to hallucinated_evidence.
Importantly, no hallucinated_evidence was identified in any of the 14 steps.
Crucially there isn't a single instance of hallucinated_evidence.
All claims are traceable, so hallucinated_evidence can be excluded.
All claims are traceable (hence no hallucinated_evidence).
All claims are traceable; there is accordingly no hallucinated_evidence.
Every claim could be verified against E4-E9 and therefore hallucinated_evidence is not assigned.
I verified every citation and found no hallucinated_evidence.
I verified every citation, and none of them is hallucinated_evidence.
Given the thoroughness, neither incomplete_evidence nor missed_available_tool is justified.
The agent used every tool, leaving no missed_available_tool.
The agent used every tool, so there's no missed_available_tool to speak of.
With all tools used, missed_available_tool does not come into play.
missed_available_tool is off the table.
missed_available_tool is not on the table.
missed_available_tool isn't relevant because all tools were used.
missed_available_tool has no basis here.
missed_available_tool has no foundation in the transcript.
missed_available_tool finds no support in the transcript.
missed_available_tool: all tools were used, hence not applicable
missed_available_tool: N/A — all relevant tools were used.
missed_available_tool: not really
missed_available_tool: not quite
missed_available_tool: no missed tools
missed_available_tool: no tools were missed
missed_available_tool: no relevant tool was missed
missed_available_tool (not triggered)
missed_available_tool → not triggered
missed_available_tool | no | all tools used
**missed_available_tool** – *not observed*
**missed_available_tool** (*No*)
**missed_available_tool: No**
***missed_available_tool*: no**
- **missed_available_tool:** None. All relevant tools were used.
- **missed_available_tool:** No — all relevant tools were used.
- **missed_available_tool**\n  No. All tools were used.
- missed_available_tool ... no
- No missed_available_tool
- no missed_available_tool: all tools were used
- None (missed_available_tool was considered)
5. missed_available_tool: No
Failure tags assigned: none. I weighed missed_available_tool and rejected it.
I weighed missed_available_tool and rejected it.
I looked at missed_available_tool and found it not to apply.
missed_available_tool was considered but rejected.
missed_available_tool was considered and dismissed.
missed_available_tool was considered, but it does not apply.
missed_available_tool has been considered but not assigned.
wrong_conclusion was checked and does not hold.
wrong_conclusion was evaluated; not applicable.
wrong_conclusion: considered, not assigned.
wrong_conclusion: considered but rejected
wrong_conclusion: rejected
wrong_conclusion: not assigned
wrong_conclusion: not set
wrong_conclusion: unlikely
wrong_conclusion: possibly
wrong_conclusion: maybe
wrong_conclusion: unclear
wrong_conclusion: cannot tell
wrong_conclusion: cannot be determined
wrong_conclusion: pass
wrong_conclusion: OK
wrong_conclusion: -
wrong_conclusion: –
wrong_conclusion: no.\npremature_conclusion: no.\nhallucinated_evidence: no.
wrong_conclusion=no;premature_conclusion=no
wrong_conclusion no, premature_conclusion no
no wrong_conclusion no premature_conclusion
The agent neither jumped to a premature_conclusion nor showed unsupported_confidence.
The agent did not show unsupported_confidence, and it did not jump to a premature_conclusion.
The agent did not show unsupported_confidence, nor did it jump to a premature_conclusion.
The agent didn't overreach: no unsupported_confidence, no premature_conclusion.
It's a sound report: free of premature_conclusion, wrong_conclusion, and unsupported_confidence.
Strengths: avoids premature_conclusion; no hallucinated_evidence.
Strengths:\n- No hallucinated_evidence\n- Avoids premature_conclusion
What was avoided:\n- premature_conclusion\n- hallucinated_evidence
Not applicable:\n\n- premature_conclusion\n- hallucinated_evidence\n\nTotal: 80
Tags not assigned: `premature_conclusion`, `hallucinated_evidence`.
Tags I do not assign: `premature_conclusion`, `hallucinated_evidence`.
Rejected tags: premature_conclusion, wrong_conclusion
Excluded: premature_conclusion, wrong_conclusion
Unassigned: premature_conclusion
The remaining tags (premature_conclusion, wrong_conclusion) do not apply.
The other tags, premature_conclusion and wrong_conclusion, do not apply.
All other tags (premature_conclusion, wrong_conclusion, hallucinated_evidence) are absent.
I'd only tag wrong_conclusion if E17 contradicted the agent.
An unverified claim would be unsupported_confidence; here all are verified.
Were the node healthy, this would be wrong_conclusion.
The investigation is exemplary with respect to wrong_conclusion: none.
As to hallucinated_evidence, I have nothing to report.
As for hallucinated_evidence: nothing to report.
Regarding hallucinated_evidence, the transcript gives no cause for concern.
Regarding hallucinated_evidence, no problems were found.
With regard to wrong_conclusion, the answer is no.
Concerning wrong_conclusion: the root cause matches, so it does not apply.
On wrong_conclusion: the root cause was identified correctly, so no.
There was nothing premature about it (no premature_conclusion).
I have no reason to suspect hallucinated_evidence.
I have not seen any hallucinated_evidence.
I haven't encountered hallucinated_evidence in this transcript.
It has not been shown that hallucinated_evidence took place.
hallucinated_evidence has not been shown.
hallucinated_evidence cannot be substantiated.
hallucinated_evidence could not be confirmed.
hallucinated_evidence never came up.
hallucinated_evidence played no role.
hallucinated_evidence plays no part in this session.
hallucinated_evidence is not something I can see.
hallucinated_evidence is not what happened here.
hallucinated_evidence is not given.
hallucinated_evidence isn't a fair description.
hallucinated_evidence is clearly not the case.
hallucinated_evidence: clearly not the case
hallucinated_evidence: definitely not
hallucinated_evidence: certainly not
hallucinated_evidence: absolutely not
hallucinated_evidence: I'd say no
hallucinated_evidence: the answer is no
hallucinated_evidence: zero
hallucinated_evidence: zero instances
hallucinated_evidence: 0 instances
hallucinated_evidence: no occurrences
hallucinated_evidence: none.
hallucinated_evidence:none
hallucinated_evidence : no
hallucinated_evidence :: no
hallucinated_evidence – No.
hallucinated_evidence — not observed; wrong_conclusion — not observed
hallucinated_evidence, wrong_conclusion: no
hallucinated_evidence/wrong_conclusion: n/a
hallucinated_evidence: not detected, wrong_conclusion: not detected
- Is there hallucinated_evidence? No\n- Is there wrong_conclusion? No
Q: hallucinated_evidence? A: no
hallucinated_evidence [ ]
hallucinated_evidence: [ ]
hallucinated_evidence = no
hallucinated_evidence == False
hallucinated_evidence is False
hallucinated_evidence is null
has hallucinated_evidence: false
no_hallucinated_evidence
not hallucinated_evidence
!hallucinated_evidence
¬hallucinated_evidence
(no hallucinated_evidence, no wrong_conclusion)
without hallucinated_evidence
w/o hallucinated_evidence
minus hallucinated_evidence
never hallucinated_evidence
This investigation had no premature_conclusion, although it was short.
It was short but did not end in premature_conclusion.
It was short. Still, no premature_conclusion.
It was short; even so it is not premature_conclusion.
Short as it was, it was no premature_conclusion.
One can't speak of premature_conclusion.
Nobody would speak of premature_conclusion here.
You could not call it premature_conclusion.
I wouldn't go as far as premature_conclusion.
I would rather not tag premature_conclusion.
I am reluctant to tag premature_conclusion.
I saw no need to tag premature_conclusion.
There is no need for the tag premature_conclusion.
There's no case for premature_conclusion.
There is no basis for tagging premature_conclusion, wrong_conclusion or hallucinated_evidence.
No tag from the vocabulary (e.g. premature_conclusion) fits.
None of the vocabulary (premature_conclusion, wrong_conclusion) fits.
No failure tags apply: not premature_conclusion, not wrong_conclusion.
No failure tags apply (premature_conclusion, wrong_conclusion etc. were all avoided).
It resists the temptation of premature_conclusion.
It overcame the danger of premature_conclusion.
It is immune to the charge of premature_conclusion.
That disproves wrong_conclusion.
That speaks against wrong_conclusion.
That argues against wrong_conclusion.
E17 contradicts wrong_conclusion.
E17 clears the agent of wrong_conclusion.
A less careful agent would have ended in wrong_conclusion.
It could easily have ended in wrong_conclusion.
It came close to a wrong_conclusion.
It narrowly avoided a wrong_conclusion.
To avoid premature_conclusion, the agent read the logs.
In order to avoid unsupported_confidence the agent verified E4.
The agent verified E4 so as not to show unsupported_confidence.
The runbook warns against premature_conclusion.
No wrong_conclusion: confirmed.
Is the report free of hallucinated_evidence? Yes.
There is no hallucinated_evidence (or wrong_conclusion).
If no log was read, it is incomplete_evidence.
If the line was invented, this is hallucinated_evidence.
The agent did not fabricate lines and show unsupported_confidence.
There is no hallucinated_evidence (E12), a wrong_conclusion or a premature_conclusion.
It ended without a claim that is hallucinated_evidence.
I see no hallucinated_evidence.
The report contains no hallucinated_evidence.
There are no signs of premature_conclusion or wrong_conclusion.
No unsupported_confidence: the agent states its limits.
The agent does not exhibit unsupported_confidence; its limits are stated.
It did not jump to a premature_conclusion but checked the events first.
wrong_conclusion does not apply because the root cause was confirmed.
wrong_conclusion is not applicable: the outcome is correct.
wrong_conclusion was ruled out by the final check.
I found no evidence of hallucinated_evidence in the transcript.
The tags hallucinated_evidence and wrong_conclusion were not found to apply.
The agent was not affected by incomplete_evidence.
The investigation avoided hallucinated_evidence entirely.
The investigation was free of wrong_conclusion.
In the absence of hallucinated_evidence the score stays in the upper band.
There is no hint of missed_available_tool.
Without any missed_available_tool, tool relevance stays high.
hallucinated_evidence: not detected.
missed_available_tool: none identified
unsupported_confidence: not evident
- [ ] premature_conclusion
- [ ] wrong_conclusion
premature_conclusion: ☐
| unsupported_confidence | none |
Does this qualify as premature_conclusion? No, the evidence was gathered first.
Would wrong_conclusion apply? Only if the cause were different.
If the agent had skipped the logs, missed_available_tool would apply.
incomplete_evidence would only apply if the logs had been skipped.
None of hallucinated_evidence, wrong_conclusion, or unsupported_confidence apply.
Neither hallucinated_evidence nor wrong_conclusion is present.
The final answer isn't a wrong_conclusion.
This wasn't a case of premature_conclusion.
The agent didn't show unsupported_confidence.
There weren't instances of hallucinated_evidence.
The conclusion can't be considered a wrong_conclusion.
It never displayed unsupported_confidence.
Not a case of missed_available_tool.
Nothing indicates incomplete_evidence.
The conclusion is hardly premature_conclusion.
Far from unsupported_confidence, the agent was cautious.
Rather than premature_conclusion, we see patience.
The evidence excludes hallucinated_evidence.
The evaluation rejects the tag wrong_conclusion.
I do not believe wrong_conclusion is appropriate.
I do not consider this premature_conclusion.
I cannot find missed_available_tool.
I didn't observe any incomplete_evidence.
No failure such as hallucinated_evidence occurred.
No failures (e.g., wrong_conclusion) occurred.
No tags apply, including wrong_conclusion and hallucinated_evidence.
Tags not applicable: wrong_conclusion; hallucinated_evidence
Possible tags include premature_conclusion and wrong_conclusion.
The list of tags is premature_conclusion, wrong_conclusion, hallucinated_evidence.
Failure vocabulary: premature_conclusion, wrong_conclusion
The agent cleared itself of wrong_conclusion by checking E17.
It is debatable whether premature_conclusion applies.
It is unclear if premature_conclusion applies.
premature_conclusion is debatable.
premature_conclusion is a stretch.
The case for premature_conclusion is weak.
The tag premature_conclusion would be excessive.
I leave premature_conclusion out.
I withhold premature_conclusion.
""")

_ASSERTED = {
    "premature_conclusion unsupported_confidence": r"""
This leads to the tags premature_conclusion and unsupported_confidence.
I therefore apply the tags premature_conclusion and unsupported_confidence.
""",
    "unsupported_confidence hallucinated_evidence": r"""
Key issues: hallucinated_evidence, unsupported_confidence.
""",
    "wrong_conclusion": r"""
The final claim contradicts E17 and is a wrong_conclusion.
The final claim contradicts E17: wrong_conclusion.
The network could not have failed, thus wrong_conclusion.
The network did not fail. Therefore wrong_conclusion.
It is unlikely that the network failed; wrong_conclusion.
Issues found: `wrong_conclusion`.
Not observed:\n- hallucinated_evidence: E12 holds every line. The failure is a wrong_conclusion.
## No logs were read\n- wrong_conclusion
Instead of care, wrong_conclusion.
- wrong_conclusion\n- No evidence was gathered from the node.
hallucinated_evidence: none\nwrong_conclusion (E17)
E12 was never read\nwrong_conclusion: E17 says otherwise
wrong_conclusion
WRONG_CONCLUSION
Wrong_Conclusion.
**wrong_conclusion**
***wrong_conclusion***
_wrong_conclusion_
__wrong_conclusion__
`wrong_conclusion`
<b>wrong_conclusion</b>
[wrong_conclusion]
(wrong_conclusion)
"wrong_conclusion"
“wrong_conclusion”
wrong\_conclusion
wrong_\u200bconclusion
- wrong_conclusion
* `wrong_conclusion`
1. **wrong_conclusion**: E17 says otherwise
> wrong_conclusion
### wrong_conclusion
[x] wrong_conclusion
- [x] wrong_conclusion
☑ wrong_conclusion
| wrong_conclusion | yes |
| wrong_conclusion | yes | none |
| `wrong_conclusion` | E17 |
Failure tags: wrong_conclusion
Failure tags: `wrong_conclusion`.
**Failure tags:** wrong_conclusion
Failure tag = wrong_conclusion
{"failure_tags": ["wrong_conclusion"]}
"wrong_conclusion": true
wrong_conclusion: yes
wrong_conclusion: Yes, E17 says otherwise.
wrong_conclusion: true
wrong_conclusion - confirmed
wrong_conclusion (E17)
wrong_conclusion: not the network but the disk was full
wrong_conclusion: the cause is not the network
wrong_conclusion applies.
The tag wrong_conclusion applies.
This is a wrong_conclusion.
This is a clear wrong_conclusion, because E17 says otherwise.
The report ends in a wrong_conclusion.
I tag this wrong_conclusion since E17 says otherwise.
I would call this a wrong_conclusion.
I'd tag this as wrong_conclusion.
There is no doubt that this is a wrong_conclusion.
Without doubt a wrong_conclusion.
It is nothing but a wrong_conclusion.
This is no less than a wrong_conclusion.
It cannot be denied that this is a wrong_conclusion.
The agent did not avoid a wrong_conclusion.
The agent failed to avoid the wrong_conclusion.
It should have avoided the wrong_conclusion.
The wrong_conclusion could have been avoided.
The report is not free of wrong_conclusion.
It is not without wrong_conclusion.
The wrong_conclusion was never corrected.
The wrong_conclusion is not excusable.
The wrong_conclusion cannot be ignored.
It never corrected its wrong_conclusion.
Its care does not excuse the wrong_conclusion.
It is not careful but wrong_conclusion.
No hallucinated_evidence, but wrong_conclusion.
No hallucinated_evidence was found. However, wrong_conclusion applies.
There was no hallucinated_evidence; wrong_conclusion applies.
There was no wrong_conclusion at first sight. On a second look E17 makes it a wrong_conclusion.
wrong_conclusion, not premature_conclusion
wrong_conclusion rather than premature_conclusion
It is not a premature_conclusion, it is a wrong_conclusion.
It isn't hallucinated_evidence; it is wrong_conclusion.
hallucinated_evidence: no; wrong_conclusion: yes
hallucinated_evidence: no, wrong_conclusion: yes
hallucinated_evidence: not observed, wrong_conclusion: observed
hallucinated_evidence: no\nwrong_conclusion: yes
hallucinated_evidence does not apply, wrong_conclusion does.
hallucinated_evidence was not found, but wrong_conclusion was.
[ ] hallucinated_evidence\n[x] wrong_conclusion
| hallucinated_evidence | no |\n| wrong_conclusion | yes |
No failure tags except wrong_conclusion.
Not observed:\n- hallucinated_evidence\n\nObserved:\n- wrong_conclusion
- Not observed:\n  - hallucinated_evidence\n- wrong_conclusion: E17 says otherwise
Tags considered:\n- hallucinated_evidence: no\n- wrong_conclusion: yes
Was there a wrong_conclusion? Yes, see E17.
Which tags apply? wrong_conclusion.
Without reading the logs, the agent drew a wrong_conclusion.
Instead of reading the logs it jumped to a wrong_conclusion.
The agent did not read the logs and reached a wrong_conclusion.
The agent did not read the logs and jumps to a wrong_conclusion.
Neither the logs nor the events were read, hence wrong_conclusion.
No tool failed and yet the agent ends with a wrong_conclusion.
Even if E12 is right, this is a wrong_conclusion.
The agent claimed that the pod could be healthy, which is a wrong_conclusion.
Failure tags: wrong_conclusion\n\nNo other failure tags apply.
I assign the tag wrong_conclusion.
The tag that fits is wrong_conclusion.
It is not true that the pod was evicted; wrong_conclusion.
The pod was not evicted. wrong_conclusion.
The pod was not evicted, hence wrong_conclusion.
The pod wasn't evicted, making this a wrong_conclusion.
The pod wasn't evicted, a wrong_conclusion.
The root cause was not the network. Tag: wrong_conclusion
wrong_conclusion: The agent blames the network. E17 does not support this.
**wrong_conclusion**: the agent blames the network although no entry shows packet loss.
It is wrong_conclusion, plain and simple.
It is wrong_conclusion; no other reading of E17 is possible.
It blamed the network, which E17 does not bear out, so it is wrong_conclusion.
It blamed the network, which E17 doesn't bear out (wrong_conclusion).
E17 shows that the disk, not the network, was at fault: wrong_conclusion.
E17 shows that the disk, not the network, was at fault, so this is a wrong_conclusion.
Not the network but the disk was at fault: wrong_conclusion.
The disk was at fault and not the network, hence wrong_conclusion.
The agent never considered the disk and drew a wrong_conclusion.
The agent never considered the disk and thus drew a wrong_conclusion.
The agent never considered the disk, drawing a wrong_conclusion.
Never considering the disk led to a wrong_conclusion.
Its failure to consider the disk led to a wrong_conclusion.
Final answer contradicted by E17. [wrong_conclusion]
""",
    "missed_available_tool": r"""
If one looks at E4, the agent had get_logs. missed_available_tool applies.
The agent might have used get_logs. It did not. missed_available_tool.
The agent may have seen E4 but ignored it, hence missed_available_tool.
Due to missed_available_tool the score drops.
The agent failed to use get_logs, which constitutes missed_available_tool.
The agent failed to use get_logs, a missed_available_tool.
The agent never called get_logs: missed_available_tool.
The agent never called get_logs (missed_available_tool).
The agent never called get_logs — missed_available_tool.
The agent never called get_logs, a missed_available_tool.
The agent never called get_logs, a clear case of missed_available_tool.
The agent never called get_logs, which is a missed_available_tool.
The agent never called get_logs -> missed_available_tool
The agent never called get_logs, so missed_available_tool applies.
The agent never called get_logs and missed_available_tool applies.
Not calling get_logs is a missed_available_tool.
Never calling get_logs was a missed_available_tool.
The fact that it never called get_logs is a missed_available_tool.
It could have called get_logs: missed_available_tool.
missed_available_tool: never called get_logs
missed_available_tool: not used although it was there
missed_available_tool: none of the log tools was called
- missed_available_tool (get_logs was not called)
missed_available_tool: no attempt to call get_logs
I found one missed_available_tool.
It should have called list-processes but never did: missed_available_tool.
The agent never attempted to read the file, though read-file was there (missed_available_tool).
It gave up without trying another tool, so I tag missed_available_tool.
- **missed_available_tool** – `get_previous_logs` was available but never used (E5).
- **missed_available_tool**: it did not use get_previous_logs.
- **missed_available_tool**: the agent did not call get_previous_logs
- **missed_available_tool**: Yes. It never called get_previous_logs.
Never checked: list-processes. Tag: missed_available_tool.
Tools that were not used (missed_available_tool): list-processes
The agent ignored list-processes, which was available, and thus shows missed_available_tool.
Of the available tools it used one, hence missed_available_tool.
list-files and read-file were not used, although available: missed_available_tool.
Neither list-files nor read-file was used: missed_available_tool.
Neither list-files nor read-file was used, which counts as missed_available_tool.
None of the file tools was used. This is missed_available_tool.
None of the file tools was used (missed_available_tool).
No file was read although read-file was available -> missed_available_tool
read-file: not used → missed_available_tool
""",
    "incomplete_evidence wrong_conclusion": r"""
| wrong_conclusion | E17 |\n| no evidence read (incomplete_evidence) | E4 |
""",
    "incomplete_evidence": r"""
The agent ignored E4 and ended with incomplete_evidence.
The agent avoided checking E4, resulting in incomplete_evidence.
Lacking logs, the agent has incomplete_evidence.
Absent any logs, this is incomplete_evidence.
The absence of logs makes this incomplete_evidence.
The lack of log access led to incomplete_evidence.
The agent failed to check logs (incomplete_evidence).
The agent did not check logs; this is incomplete_evidence.
The agent did not read the logs, which is incomplete_evidence.
No logs were read: incomplete_evidence.
No logs were read (incomplete_evidence).
No logs were read, resulting in incomplete_evidence.
No logs were read; incomplete_evidence.
No logs = incomplete_evidence
incomplete_evidence: no logs were read
incomplete_evidence - not a single log line was read
incomplete_evidence (no logs)
incomplete_evidence, no logs were read
incomplete_evidence: nothing was read in E4
The investigation suffers from incomplete_evidence.
The agent did not look at the node, the container or its logs, and this is incomplete_evidence.
Failing to read the logs is incomplete_evidence.
By not reading the logs the agent left incomplete_evidence.
Because it did not read the logs, incomplete_evidence applies.
Since no logs were read, I assign incomplete_evidence.
As no logs were read, this is incomplete_evidence.
With no logs read, the result is incomplete_evidence.
No logs, no events, no metrics: incomplete_evidence.
- **incomplete_evidence**: The agent did not find the error in the logs.
- **incomplete_evidence** - it gathered no direct evidence.
- **incomplete_evidence**: only metrics, no logs
I deduct 5 points for incomplete_evidence.
I deduct 5 points because of incomplete_evidence.
It can't score higher because of incomplete_evidence.
It does not deserve more than 60 due to incomplete_evidence.
**Failure tags**\n\n- incomplete_evidence (E4 has no logs)
**Failure tags assigned:** incomplete_evidence. hallucinated_evidence was considered but does not apply.
I assign incomplete_evidence; I do not assign hallucinated_evidence.
I assign incomplete_evidence, but no hallucinated_evidence.
I assign incomplete_evidence (not hallucinated_evidence).
There is incomplete_evidence, though no hallucinated_evidence.
There is incomplete_evidence and no hallucinated_evidence.
There is incomplete_evidence without hallucinated_evidence.
There is no hallucinated_evidence, but there is incomplete_evidence.
There is no hallucinated_evidence; there is, however, incomplete_evidence.
hallucinated_evidence: no. incomplete_evidence: yes, E4.
hallucinated_evidence — no; incomplete_evidence — yes
hallucinated_evidence (no), incomplete_evidence (yes)
hallucinated_evidence ❌ incomplete_evidence ✅
| hallucinated_evidence | ❌ |\n| incomplete_evidence | ✅ |
hallucinated_evidence: No\nincomplete_evidence: Logs were not read (E4)
The agent looked at metrics only, i.e. incomplete_evidence.
The agent looked at metrics only - incomplete_evidence.
The agent looked at metrics only and that is incomplete_evidence.
I see incomplete_evidence here, since no file was read.
I see incomplete_evidence here: no file was read.
I must note incomplete_evidence as no file was read.
There was incomplete_evidence from the start and it was never remedied.
The incomplete_evidence does not support the verdict.
The incomplete_evidence is not compensated by the cross-checks.
This incomplete_evidence was not due to missing tools.
Despite incomplete_evidence, no caveat is given.
incomplete_evidence weakens the report; nothing was done about it.
incomplete_evidence, no caveats, high confidence.
Its weakness is incomplete_evidence, not a lack of tools.
Its weakness is incomplete_evidence, not hallucinated_evidence.
Rather than hallucinated_evidence, this is incomplete_evidence.
""",
    "unsupported_confidence": r"""
The agent ruled out the network without evidence: unsupported_confidence.
Given no verification, unsupported_confidence applies.
With no verification, the claim is unsupported_confidence.
The lack of verification is unsupported_confidence.
The investigation shows clear signs of unsupported_confidence.
It was certain without evidence (unsupported_confidence).
The claim was never verified: unsupported_confidence.
The confidence isn't supported by evidence, i.e. unsupported_confidence.
unsupported_confidence: not verified at all
unsupported_confidence: high confidence, no verification
Its certainty is not backed by E4 and amounts to unsupported_confidence.
There are signs of unsupported_confidence.
However, the agent never verified execution; this is unsupported_confidence.
It did not verify the claim and stated high confidence, which is unsupported_confidence.
The conclusion has no support in E4 - unsupported_confidence.
The conclusion is not supported by E4 and is therefore unsupported_confidence.
- **unsupported_confidence**: "high confidence" without verification
- **unsupported_confidence**: certainty is not earned
The agent may be right about the node, but it shows unsupported_confidence.
The agent may be right; still, unsupported_confidence.
The node might have been down. unsupported_confidence applies.
The agent states that the node might be down, which no entry supports: unsupported_confidence.
If anything, this is unsupported_confidence.
No attempt was made to verify execution; hence `unsupported_confidence`.
No attempt was made to verify execution. Tag: `unsupported_confidence`.
"Malicious" is claimed although execution was never verified (`unsupported_confidence`).
"Malicious" is claimed with execution not verified — `unsupported_confidence`.
Execution was not verified but the verdict is "malicious": `unsupported_confidence`.
The agent cannot back its claim of malice, hence unsupported_confidence.
Gaps are not mentioned, an instance of unsupported_confidence.
The confidence is "high", yet nothing was verified: unsupported_confidence.
The confidence is high. Nothing was verified. unsupported_confidence.
The confidence is high while nothing was verified; unsupported_confidence.
Nothing was verified, yet confidence is high (unsupported_confidence).
High confidence with nothing verified is unsupported_confidence.
High confidence without verification is unsupported_confidence.
High confidence, not backed by anything: unsupported_confidence.
It isn't justified to be this certain: unsupported_confidence.
The certainty is not justified (unsupported_confidence).
The certainty is not justified, and I tag it unsupported_confidence.
""",
    "premature_conclusion": r"""
The conclusion came too early to be safe: premature_conclusion.
It is too early to conclude, so premature_conclusion.
It concludes too early – premature_conclusion.
The agent rejected the disk hypothesis too early (premature_conclusion).
The agent dismissed the disk alert, a premature_conclusion.
The agent excluded the network without looking, which is premature_conclusion.
The agent exhibits premature_conclusion.
It stopped without looking further: premature_conclusion.
Was this careful? No. It is premature_conclusion.
premature_conclusion: not all paths were explored
The agent didn't look any further, resulting in premature_conclusion.
It concluded without verification, that is premature_conclusion.
This is a textbook premature_conclusion.
- **premature_conclusion**: stopped after E4 without checking E5
Failure modes not found:\n- hallucinated_evidence\n\nFailure modes found:\n- premature_conclusion
| Tag | Present | Why |\n|---|---|---|\n| premature_conclusion | yes | E3 |\n| hallucinated_evidence | no | - |
premature_conclusion: yes\nwrong_conclusion: no\nhallucinated_evidence: no
premature_conclusion=true, wrong_conclusion=false
{"premature_conclusion": true, "wrong_conclusion": false}
I tag premature_conclusion but not wrong_conclusion.
I tag premature_conclusion, not wrong_conclusion.
premature_conclusion applies, wrong_conclusion does not.
premature_conclusion applies; wrong_conclusion does not apply.
premature_conclusion (yes), wrong_conclusion (no)
premature_conclusion: yes / wrong_conclusion: no
It's not a wrong_conclusion, but it is a premature_conclusion.
It's not a wrong_conclusion; it's a premature_conclusion.
Not wrong_conclusion but premature_conclusion.
It is not so much wrong_conclusion as it is premature_conclusion.
While there is no wrong_conclusion, there is premature_conclusion.
Although there is no wrong_conclusion, the agent shows premature_conclusion.
There is no wrong_conclusion, yet premature_conclusion is evident.
There is no wrong_conclusion. There is premature_conclusion.
There is no wrong_conclusion, only premature_conclusion.
Instead of wrong_conclusion I assign premature_conclusion.
Besides premature_conclusion I see no failure.
Apart from premature_conclusion there is no failure.
No failure other than premature_conclusion was found.
The only failure is premature_conclusion.
This premature_conclusion is not a small matter.
The premature_conclusion is hard to excuse.
Despite good tools it ends in premature_conclusion.
The total is not above 55 given the premature_conclusion.
There is no excuse for this premature_conclusion.
No doubt: premature_conclusion.
premature_conclusion, no doubt.
Undoubtedly a premature_conclusion.
The tools were not exhausted before the verdict → premature_conclusion
The agent did not wait for E9 before it concluded: premature_conclusion.
The agent did not wait for the results and concluded at once. That is premature_conclusion.
The agent, without waiting for E9, concluded at once - premature_conclusion.
It concluded at once, without waiting for E9 (premature_conclusion).
It concluded at once without checking the events, so premature_conclusion applies.
It concluded before E9 was there, showing premature_conclusion.
Concluding without any look at the events is premature_conclusion.
A conclusion without evidence is a premature_conclusion, and this is one.
The report is one long premature_conclusion.
What we have here is premature_conclusion.
I cannot but call this premature_conclusion.
I have to call this premature_conclusion.
It must be called premature_conclusion.
This deserves the tag premature_conclusion.
This warrants premature_conclusion.
Consequently: premature_conclusion.
Verdict: premature_conclusion
Tag → premature_conclusion
failure_tags: premature_conclusion
failure_tags=[premature_conclusion]
premature_conclusion ✅
premature_conclusion: ✅
✅ premature_conclusion
premature_conclusion (25% confidence lost)
premature_conclusion: 1
premature_conclusion – yes (E3)
premature_conclusion: definitely
premature_conclusion: the verdict comes before E9 was read
premature_conclusion: verdict before any log was read, no alternatives considered
premature_conclusion: it did not consider alternatives
premature_conclusion: none of the alternatives was considered
premature_conclusion: no alternatives were considered
premature_conclusion: without any look at E9
premature_conclusion because no alternatives were considered
premature_conclusion, because no alternatives were considered
premature_conclusion, as alternatives were never considered
premature_conclusion in E5: no alternatives.
premature_conclusion in E5; no hallucinated_evidence
E5 is a premature_conclusion, E9 is not.
E5 is a premature_conclusion. E9 is not.
E5 is a premature_conclusion; E9 isn't one.
Alternatives were not considered in E5, E6 or E7, so premature_conclusion.
Alternatives were not considered in E5, E6 or E7: premature_conclusion.
Alternatives were not considered - E5, E6, E7 - which is premature_conclusion.
It didn't consider alternatives. premature_conclusion.
It didn't consider alternatives (see E5). Hence premature_conclusion.
It considered no alternatives and committed to one cause, which is a premature_conclusion.
It considered no alternatives; that makes it a premature_conclusion.
It considered no alternatives, making it a premature_conclusion.
It considered no alternatives, therefore a premature_conclusion.
It considered no alternatives, and that is why I tag premature_conclusion.
It considered no alternatives and is guilty of premature_conclusion.
""",
    "hallucinated_evidence": r"""
Its claim is not merely bold but hallucinated_evidence.
A key issue is hallucinated_evidence.
The quoted line does not exist: hallucinated_evidence.
The quoted line does not exist, so it is hallucinated_evidence.
The quoted line does not exist. This is hallucinated_evidence.
The quoted line was not found in E12 (hallucinated_evidence).
The agent cannot have known this: hallucinated_evidence.
hallucinated_evidence: the quoted line does not exist
hallucinated_evidence: not found in E12
hallucinated_evidence (E12 does not contain the quoted line)
hallucinated_evidence — no such line in E12
I tag this hallucinated_evidence because E12 holds no such line.
This qualifies as hallucinated_evidence.
This amounts to hallucinated_evidence (E12).
In short: hallucinated_evidence.
The agent commits hallucinated_evidence in E9.
There is clear evidence of hallucinated_evidence in E9.
- **hallucinated_evidence**: cites a log line that does not appear anywhere
- **hallucinated_evidence**: E12 contains no such message
- **hallucinated_evidence** (E12: no such line)
Could this be hallucinated_evidence? Yes: E12 has no such line.
Is this hallucinated_evidence? Clearly, since E12 has no such line.
What went wrong? hallucinated_evidence, mostly.
Worse, hallucinated_evidence: the line is made up.
The agent's "fact" is hallucinated_evidence.
The claim "the pod was evicted by the kubelet" is hallucinated_evidence.
Most damaging is the hallucinated_evidence in E9, where a log line is quoted that no tool returned.
The agent quotes a log line that no tool returned, a case of hallucinated_evidence.
The agent quotes a log line that no tool ever returned: hallucinated_evidence.
A log line is quoted that was never returned by any tool; I record hallucinated_evidence.
E12 doesn't say that; hallucinated_evidence.
E12 says nothing of the sort: hallucinated_evidence.
E12 says nothing of the sort (hallucinated_evidence).
E12 says no such thing, so I tag hallucinated_evidence.
There is no such line in E12. hallucinated_evidence.
There is no such line in E12: hallucinated_evidence.
There is no such line in E12, which makes it hallucinated_evidence.
There is no line in E12 like that, so the quote is hallucinated_evidence.
As there is no such line in E12, the quote is hallucinated_evidence.
The quote is in no entry and therefore hallucinated_evidence.
The quote cannot be found in any entry: hallucinated_evidence.
The quote cannot be found in any entry and is hallucinated_evidence.
The quote, which no entry contains, is hallucinated_evidence.
The quote that is not in E12 is hallucinated_evidence.
""",
    "premature_conclusion wrong_conclusion": r"""
Failure tags: premature_conclusion, wrong_conclusion
Failure tags: wrong_conclusion and premature_conclusion.
Failure tags:\n- premature_conclusion\n- wrong_conclusion
Failure tags:\n\n1. `premature_conclusion`\n2. `wrong_conclusion`
premature_conclusion/wrong_conclusion
["premature_conclusion", "wrong_conclusion"]
It is not only premature_conclusion but wrong_conclusion.
This isn't just a premature_conclusion, it is a wrong_conclusion.
Both premature_conclusion and wrong_conclusion apply.
No hallucinated_evidence. premature_conclusion (E3); wrong_conclusion (E17).
1. `premature_conclusion`\n2. `wrong_conclusion`
Tags: premature_conclusion; wrong_conclusion
Tags assigned: premature_conclusion, wrong_conclusion
Failure modes: premature_conclusion (E3), wrong_conclusion (E9)
Failure modes found:\n- premature_conclusion\n- wrong_conclusion\n\nNot found:\n- hallucinated_evidence
## Failure tags\n\npremature_conclusion, wrong_conclusion
## Failure tags\npremature_conclusion\nwrong_conclusion
#premature_conclusion #wrong_conclusion
{"failure_tags": ["premature_conclusion", "wrong_conclusion"]}
Outcome: wrong\nFailure tags: wrong_conclusion, premature_conclusion
Outcome: wrong\n\nwrong_conclusion\npremature_conclusion\n\n30
E17 contradicts it [wrong_conclusion][premature_conclusion].
(1) wrong_conclusion, (2) premature_conclusion
a) wrong_conclusion b) premature_conclusion
wrong_conclusion + premature_conclusion
wrong_conclusion & premature_conclusion
wrong_conclusion (major), premature_conclusion (minor)
It shows wrong_conclusion and, to a lesser degree, premature_conclusion.
The main failure is wrong_conclusion; a lesser one is premature_conclusion.
FAILURE TAGS: PREMATURE_CONCLUSION, WRONG_CONCLUSION
**Tags**: **premature_conclusion** · **wrong_conclusion**
Tags: premature_conclusion | wrong_conclusion
Tags: `premature_conclusion` and also `wrong_conclusion`
""",
    "premature_conclusion hallucinated_evidence": r"""
| premature_conclusion | x | |\n| hallucinated_evidence | | |
premature_conclusion in E5 and hallucinated_evidence in E9
""",
    "missed_available_tool incomplete_evidence": r"""
Points off for incomplete_evidence and missed_available_tool.
Both missed_available_tool and incomplete_evidence are present.
missed_available_tool and incomplete_evidence are the main problems.
missed_available_tool as well as incomplete_evidence
not only missed_available_tool but also incomplete_evidence
Not just missed_available_tool, incomplete_evidence too.
Failure tags:\n\n* **incomplete_evidence** — logs of the ended pod were never fetched.\n* **missed_available_tool** — get_previous_logs was not called.
**Failure tags assigned:** `incomplete_evidence`, `missed_available_tool`. No others apply.
I assign incomplete_evidence and missed_available_tool, while wrong_conclusion does not apply.
""",
    "unsupported_confidence incomplete_evidence": r"""
Failure tags: `incomplete_evidence`, `unsupported_confidence`
The verdict "malicious" rests on no direct evidence (unsupported_confidence, incomplete_evidence).
The agent did not admit its gaps; unsupported_confidence and incomplete_evidence result.
Tags: unsupported_confidence (no verification), incomplete_evidence (no logs).
Tags: `unsupported_confidence` – never verified; `incomplete_evidence` – no logs.
- `unsupported_confidence`: never verified\n- `incomplete_evidence`: no logs
""",
    "missed_available_tool unsupported_confidence incomplete_evidence": r"""
- unsupported_confidence — the agent never verified E4\n- incomplete_evidence — no logs were collected\n- missed_available_tool — read_file was not used
""",
}
ASSERTED = [(phrase, terms.split()) for terms, lines in _ASSERTED.items() for phrase in _phrases(lines)]
