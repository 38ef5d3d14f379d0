"""Every subcommand of `det`, called against a master with roles and two agents: its output, or the refusal.

The rows below are played in their order. A subcommand of `det` without a row fails the test. About a minute and a half.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from conftest import Runner
from detached.conftest import SCRIPTS
from detached.conftest import master_with_roles as master
from detached.det import Outcome

from .conftest import CONTEXTS, Cluster

__all__ = ["master"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

UUID = "[0-9a-f]{8}-[0-9a-f-]{27}"
# Rows about what does not exist yet, or ends by itself, are played again until they are as they should be.
PATIENCE_S = 30
PASSWORD = "Abcdefg1"
# It installs Determined itself, by Docker or in a cloud, and asks no master.
LEFT_OUT = {"deploy"}


class Row(NamedTuple):
    """One command line; what its output must contain, as a pattern whose named groups later rows may use."""

    words: str
    says: str = ""
    status: int = 0
    # Ask again until it says so.
    patient: bool = False


OURSELVES = [
    Row("version", "(?s)0.38.1.*0.38.1"),
    Row("user whoami", "You are logged in as user 'admin'"),
    Row("auth list-providers", "No SSO providers"),
    Row("auth login", "No SSO providers"),
    Row("dev auth-token", r"\w{20}"),
    Row("dev bindings list", "get_GetMaster"),
    Row("dev bindings call get_GetMaster", "0.38.1"),
    Row("dev curl /api/v1/master", '"version"'),
    Row("master info --json", '"version": "0.38.1"'),
    Row("master config show", "host_path"),
    Row("master config set --log.level INFO"),
    Row("master logs --tail 5", "agent"),
    Row("master cluster-message set -m 'Back at noon'"),
    Row("master cluster-message get", "Back at noon"),
    Row("master cluster-message clear", "(?s)^(?!.*Back at noon)"),
    Row("agent list", "(?s)one.*two"),
    Row("agent disable two", ""),
    Row("agent list --json", r'(?s)"id": "two".*"enabled": false|"enabled": false.*"id": "two"'),
    Row("agent enable two"),
    Row("slot disable two 0"),
    Row("slot list", "(?s)two.*False|False.*two"),
    Row("slot enable two 0"),
]
PEOPLE = [
    Row(f"user create ann --password {PASSWORD}"),
    Row("user rename ann anna"),
    Row("user edit anna --display-name Anna"),
    Row("user link-with-agent-user anna --agent-uid 41 --agent-user anna --agent-gid 42 --agent-group crew"),
    Row("user deactivate anna"),
    Row("user list --all", "anna .*Anna .*False"),
    Row("user activate anna"),
    Row("user list", "anna .*Anna .*True .*41.*42"),
    Row("user change-password anna"),
    Row("workspace create lab", "lab"),
    Row("workspace edit lab --name labs", "labs"),
    Row("workspace describe labs", "labs"),
    Row("workspace list", "(?s)Uncategorized.*labs"),
    Row("workspace list-pools labs", "(?s)default.*fast"),
    Row("workspace bindings list labs"),
    Row("workspace bindings set labs --namespace none", "(?i)kubernetes", 1),
    Row("workspace bindings delete labs", "(?i)kubernetes", 1),
    Row("workspace resource-quota set labs 5", "(?i)kubernetes", 1),
    Row("project create labs one --description words", "one"),
    Row("project edit labs one --new_name uno", "uno"),
    Row("project describe labs uno", "words"),
    Row("project list labs", "uno"),
    Row("workspace list-projects labs", "uno"),
    Row("project archive labs uno"),
    Row("project describe labs uno --json", '"archived": true'),
    Row("project unarchive labs uno"),
    Row("project list-experiments labs uno", "ID"),
    Row("user-group create crew"),
    Row("user-group add-user crew anna"),
    Row("user-group list", "crew"),
    Row("user-group describe crew", "anna"),
    Row("user-group change-name crew staff"),
    Row("rbac list-roles", "(?s)ClusterAdmin.*Viewer"),
    Row("rbac describe-role Viewer", "(?i)view"),
    Row("rbac assign-role Viewer -w labs -g staff"),
    Row("rbac assign-role Editor -w labs -u anna"),
    Row("rbac list-users-roles anna", "Editor"),
    Row("rbac list-groups-roles staff", "Viewer"),
    Row("workspace list-members labs", "anna"),
    Row("rbac unassign-role Editor -w labs -u anna"),
    Row("rbac list-users-roles anna", "(?s)^(?!.*Editor)"),
    Row("rbac my-permissions", "(?i)admin"),
    Row("user-group remove-user staff anna"),
    Row("user-group describe staff", "(?s)^(?!.*anna)"),
    Row("user-group delete staff --yes"),
    Row("resource-pool bindings add fast labs"),
    Row("resource-pool bindings list-workspaces fast", "labs"),
    Row("resource-pool bindings replace fast Uncategorized"),
    Row("resource-pool bindings remove fast Uncategorized"),
    Row("resource-pool bindings list-workspaces fast", "(?s)^(?!.*labs)"),
    Row("template create small {template}"),
    Row("template set small {template}"),
    Row("template set-value config small {template}"),
    Row("template describe small", "max_restarts: 3"),
    Row("template list", "small"),
    Row("template remove small"),
    Row("template list", "(?s)^(?!.*small)"),
    Row("config-policies set tasks {policy}", ""),
    Row("config-policies describe tasks", "priority_limit"),
    Row("config-policies delete tasks"),
    Row("config-policies describe tasks", "(?s)^(?!.*priority_limit)"),
    Row("token create --description first", r"TokenID: (?P<token>\d+)[^\n]*\n(?s:.*)Token: (?P<secret>\S+)"),
    Row("token list", "first"),
    Row("token edit {token} --description other"),
    Row("token describe {token}", "other"),
    Row("oauth client list", "(?i)enterprise|not available", 1),
    Row("oauth client add name example.org", "(?i)enterprise|not available", 1),
    Row("oauth client remove none", "(?i)enterprise|not available", 1),
]
EXPERIMENTS = [
    Row("preview-search {config}", "(?i)trials"),
    Row("experiment create {config} {code} -f", r"(?s)Created experiment (?P<first>\d+)\n.*exited successfully"),
    Row("experiment wait {first}"),
    Row("experiment list --all", "tutorial.*COMPLETED"),
    Row("experiment describe {first}", "COMPLETED"),
    Row("experiment config {first}", "increment_by"),
    Row("experiment logs {first}", "exited successfully|completed"),
    Row("experiment list-trials {first}", r"(?s)(?P<trial>\d+) \| COMPLETED"),
    Row("experiment list-checkpoints {first}", rf"COMPLETED +\|[^\n]*(?P<checkpoint>{UUID})"),
    Row("experiment download {first} --top-n 1 -o {folder}/best", UUID),
    Row("experiment download-model-def {first} --output-dir {folder}"),
    Row("experiment set name {first} renamed"),
    Row("experiment set description {first} words"),
    Row("experiment set log-retention {first} --days 90"),
    Row("experiment label add {first} good"),
    Row("experiment describe {first} --json", "(?s)(?=.*renamed)(?=.*words)(?=.*good)"),
    Row("experiment label remove {first} good"),
    Row("experiment archive {first}"),
    Row("experiment unarchive {first}"),
    Row("experiment move {first} labs uno"),
    Row("project list-experiments labs uno", "renamed"),
    Row("trial describe {trial} --metrics-summary", "COMPLETED"),
    Row("trial logs {trial} --tail 5", r"\w"),
    Row("trial download {trial} --best -o {folder}/trial", UUID),
    Row("trial set log-retention {trial} --forever"),
    Row("trial support-bundle {trial} -o {folder}", "tar.gz"),
    Row("checkpoint describe {checkpoint}", "{checkpoint}"),
    Row("checkpoint download {checkpoint} -o {folder}/checkpoint", "checkpoint"),
    Row("model create net --description words", "net"),
    Row("model register-version net {checkpoint}", "net|1"),
    Row("model list-versions net", "{checkpoint}"),
    Row("model describe net", "words"),
    Row("model list", "net"),
    Row("model move net -w labs"),
    Row("model delete net"),
    Row("checkpoint rm {checkpoint} --yes --glob state"),
    Row("experiment list-checkpoints {first}", "PARTIALLY_DELETED .*{checkpoint}", patient=True),
    Row("checkpoint delete {checkpoint} --yes"),
    Row("experiment list-checkpoints {first}", " DELETED .*{checkpoint}", patient=True),
    Row("experiment delete-tb-files {first}"),
    Row("experiment set gc-policy {first} --yes --save-experiment-best 0 --save-trial-best 0 --save-trial-latest 1"),
    Row("experiment continue {first}", "{first}"),
    Row("experiment kill {first}"),
    Row("experiment wait {first}", status=1),
    Row("experiment delete {first} --yes"),
    Row("experiment describe {first}", "not found", 1, patient=True),
    Row("experiment create {sleeper} {code} --paused", r"Created experiment (?P<second>\d+)"),
    Row("experiment activate {second}"),
    Row("experiment list-trials {second}", r"(?P<sleeping>\d+) \| (RUNNING|ACTIVE)", patient=True),
    Row("experiment set weight {second} 2"),
    Row("experiment set max-slots {second} 2"),
    Row("experiment set priority {second} 30"),
    Row("job list", rf"(?P<job>{UUID}).*sleeper.*30"),
    Row("job update {job} --priority 31"),
    Row("job update-batch {job}.priority=32"),
    Row("job list", "sleeper.*32"),
    Row("experiment pause {second}"),
    Row("experiment describe {second}", "PAUSED"),
    Row("experiment cancel {second}"),
    Row("experiment describe {second}", "CANCELED", patient=True),
    Row("experiment create {sleeper} {code}", r"Created experiment (?P<third>\d+)"),
    Row("experiment list-trials {third}", r"(?P<killed>\d+) \| (RUNNING|ACTIVE)", patient=True),
    Row("trial kill {killed}"),
    Row("trial describe {killed}", "CANCELED", patient=True),
]
TASKS = [
    Row("command run -d sleep 600", f"(?P<command>{UUID})"),
    Row("command list", "{command}"),
    Row("command describe {command}", "{command}.*RUNNING", patient=True),
    Row("command config {command}", "sleep"),
    Row("command logs {command}", "assigned to an agent", patient=True),
    Row("command set priority {command} 30"),
    Row("command kill {command}", "Killed"),
    Row("notebook start --detach --no-browser", f"(?P<notebook>{UUID})"),
    Row("notebook list", "{notebook}"),
    Row("notebook config {notebook}", "resources"),
    Row("notebook logs {notebook}", "assigned to an agent", patient=True),
    Row("notebook set priority {notebook} 30"),
    Row("notebook open {notebook}"),
    Row("notebook kill {notebook}", "Killed"),
    Row("tensorboard start {third} --detach --no-browser", f"(?P<board>{UUID})"),
    Row("tensorboard list", "{board}"),
    Row("tensorboard config {board}", "resources"),
    Row("tensorboard logs {board}", "assigned to an agent", patient=True),
    Row("tensorboard set priority {board} 30"),
    Row("tensorboard open {board}"),
    Row("tensorboard kill {board}", "Killed"),
    Row("task create {generic}", f"(?P<task>{UUID})"),
    Row("task list", "{task}"),
    Row("task config {task}", "sleep"),
    Row("task logs {task}", "assigned to an agent", patient=True),
    Row("task pause {task}"),
    Row("task unpause {task}", patient=True),
    Row("task fork {task}", f"(?P<fork>{UUID})"),
    Row("task kill {fork}"),
    Row("task kill {task}"),
    Row("task cleanup-logs"),
    Row("shell start -d", f"(?P<shell>{UUID})"),
    Row("shell list", "{shell}"),
    Row("shell config {shell}", "resources"),
    Row("shell logs {shell}", "assigned to an agent", patient=True),
    Row("shell set priority {shell} 30"),
    Row("shell open {shell} -- -o UserKnownHostsFile=/dev/null true", "det shell open {shell}"),
    Row("shell show-ssh-command {shell}", "ProxyCommand"),
    Row("shell show_ssh_command {shell}", "ProxyCommand"),
    Row("shell kill {shell}", "Killed"),
    Row("resources raw 2020-01-01T00:00:00Z 2099-01-01T00:00:00Z", "admin"),
    Row("resources allocations 2020-01-01T00:00:00Z 2099-01-01T00:00:00Z", "admin"),
    Row("resources aggregated {today} {today}", "admin|total"),
]
ENDINGS = [
    Row("project delete labs uno --yes", status=0),
    Row("workspace archive labs"),
    Row("workspace unarchive labs"),
    Row("workspace delete labs --yes"),
    Row("workspace list", "(?s)^(?!.*labs)", patient=True),
    Row("token login {secret}", "Authenticated as admin"),
    Row("token revoke {token}"),
    Row("token list --show-inactive", "other"),
    Row("user login anna", ""),
    Row("user logout", ""),
]
SCENARIO = [*OURSELVES, *PEOPLE, *EXPERIMENTS, *TASKS, *ENDINGS]


class Session:
    """One process that plays rows, and what their outputs have named."""

    def __init__(self, determined: Path, settings: dict[str, str], known: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [determined, SCRIPTS / "det.py"],
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.known = known

    def outcome(self, words: list[str]) -> Outcome:
        """Run one command line."""
        print("det", shlex.join(words), flush=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"det {shlex.join(words)} has ended the process"
        found = json.loads(line)
        return Outcome(found["status"], found["output"])

    def play(self, row: Row) -> str | None:
        """Play a row; give what is wrong with it."""
        missing = set(re.findall(r"\{([a-z]+)\}", row.words + row.says)) - set(self.known)
        if missing:
            return f"det {row.words}: no earlier row has named {', '.join(missing)}"
        words = [word.format(**self.known) for word in shlex.split(row.words)]
        pattern = re.compile(re.sub(r"\{([a-z]+)\}", lambda name: re.escape(self.known[name[1]]), row.says))
        deadline = time.monotonic() + (PATIENCE_S if row.patient else 0)
        while True:
            found = self.outcome(words)
            output = re.sub(r"\x1b\[[0-9;]*m", "", found.output)
            match = pattern.search(output)
            if match and found.status == row.status:
                self.known.update(match.groupdict())
                return None
            if time.monotonic() > deadline:
                return f"det {shlex.join(words)}: status {found.status}, not {row.status} and /{row.says}/:\n{output}"
            time.sleep(0.2)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=30)


def leaf_of(words: str, leaves: set[str]) -> str:
    """Give the subcommand that a command line calls."""
    parts = words.split()
    [found] = [leaf for leaf in leaves if parts[: leaf.count(" ") + 1] == leaf.split()]
    return found


def files(cluster: Cluster, folder: Path) -> dict[str, str]:
    """Write what command lines name."""
    tutorial = cluster.config(
        "python3 checkpoints.py 0", name="tutorial", hyperparameters={"increment_by": {"type": "const", "val": 1}}
    )
    # `det trial download` finds nothing if a single checkpoint is left.
    tutorial["checkpoint_storage"]["save_trial_latest"] = 10
    made = {
        "config": tutorial,
        "sleeper": cluster.config("sleep 600", name="sleeper"),
        "template": {"max_restarts": 3},
        "policy": {"constraints": {"priority_limit": 10}},
        "generic": {"entrypoint": ["sleep", "600"], "resources": {"slots": 0}},
    }
    paths = {}
    for name, content in made.items():
        paths[name] = str(folder / f"{name}.yaml")
        Path(paths[name]).write_text(json.dumps(content))
    return {**paths, "code": str(CONTEXTS / "tutorial"), "folder": str(folder), "today": str(datetime.date.today())}


@pytest.mark.usefixtures("master")
def test_every_subcommand_does_what_it_says(
    run: Runner, determined: Path, cluster: Cluster, settings: dict[str, str], tmp_path: Path
) -> None:
    leaves = set(run(determined, SCRIPTS / "subcommands.py").expect(0).stdout.split("\n")[:-1])
    called = [leaf_of(row.words, leaves) for row in SCENARIO]
    assert sorted(leaves - set(called)) == sorted(LEFT_OUT), "subcommands without a row"
    cluster.agent("one", 3)
    cluster.agent("two", 1, "--pool", "fast")
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" >> {opened}\n')
    browser.chmod(0o755)
    admin = {"DET_USER": "admin", "DET_PASS": "", "TYPED": PASSWORD, "BROWSER": str(browser)}
    session = Session(determined, settings | admin, files(cluster, tmp_path))
    wrong = [error for row in SCENARIO if (error := session.play(row))]
    session.close()
    assert not wrong, "\n".join(wrong)
    for task in ("notebook", "board"):
        assert session.known[task] in opened.read_text(), "the browser was sent there"
    print(f"{len(SCENARIO)} command lines, {len(leaves)} subcommands")
