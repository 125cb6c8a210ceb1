"""Kubernetes runs this in a pod before it stops the service there: does the pod come back under its name?

A named instance stays a member of its group when it stops, so that a rolling restart moves no partition. When a
StatefulSet is scaled in or deleted, the pod does not come back, and its partitions would wait for the session timeout.
In that case this script sends SIGUSR1, which means: when you stop, leave the group for good.

If the API server does not answer, or refuses, it changes nothing. `helm uninstall` may delete the permission before the
script asks: the instance then stays a member until its session times out. It always ends with 0. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def main() -> None:
    options = arguments()
    try:
        leaves, reason = decide(stateful_set(options), ordinal(options.pod))
        if leaves:
            os.kill(options.pid, signal.SIGUSR1)
    except Exception as error:  # whatever it is: Kubernetes must go on to stop the pod
        leaves, reason = False, f"not known, so it stays a member: {type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    say(options.pid, f'pre_stop pod={options.pod} leaves={str(leaves).lower()} reason="{reason}"'.replace("\n", " "))


def arguments() -> argparse.Namespace:
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    host = f"[{host}]" if ":" in host else host
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pod", default=os.environ.get("FOMO_INSTANCE_ID", ""), help="name of this pod")
    parser.add_argument("--api", default=f"https://{host}:{port}", help="address of the API server")
    parser.add_argument("--account", type=Path, default=ACCOUNT, help="folder with token, namespace and ca.crt")
    parser.add_argument("--pid", type=int, default=1, help="process of the service")
    parser.add_argument("--timeout", type=float, default=5.0, help="seconds to wait for the API server")
    return parser.parse_args()


def stateful_set(options: argparse.Namespace) -> dict[str, Any] | None:
    """The StatefulSet of the pod; None if there is none. Raises OSError in time, whatever the server does."""
    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, options.timeout)
    namespace, token = ((options.account / name).read_text().strip() for name in ("namespace", "token"))
    name = options.pod.rpartition("-")[0]
    url = f"{options.api}/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}"
    handlers: list[Any] = [ProxyHandler({})]  # the API server is never behind a proxy
    if options.api.startswith("https:"):
        context = ssl.create_default_context(cafile=str(options.account / "ca.crt"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # authorities of many clusters lack an extension
        handlers.append(HTTPSHandler(context=context))
    request = Request(url, headers={"Authorization": f"Bearer {token}", "Accept": "application/json"})
    try:
        with build_opener(*handlers).open(request, timeout=options.timeout) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except HTTPError as error:
        if error.code == 404:
            return None
        raise


def out_of_time(_number: int, _frame: Any) -> None:
    raise TimeoutError("the API server did not answer in time")


def ordinal(pod: str) -> int:
    """The number at the end of a pod's name."""
    number = pod.rpartition("-")[2]
    if not number.isdecimal():
        raise ValueError(f"{pod!r} is not the name of a pod of a StatefulSet")
    return int(number)


def decide(found: dict[str, Any] | None, number: int) -> tuple[bool, str]:
    """Whether pod `number` is gone for good, and why."""
    if found is None:
        return True, "there is no StatefulSet any more"
    if found["metadata"].get("deletionTimestamp"):
        return True, "the StatefulSet is being deleted"
    spec = found["spec"]
    end = spec.get("ordinals", {}).get("start", 0) + spec.get("replicas", 1)
    if number >= end:
        return True, f"scaled in: the last pod is number {end - 1}"
    return False, "it comes back under the same name"


def say(pid: int, line: str) -> None:
    """Write a line to the log of the service, because nobody sees the output of this script."""
    try:
        log = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    except OSError:
        log = sys.stderr.fileno()
    try:
        os.write(log, f"{line}\n".encode())
    except OSError as error:
        print(line, f"({error})", file=sys.stderr)


if __name__ == "__main__":
    main()
