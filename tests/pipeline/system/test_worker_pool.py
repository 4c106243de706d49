"""Worker processes that die, hang, stop, grow or never start."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from noisegate.pipeline.system.processes import spawn_context
from noisegate.pipeline.system.worker_pool import STARTS, WorkerLost, WorkerNotStarted, WorkerPool, WorkerSetup
from tests.pipeline.system.worker_tasks import LARGE, die_while_starting, work


def test_a_worker_that_dies_hangs_or_stops_costs_its_own_task_and_is_replaced() -> None:
    pool = WorkerPool(2, WorkerSetup(work, spawn_context(), max_bytes=LARGE))
    try:
        tasks = {"die": 30.0, "hang": 0.2, "stop": 0.2, "raise": 30.0}
        bad = {task: pool.submit(task, seconds=seconds) for task, seconds in tasks.items()}
        good = [pool.submit("nothing", seconds=60) for _ in range(6)]
        assert all(answer.result() > 0 for answer in good)
        for task, hung in (("die", False), ("hang", True), ("stop", True)):
            with pytest.raises(WorkerLost) as lost:
                bad[task].result()
            assert lost.value.hung is hung, task
        with pytest.raises(ValueError, match="no such thing"):
            bad["raise"].result()
        grown = pool.submit("grow", seconds=60).result()
        assert {pool.submit("nothing", seconds=60).result() for _ in range(4)}.isdisjoint({grown})
        pool.submit("stop", seconds=3600)
        waiting = [pool.submit("hang", seconds=3600) for _ in range(3)]
    finally:
        pool.close()  # returns although no worker answers
    assert waiting[-1].cancelled()
    assert pool.pids == []


@pytest.mark.parametrize("killed", [STARTS - 1, STARTS])
def test_workers_that_are_killed_as_they_start_are_started_again_a_few_times(killed: int, tmp_path: Path) -> None:
    setup = WorkerSetup(work, spawn_context(), partial(die_while_starting, tmp_path, killed))
    if killed < STARTS:
        pool = WorkerPool(1, setup)
        assert pool.submit("nothing", seconds=60).result() in pool.pids
        pool.close()
    else:
        with pytest.raises(WorkerNotStarted):
            WorkerPool(1, setup)


FIRST_WORKER = """
from noisegate.pipeline.shards.workers import start_server
from noisegate.pipeline.system.processes import forkserver_context, spawn_context
from noisegate.pipeline.system.worker_pool import WorkerPool, WorkerSetup
from tests.pipeline.system.worker_tasks import is_ctrl_c_blocked

{server}
pool = WorkerPool(1, WorkerSetup(is_ctrl_c_blocked, {context}))
print(pool.submit(0, seconds=60).result())
pool.close()
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals cannot be blocked here")
@pytest.mark.parametrize(("server", "context"), [("", "spawn_context()"), ("start_server()", "forkserver_context()")])
def test_ctrl_c_does_not_interrupt_the_imports_of_workers(server: str, context: str) -> None:
    script = FIRST_WORKER.format(server=server, context=context)  # in a process that has started no other yet
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True, timeout=120)
    assert done.stdout == "True\n"
