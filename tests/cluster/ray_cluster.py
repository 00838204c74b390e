"""A real Ray cluster on this machine for tests: nodes that are killed, and new ones.

The workers of a node are children of its raylet, which is how a process is found on its node.
"""

import contextlib
import ctypes
import importlib.util
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECONDS = 240  # until something happens on a busy machine
KEY = "the same secret on all machines"
MEMORY = 100 << 20  # bytes of a node's object store
LIBC = ctypes.CDLL(None, use_errno=True)
PIDFD_GETFD = 438  # the number of the system call, on all architectures; Linux 5.6

QUICK = {  # a killed node is found to be dead after two seconds, not after half a minute
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 400,
    "health_check_timeout_ms": 5000,  # one that is only slow is not
    "health_check_failure_threshold": 5,
    # A busy machine takes long to start a worker: by default Ray gives it up after a minute, and
    # the node, with all that it executes, after half a minute without its agent.
    "worker_register_timeout_seconds": SECONDS // 2,
    "agent_register_timeout_ms": SECONDS // 2 * 1000,
}


def missing():
    """Return what is to be installed before there can be a cluster, or an empty text."""
    if importlib.util.find_spec("ray") is None:
        return "needs the extra test-cluster: ray is not installed"
    return ""


def until(condition, seconds=SECONDS):
    """Wait for a condition; return its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return value


class TestCluster:
    """A head that executes nothing, and worker nodes with two CPUs each."""

    __test__ = False

    def __init__(self, nodes=2):
        from ray._private.utils import get_ray_address_file
        from ray.cluster_utils import Cluster

        # Ray writes the address of the cluster there, too, whatever folder it is given.
        os.makedirs(os.path.dirname(get_ray_address_file(None)), exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # paths of sockets are short
        head = {"temp_dir": self.folder, "_system_config": QUICK}
        head = self._of(0, **head)
        self._cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.address = self._cluster.address
        self._wanted = nodes
        self.restore()

    def _of(self, cpus, **more):
        return {
            "num_cpus": cpus,
            "object_store_memory": MEMORY,
            "include_dashboard": False,
            "dashboard_agent_listen_port": None,
            **more,
        }

    @property
    def nodes(self):
        """The worker nodes that are alive."""
        return list(self._cluster.worker_nodes)

    def restore(self):
        """Start as many nodes as were killed."""
        while len(self.nodes) < self._wanted:
            arguments = self._of(2)
            del arguments["dashboard_agent_listen_port"], arguments["include_dashboard"]
            patiently(lambda given=arguments: self._cluster.add_node(**given))

    def node_of(self, pid):
        """Return the node whose worker a process is."""
        with open(f"/proc/{pid}/stat") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        for node in self.nodes:
            for infos in node.all_processes.values():
                if any(info.process.pid == parent for info in infos):
                    return node
        raise AssertionError(f"process {pid} is on no node")

    def kill(self, node):
        """Kill a node, with its workers: what a power cut does."""
        raylets = [info.process.pid for infos in node.all_processes.values() for info in infos]
        workers = [pid for raylet in raylets for pid in children_of(raylet)]
        self._cluster.remove_node(node, allow_graceful=False)
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def cut_off(self, node, store):
        """Kill a node as its workers do not notice: they are stopped, and go on when told.

        All their connections but those to the store end: Ray waits for a process that keeps its
        connection and says nothing, on a busy machine for minutes.

        Returns:
            a function that lets them go on.
        """
        raylets = [info.process.pid for infos in node.all_processes.values() for info in infos]
        workers = [pid for raylet in raylets for pid in children_of(raylet)]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        for pid in workers:
            disconnect(pid, urllib.parse.urlsplit(store).port)
        self._cluster.remove_node(node, allow_graceful=False)

        def go_on():
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        return go_on

    def close(self):
        """End all nodes."""
        self._cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)


def patiently(start):
    """Start a node; again, if a busy machine did not start it within Ray's thirty seconds."""
    for last in (False, False, True):
        try:
            with as_on_a_node():
                return start()
        except Exception as error:  # Ray raises no other class here
            if last or "timed out during startup" not in str(error):
                raise
    return None


@contextlib.contextmanager
def as_on_a_node():
    """Give this process the environment that the workers of a node inherit, while it starts one."""
    before = dict(os.environ)
    os.environ.update(environment(""))
    for name in ("STEPWISE_STORE", "STEPWISE_HOME", "STEPWISE_TEST_HOME"):
        os.environ.pop(name, None)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def children_of(pid):
    """Return the ids of the processes that a process has started."""
    done = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(each) for each in done.stdout.split()]


def disconnect(pid, port):
    """End the TCP connections of another process, except those to a port."""
    process = os.pidfd_open(pid)
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                continue
            if (copy := LIBC.syscall(PIDFD_GETFD, process, int(name), 0)) < 0:
                raise OSError(ctypes.get_errno(), f"no copy of socket {name} of process {pid}")
            with socket.socket(fileno=copy) as found, contextlib.suppress(OSError):
                if found.family != socket.AF_UNIX and found.getpeername()[1] != port:
                    found.shutdown(socket.SHUT_RDWR)
    os.close(process)


def alive(pid):
    """Whether a process has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def address():
    """The address of the cluster that this process is connected to."""
    import ray

    return ray.get_runtime_context().gcs_address


def environment(store, **more):
    """The environment of a process that uses the cluster."""
    path = os.pathsep.join([str(ROOT), str(HERE), str(ROOT / "tests" / "programs")])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_LOG_TO_DRIVER": "0",  # else messages of Ray come among the lines of a program
        "STEPWISE_KEY": KEY,
        "STEPWISE_STORE": store,
        **more,
    }


def stepwise(*words):
    """The command line of stepwise."""
    return [sys.executable, "-m", "stepwise", *words]


def program(text, *words):
    """The command line of a program."""
    return [sys.executable, "-c", textwrap.dedent(text), *words]


def ended(command, store, **more):
    """Execute a command line to its end, as a user of the cluster does."""
    return subprocess.run(
        command, cwd=more.pop("cwd", HERE), env=environment(store, **more), check=False,
        capture_output=True, text=True, timeout=SECONDS,
    )  # fmt: skip


def begun(command, store, **more):
    """Start a command line; what it prints is read."""
    return subprocess.Popen(
        command, cwd=more.pop("cwd", HERE), env=environment(store, **more), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def hears(process, text):
    """Read what a process prints, to a line with a text; return the line.

    Ray prints on the stdout of each driver of a cluster that a node has died, whenever it notices.
    """
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"the process ended without {text!r}")
