"""A Kubernetes cluster of one's own: a real control plane, and nodes whose pods are processes of this machine.

    with KubernetesCluster(folder) as kubernetes:
        kubernetes.start_node("node-1", "--cpu=1")
        kubernetes.kubectl("get", "nodes")

API server, controllers, scheduler and RBAC are the real ones; there is no container runtime, so a pod's command runs as
it is, whatever its image. The programs and the scripts that start them are not part of this repository: they are in the
folder that INSTEP_TEST_KUBERNETES names, or in `shared/kubernetes` beside this clone. Without them the tests are
skipped, and say so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pytest

from conftest import ROOT, Runner, Running

NAMESPACE = "training"
ROLE = ROOT / "deploy" / "kubernetes" / "role.yaml"
PARTS = ("control_plane.py", "kubelet_standin.py")


def parts() -> Path:
    """The folder with the control plane; skips the test where there is none."""
    named = os.environ.get("INSTEP_TEST_KUBERNETES")
    folder = Path(named) if named else ROOT.parent / "shared" / "kubernetes"
    if not all((folder / part).exists() for part in PARTS):
        reason = f"there is no Kubernetes control plane in {folder}: set INSTEP_TEST_KUBERNETES to a folder with it"
        if named:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    if not shutil.which("etcd"):
        pytest.fail("there is no etcd\nhint: python3 scripts/system.py test", pytrace=False)
    if os.geteuid() != 0:
        pytest.skip("the pods of these tests run as root")
    return folder


class KubernetesCluster:
    """A control plane without nodes, and a namespace in which a service account may do what our Role says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[str, Running] = {}
        self._parts = parts()
        self._run = Runner()

    def __enter__(self) -> KubernetesCluster:
        """Start the control plane, and give our service account its rights."""
        self._script("control_plane.py", "start", str(self.folder), timeout=120)
        try:
            self.kubectl("create", "namespace", NAMESPACE)
            self.kubectl("apply", "--namespace", NAMESPACE, "--filename", str(ROLE))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all of it."""
        self.stop()

    def stop(self) -> None:
        """End nodes, their pods' processes and the control plane."""
        for node in self.nodes.values():
            node.kill_tree()
        self._script("control_plane.py", "stop", str(self.folder), timeout=60)

    def start_node(self, name: str, *options: str) -> None:
        """Start a node."""
        words = (name, f"--kubeconfig={self.folder}/kubeconfig", f"--folder={self.folder}/nodes", *options)
        self.nodes[name] = self._run.start(sys.executable, self._parts / "kubelet_standin.py", *words)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator, to its end; what it printed."""
        command = [self._tool("kubectl"), f"--kubeconfig={self.folder}/kubeconfig", *words]
        done = subprocess.run(command, input=stdin, text=True, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create(self, manifest: object) -> None:
        """Create an object in the namespace of the tests."""
        self.kubectl("create", "--namespace", NAMESPACE, "--filename=-", stdin=json.dumps(manifest))

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """All objects of a kind in the namespace of the tests, the oldest first."""
        shown = self.kubectl("get", kind, "--namespace", NAMESPACE, "--output=json")
        found: list[dict[str, Any]] = json.loads(shown)["items"]
        return sorted(found, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))

    def service_account(self) -> Path:
        """A kubeconfig of the master's service account, which may do what our Role says and nothing else."""
        token = self.kubectl("create", "token", "instep-master", "--namespace", NAMESPACE).strip()
        config = json.loads((self.folder / "kubeconfig").read_text())
        config["users"] = [{"name": "master", "user": {"token": token}}]
        config["contexts"][0]["context"].update(user="master", namespace=NAMESPACE)
        path = self.folder / "master.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def restart_api_server(self) -> None:
        """Kill the API server and start it again as it was; everybody's watches end."""
        [server] = [one for one in psutil.process_iter() if self._is_api_server(one)]
        command = server.cmdline()
        server.kill()
        server.wait(10)
        self.nodes["API server"] = self._run.start(*command, cwd=self.folder)

    def _is_api_server(self, process: psutil.Process) -> bool:
        try:
            words = process.cmdline()
        except psutil.Error:
            return False
        return bool(words) and words[0].endswith("/kube-apiserver") and f"--cert-dir={self.folder}/certs" in words

    def logs(self) -> str:
        """What the pods have said."""
        return "".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in self._pod_logs())

    def _pod_logs(self) -> Iterator[Path]:
        yield from sorted((self.folder / "nodes").glob("*/logs/*/*.log"))

    def _tool(self, name: str) -> Path:
        """Where the control plane's programs were unpacked."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = os.environ.get("KUBEBUILDER_ASSETS")
        found = [Path(folder) / name] if folder else sorted((cache / "instep-kubernetes").glob(f"*/{name}"))
        return found[-1]

    def _script(self, name: str, *words: str, timeout: float) -> None:
        command = [sys.executable, self._parts / name, *words]
        done = subprocess.run(command, text=True, capture_output=True, check=False, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
