"""The end of Spark's JVM, which a signal may reach first: it waits for the brokers' clean stop.

A signal to spark-submit ends its JVM only, and a signal to a group of processes ends JVM and Python
at once. Without a hook Spark stops in the middle of the brokers' last copies, and a container may
end with its JVM before they have stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

from sparklog.logger import get_logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

_STOP_FIRST, _THEN_WAIT = 101, 100
"""Priorities of Hadoop's shutdown hooks, highest first. Spark's own hooks have 40."""


def stop_before_jvm(spark: SparkSession, stop: Callable[[], None], timeout_ms: int) -> None:
    """Call `stop` when the JVM of `spark` begins to end; the JVM then waits for this process.

    It waits for `timeout_ms` at most. Does nothing where the JVM cannot be reached: with Spark
    Connect, or on platforms that forbid its classes.
    """
    from py4j.protocol import Py4JError

    try:
        # A session of Spark Connect has neither a context nor a JVM.
        began = _hooked(spark.sparkContext._jvm, timeout_ms)
    except (AttributeError, Py4JError, OSError) as error:
        _log.debug("no hook in Spark's JVM", error=str(error))
        return

    def watch() -> None:
        with suppress(Py4JError, OSError):
            getattr(began, "await")()
            stop()

    Thread(target=watch, name="jvm-shutdown", daemon=True).start()


def _hooked(jvm: Any, timeout_ms: int) -> Any:
    """Return a latch that opens when the JVM begins to end, which then waits for this process."""
    began = jvm.java.util.concurrent.CountDownLatch(1)
    ended = jvm.java.lang.ProcessHandle.of(os.getpid()).get().onExit()
    nothing, anything = jvm.java.lang.Void.TYPE, _class(jvm, "java.lang.Object")
    hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    unit = jvm.java.util.concurrent.TimeUnit.MILLISECONDS
    hooks.addShutdownHook(_runnable(jvm, began, "countDown", nothing), _STOP_FIRST)
    hooks.addShutdownHook(_runnable(jvm, ended, "join", anything), _THEN_WAIT, timeout_ms, unit)
    return began


def _runnable(jvm: Any, of: Any, method: str, returns: Any) -> Any:
    """Return a Java Runnable that calls a method without parameters of a Java object."""
    invoke = jvm.java.lang.invoke
    handle = invoke.MethodHandles.publicLookup().bind(
        of, method, invoke.MethodType.methodType(returns)
    )
    runnable = _class(jvm, "java.lang.Runnable")
    return invoke.MethodHandleProxies.asInterfaceInstance(runnable, handle)


def _class(jvm: Any, name: str) -> Any:
    return jvm.java.lang.Class.forName(name)
