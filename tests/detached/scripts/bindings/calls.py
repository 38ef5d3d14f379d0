"""Calls functions of Determined's bindings against a master, each with what it is for, and reads back what they change.

Prints, as its last line, how many functions there are and which were called.
"""

import json
import sys

import checkpoints
import cluster
import experiments
import made
import people
import projects
import searches
import trials
from determined.common.api import authentication


def main(address: str) -> None:
    session = authentication.login(address, "determined", "")
    admin = authentication.login(address, "admin", "")
    count = made.count_calls()
    ended = made.make_trials(session)
    searches.search_experiments(session, ended)
    searches.search_runs(session, ended)
    searches.project_tables(session, ended)
    searches.charts(session, ended)
    projects.projects(session, admin, ended)
    projects.workspaces(session, admin)
    projects.templates(session)
    cluster.small_things(session, ended)
    cluster.logs(session, admin, ended)
    cluster.older_reports(session, ended.project)
    cluster.queue(session, admin)
    trials.trials(session, ended)
    trials.reports(session)
    checkpoints.checkpoints(session)
    experiments.listed(session, ended)
    experiments.changed(session, ended)
    experiments.several(session)
    experiments.preview(session)
    searches.run_actions(session, ended)
    projects.config_policies(session, admin, ended)
    cluster.pools(session, admin, ended)
    projects.webhooks(session, admin, ended)
    cluster.without_kubernetes(session, admin, ended)
    cluster.master_config(session, admin)
    searches.code_of_an_experiment(session)
    people.settings(session, admin)
    people.messages(session, admin)
    people.tokens(session, admin, address)
    people.users(session, admin, address)
    print(json.dumps({"all": count, "called": sorted(made.CALLED)}))


if __name__ == "__main__":
    main(sys.argv[1])
