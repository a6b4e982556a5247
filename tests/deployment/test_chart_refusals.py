"""Values that make no sense: the chart refuses them with a sentence that says what to do."""

import re

import pytest
from deploying import CHART, MINIMAL, NO_API, Render

REFUSED = {
    "no image": ((*MINIMAL[1:], NO_API), "image.repository: say where the image is"),
    "no database": ((*MINIMAL[:1], *MINIMAL[2:], NO_API), "database.existingSecret: name the Secret"),
    "no broker": ((*MINIMAL[:2], *MINIMAL[3:], NO_API), "kafka.bootstrapServers: give the brokers"),
    "no timeline": ((*MINIMAL[:3], NO_API), "timeline.existingSecret: the source tarsy-db needs"),
    "a folder nobody mounts": (
        (*MINIMAL, NO_API, "--set=timeline.source=files", "--set=timeline.dir=/sessions"),
        "timeline.dir: /sessions is in no mount of worker",
    ),
    "a folder that the API lacks": (
        (
            *(*MINIMAL, "--set=api.access.open=true", "--set=timeline.source=files", "--set=timeline.dir=/sessions/a"),
            *("--set=worker.extraVolumeMounts[0].name=a", "--set=worker.extraVolumeMounts[0].mountPath=/sessions/"),
        ),
        "timeline.dir: /sessions/a is in no mount of api",
    ),
    "a token of Kafka that the bridge lacks": (
        (
            *(*MINIMAL, NO_API, "--set=kafka.securityProtocol=SASL_SSL", "--set=kafka.sasl.mechanism=OAUTHBEARER"),
            *("--set=kafka.sasl.oauthTokenFile=/token/it", "--set=bridge.enabled=true"),
            *("--set=worker.extraVolumeMounts[0].name=a", "--set=worker.extraVolumeMounts[0].mountPath=/token"),
        ),
        "kafka.sasl.oauthTokenFile: /token/it is in no mount of bridge",
    ),
    "a mount beside the folder": (
        (
            *(*MINIMAL, NO_API, "--set=timeline.source=files", "--set=timeline.dir=/sessions-2"),
            *("--set=worker.extraVolumeMounts[0].name=a", "--set=worker.extraVolumeMounts[0].mountPath=/sessions"),
        ),
        "timeline.dir: /sessions-2 is in no mount of worker",
    ),
    "API for nobody in particular": (MINIMAL, "api.access: say who may use the API"),
    "open ingress": (
        (*MINIMAL, "--set=api.access.open=true", "--set=api.ingress.enabled=true", "--set=api.ingress.host=a.b"),
        "an ingress would hand an API without access control to everybody",
    ),
    "ingress without API": ((*MINIMAL, NO_API, "--set=api.ingress.enabled=true"), "but api.enabled is false"),
    "two autoscalers": (
        (*MINIMAL, NO_API, "--set=worker.keda.enabled=true", "--set=worker.hpa.enabled=true"),
        "two autoscalers of one Deployment work against each other",
    ),
    "no worker left": (
        (*MINIMAL, NO_API, "--set=worker.keda.enabled=true", "--set=worker.keda.minReplicas=0"),
        "worker[./]keda[./]minReplicas",
    ),
    "fewest above most": ((*MINIMAL, NO_API, "--set=worker.hpa.minReplicas=20"), "minReplicas is above maxReplicas"),
    "SASL without password": (
        (*MINIMAL, NO_API, "--set=kafka.securityProtocol=SASL_SSL", "--set=kafka.sasl.username=me"),
        "kafka.sasl.existingSecret: SASL needs a password",
    ),
    "certificates without TLS": ((*MINIMAL, NO_API, "--set=kafka.tls.existingSecret=t"), "uses no TLS"),
    "half a certificate": (
        (
            *MINIMAL,
            *(NO_API, "--set=kafka.securityProtocol=SSL", "--set=kafka.tls.existingSecret=t"),
            "--set=kafka.tls.certificateKey=tls.crt",
        ),
        "mutual TLS needs both",
    ),
    "write-back without a role": ((*MINIMAL, NO_API, "--set=writeBack.enabled=true"), "writeBack.existingSecret: name"),
    "bridge without TARSy's database": (
        (*MINIMAL, NO_API, "--set=bridge.enabled=true", "--set=timeline.source=tarsy-api", "--set=timeline.apiUrl=a"),
        "bridge: it reads TARSy's database",
    ),
    "a name nobody knows": ((*MINIMAL, NO_API, "--set=worker.replcas=3"), "replcas"),
    "a variable that only workers have": (
        (
            *(*MINIMAL, NO_API, "--set=judge.keys[0].variable=TEAM", "--set=judge.keys[0].existingSecret=judge"),
            *("--set=judge.keys[0].key=team", "--set=config.providers.main.extra_headers.x-team=${TEAM}"),
        ),
        r"config: it names \$\{TEAM\}, which not every program would have",
    ),
    "a secret variable of the chart": (
        (*MINIMAL, NO_API, *(f"--set=secretEnv.SCORING_DATABASE_URL.{n}=x" for n in ("existingSecret", "key"))),
        "secretEnv.SCORING_DATABASE_URL: the chart sets this variable itself",
    ),
    "a variable twice": (
        (*MINIMAL, NO_API, "--set=env.TEAM=x", *(f"--set=secretEnv.TEAM.{n}=x" for n in ("existingSecret", "key"))),
        "env.TEAM: it stands in secretEnv, too",
    ),
    "a judge's key twice": (
        (
            *(*MINIMAL, NO_API, *(f"--set=secretEnv.TEAM.{n}=x" for n in ("existingSecret", "key"))),
            *(f"--set=judge.keys[0].{n}" for n in ("variable=TEAM", "existingSecret=judge", "key=team")),
        ),
        "judge.keys: the variable TEAM is set elsewhere, too",
    ),
    "a label that selects": (
        (*MINIMAL, NO_API, r"--set=podLabels.app\.kubernetes\.io/name=mine"),
        "app.kubernetes.io/name",
    ),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_nonsense_is_refused_with_a_sentence(helm: Render, case: str) -> None:
    """Values that cannot be meant fail at once, and say what to do."""
    arguments, sentence = REFUSED[case]
    done = helm("template", "scoring", str(CHART), *arguments, check=False)
    assert done.returncode != 0
    assert re.search(sentence, done.stderr), done.stderr
