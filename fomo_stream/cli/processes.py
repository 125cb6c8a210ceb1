"""Several processes that score the same topics: each is a member of the group, with partitions of its own."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from contextlib import suppress

from fomo_stream.errors import ConfigError
from fomo_stream.logs import configure_logging, kv
from fomo_stream.settings.topic_selection import ProcessSettings

log = logging.getLogger(__name__)

MAX_PORT = 65535
PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent ends


def fork_members(process: ProcessSettings) -> tuple[int, int]:
    """Fork this process into as many as --processes says. Each of them scores. The process may not have threads yet.

    Returns the number of such a process, and 0. In the process that called, -1 and the exit code once all have ended:
    they end together, also when one fails. Raises ConfigError if there are too few ports, or a process
    cannot start.
    """
    count, port = process.processes, process.health_port
    if port is not None and port + count - 1 > MAX_PORT:
        raise ConfigError(f"--processes {count} needs as many ports, and --health-port {port} has fewer above it")
    numbers: dict[int, int] = {}  # of the processes that run, by their ids
    for number in range(count):
        try:
            pid = os.fork()
        except OSError as error:
            for pid in numbers:
                os.kill(pid, signal.SIGTERM)
                os.waitpid(pid, 0)
            reason = f"--processes {count}: process {number} does not start ({error.strerror})"
            raise ConfigError(reason, "allow more processes or memory, or give a lower number") from None
        if not pid:
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            configure_logging(process.log_level, f" process={number}")
            return number, 0
        numbers[pid] = number
    return -1, _until_ended(numbers)


def _until_ended(numbers: dict[int, int]) -> int:
    """Hand signals on until all processes have ended; return the exit code of the first that failed.

    Those of a terminal reach all processes anyway, so that Ctrl-Z suspends all. `Signals` takes both for one.
    """
    is_stopping, code = False, 0

    def hand_on(signal_number: int, _frame: object = None) -> None:
        nonlocal is_stopping
        is_stopping = True
        for pid in list(numbers):
            with suppress(ProcessLookupError):
                os.kill(pid, signal_number)

    signal.signal(signal.SIGINT, hand_on)
    signal.signal(signal.SIGTERM, hand_on)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, hand_on)
    while numbers:
        pid, status = os.wait()
        number = numbers.pop(pid, None)
        if number is None:  # the first process of a container gets those whose parents have ended
            continue
        ended = os.waitstatus_to_exitcode(status)
        ended = ended if ended >= 0 else 128 - ended  # as a shell counts signals
        code = code or ended or int(not is_stopping)  # one that is stopped alone has failed, too
        if not is_stopping:
            log.error(kv("process_ended", number=number, exit_code=ended, effect="the others stop, too"))
            hand_on(signal.SIGTERM)
    return code
