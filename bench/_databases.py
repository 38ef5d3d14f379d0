"""Databases for the servers that are compared: a file of SQLite for each, or one PostgreSQL server for all of them."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ("sqlite", "postgres")


class Databases:
    """Where each server keeps what it knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def instep(self) -> str:
        """What `--db` of a master names."""
        return str(self.folder / "instep.db")

    def mlflow(self) -> str:
        """What MLflow calls its backend store."""
        return f"sqlite:///{self.folder / 'mlflow.db'}"


class OnServer(Databases):
    """The same in PostgreSQL, a database each."""

    def __init__(self, folder: Path, port: int) -> None:
        super().__init__(folder)
        self.port = port

    def instep(self) -> str:
        """What `--db` of a master names."""
        return f"postgres://determined@127.0.0.1:{self.port}/determined"

    def mlflow(self) -> str:
        """What MLflow calls its backend store."""
        return f"postgresql+psycopg2://determined@127.0.0.1:{self.port}/mlflow"


@contextlib.contextmanager
def databases(engine: str, folder: Path) -> Iterator[Databases]:
    """Fresh databases, which sync every commit; PostgreSQL's server has its own folder, and its defaults."""
    if engine == "sqlite":
        yield Databases(folder)
        return
    # The server of the end-to-end tests.
    sys.path.insert(0, str(ROOT / "tests"))
    with importlib.import_module("detached.postgres").running(durable=True) as server:
        server.psql("CREATE DATABASE mlflow")
        yield OnServer(folder, server.port)
