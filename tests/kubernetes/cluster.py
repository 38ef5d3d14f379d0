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

import base64
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pytest

from conftest import ROOT, Runner, Running

NAMESPACE = "training"
ROLE = ROOT / "deploy" / "kubernetes" / "role.yaml"
Json = dict[str, Any]
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
        self.restarted: list[Running] = []
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
        for started in [*self.nodes.values(), *self.restarted]:
            started.kill_tree()
        self._script("control_plane.py", "stop", str(self.folder), timeout=60)

    def start_node(
        self, name: str, *options: str, within: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        """Start a node; `within` is a command that runs it, and its pods have its environment."""
        words = (name, f"--kubeconfig={self.folder}/kubeconfig", f"--folder={self.folder}/nodes", *options)
        command = (*within, sys.executable, self._parts / "kubelet_standin.py", *words)
        self.nodes[name] = self._run.start(*command, env=env)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Run kubectl as the administrator, to its end; what it printed."""
        command = [self._tool("kubectl"), f"--kubeconfig={self.folder}/kubeconfig", *words]
        done = subprocess.run(command, input=stdin, text=True, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create(self, manifest: object) -> None:
        """Create an object in the namespace of the tests."""
        self.kubectl("create", "--namespace", NAMESPACE, "--filename=-", stdin=json.dumps(manifest))

    def create_urgent_class(self) -> None:
        """Let pods say that they are more important than others."""
        group = "scheduling.k8s.io/v1"
        urgent = {"apiVersion": group, "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 1000}
        self.kubectl("apply", "--filename=-", stdin=json.dumps(urgent))

    def bind(self, pod: str, node: str) -> None:
        """Give a pod its node, as the scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/binding"
        self.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(binding))

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

    def kill(self, program: str) -> list[str]:
        """Kill a process of the control plane, such as `kube-apiserver`, without a chance to tidy up; its command."""
        [found] = [one for one in psutil.process_iter() if self._is_ours(one, program)]
        command: list[str] = found.cmdline()
        found.kill()
        found.wait(10)
        return command

    def start(self, command: list[str]) -> None:
        """Start a process of the control plane again as it was."""
        self.restarted.append(self._run.start(*command, cwd=self.folder))

    def restart_api_server(self) -> None:
        """Kill the API server and start it again; everybody's watches end."""
        self.start(self.kill("kube-apiserver"))

    def _is_ours(self, process: psutil.Process, program: str) -> bool:
        try:
            words = process.cmdline()
        except psutil.Error:
            return False
        return bool(words) and words[0].endswith(f"/{program}") and any(str(self.folder) in word for word in words)

    def answers(self) -> bool:
        """Whether the API server is ready."""
        command = [self._tool("kubectl"), f"--kubeconfig={self.folder}/kubeconfig", "get", "--raw=/readyz"]
        return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0

    def compact(self) -> None:
        """Have etcd forget all that was before now."""
        [etcd] = [one for one in psutil.process_iter() if self._is_ours(one, "etcd")]
        [url] = [word.partition("=")[2] for word in etcd.cmdline() if word.startswith("--listen-client-urls=")]

        def ask(path: str, body: Json) -> Json:
            request = urllib.request.Request(f"{url}/v3/kv/{path}", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=30) as answer:
                return dict(json.load(answer))

        found = ask("range", {"key": base64.b64encode(b"nothing").decode()})
        ask("compaction", {"revision": found["header"]["revision"], "physical": True})

    def forget(self, name: str) -> None:
        """End a node for good. Nobody else ends what it ran: all pods are forgotten, too."""
        self.nodes.pop(name).kill_tree()
        self.kubectl("delete", "node", name)
        self.kubectl("delete", "pods", "--all", "--namespace", NAMESPACE, "--grace-period=0", "--force")

    def logs(self, beginning: str = "") -> str:
        """What the pods have said whose names begin so."""
        paths = sorted((self.folder / "nodes").glob(f"*/logs/*/{beginning}*.log"))
        return "".join(f"--- {path.name}\n{path.read_text()[-5000:]}" for path in paths)

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
