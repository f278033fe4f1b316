"""Spark, for an index that outgrows one machine: the same SQL as for DuckDB, over the same items as Parquet.

Strings compare by their bytes and doubles are added and multiplied as they stand, so the answers are the same bit by
bit. Each task keeps its best, and only those that are asked for reach the driver.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from steelyard._extras import needed

if TYPE_CHECKING:
    from steelyard.search import Index
    from steelyard.search.plan import Statement

_GLOB = str.maketrans({sign: f"\\{sign}" for sign in "\\[]{}*?"})


@final
class Spark:
    """The engine over one generation of an index.

    Args:
        index: open; it is exported once per generation, beside its files, until it is next changed.
        session: the SparkSession that does the work; by default the active one, or a new one, see `spark_session`.
        table: Parquet that `Index.export` wrote, which all machines of a cluster see; by default it is made.
    """

    def __init__(self, index: Index, session: Any = None, table: str | os.PathLike[str] | None = None) -> None:
        self._session = (session or spark_session()).newSession()  # whose view `items` is this one's alone
        self._folder = index.folder
        if table is None:
            table = index.folder / f"{index.uuid}-{index.generation}.parquet"
            if not table.exists():
                index.export(table)
        floats = ", ".join(f"p{j} FLOAT" for j in range(len(index.names)))
        items = self._session.read.schema(f"id STRING, path STRING, {floats}").parquet(pattern_of(table))
        items.createTempView("items")

    def top(self, asked: Statement, k: int, offset: int) -> list[tuple[Any, ...]]:
        """Return the rows offset … offset + k of the answer, see `Engine`."""
        try:
            chosen = ", ".join(["id", *(f"p{j}" for _, j in asked.columns)])
            rows = self._session.sql(f"{asked.best('items', chosen, 'id', k)} OFFSET {offset}").collect()
        except spark_errors() as error:
            raise ValueError(f"{self._folder} cannot be searched by Spark: {reason(error)}") from None
        return [tuple(row) for row in rows]


def spark_session() -> Any:
    """Return the active SparkSession, or a new one as Spark's own settings say: without any, all cores of this machine.

    Without pyspark, or without the Java that it needs, it is a ValueError.
    """
    with needed("Spark needs", "'steelyard[spark]'"):
        from pyspark.sql import SparkSession
    if (active := SparkSession.getActiveSession()) is not None:
        return active
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise ValueError(f"Spark needs Java, but {where}: install Java 17 or set JAVA_HOME")
    quiet: dict[str, Any] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    try:
        session = SparkSession.builder.appName("steelyard").config(map=quiet).getOrCreate()
    except spark_errors() as error:
        raise ValueError(f"Spark does not start: {reason(error)}") from None
    context: Any = session.sparkContext
    context.setLogLevel("ERROR")
    if context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    return session


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the classes of errors that Spark raises for requests it cannot fulfil."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def reason(error: Exception) -> str:
    """Return in one line what an error of Spark says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:200]


def uri_of(path: str | os.PathLike[str]) -> str:
    """Return the URI by which Spark writes to a path of this machine; a URI is returned as it is."""
    text = os.fspath(path)
    return text if "://" in text else f"file://{Path(text).resolve()}"


def pattern_of(path: str | os.PathLike[str]) -> str:
    """Return the pattern by which Spark reads a path of this machine, whatever its name holds; a URI may be one."""
    text = os.fspath(path)
    return text if "://" in text else uri_of(text).translate(_GLOB)
