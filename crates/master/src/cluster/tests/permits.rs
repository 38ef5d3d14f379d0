//! Tasks that may not start any more: they end, with the reason, and are not tried again.

use instep_api::identifiers::{ExperimentId, UserId, WorkspaceId};
use instep_api::link::Exit;
use instep_api::logs::LogFilter;
use instep_api::pages::Order;
use instep_api::states::State;
use instep_database::{HeldRole, Holder, LogQuery, NewAccount, SecretScope, UserChange};

use super::{Agent, ClusterOptions, Master, SINGLE};
use crate::clock::now;
use crate::vault::Vault;

const EDITOR: i64 = 5;
const UNCATEGORIZED: WorkspaceId = WorkspaceId(1);

fn user(master: &Master, name: &str) -> UserId {
    let new = NewAccount {
        username: name.to_owned(),
        display_name: String::new(),
        admin: false,
        active: true,
        remote: false,
        password_hash: None,
        agent_user_group: None,
    };
    master.wait(master.database().create_user(new, now())).unwrap().id
}

fn editor(user: UserId) -> Vec<HeldRole> {
    vec![HeldRole { role: EDITOR, holder: Holder::User(user), workspace: Some(UNCATEGORIZED) }]
}

fn set_secret(master: &Master, owner: UserId, name: &str) {
    let scope = SecretScope::User(owner);
    let sealed = Vault::of(master.database()).seal(scope, name, "value", true).unwrap();
    master.wait(master.database().set_secret(scope, name.to_owned(), sealed, owner, now())).unwrap();
}

/// Waits until an experiment has failed after so many restarts, for a reason that its trial's log has.
fn fails(master: &Master, id: ExperimentId, restarts: i64, reason: &str) {
    master.until("the end", || master.state(id) == State::Error);
    let trial = &master.trials(id)[0];
    assert_eq!((trial.state, trial.restarts), (State::Error, restarts));
    let query = LogQuery {
        tasks: vec![trial.task_id.clone()],
        filter: LogFilter::default(),
        from: None,
        order: Order::Ascending,
        limit: 1000,
    };
    let lines = master.wait(master.database().logs(query)).unwrap();
    let text: String = lines.iter().map(|line| line.log.as_str()).collect();
    assert!(text.contains("it may not start: ") && text.contains(reason), "{text}");
}

fn fail_once(agent: &mut Agent, master: &Master, before_the_next: impl FnOnce()) {
    let start = agent.run_alone(master);
    before_the_next();
    agent.exited(master, &start.share, Exit::code(1));
}

#[test]
fn a_trial_whose_owner_lost_the_role_ends_instead_of_starting_again() {
    let master = Master::new(ClusterOptions { roles: true, ..ClusterOptions::default() });
    let ada = user(&master, "ada");
    master.wait(master.database().give_roles(editor(ada))).unwrap();
    let mut agent = master.agent("one", 1, vec![]);
    let id = master.submit_as(ada, &format!("{SINGLE}}}"));
    fail_once(&mut agent, &master, || master.wait(master.database().take_roles(editor(ada))).unwrap());
    fails(&master, id, 1, "its owner ada may not run experiments in workspace Uncategorized any more");
    // Nor does what waited in the queue.
    let id = master.submit_as(ada, &format!("{SINGLE}}}"));
    fails(&master, id, 0, "hint: who owns the workspace can give it: instep workspace share Uncategorized ada");
    assert!(agent.orders.try_recv().is_err(), "no agent heard of it");
}

#[test]
fn a_trial_whose_owner_was_deactivated_ends() {
    let master = Master::new(ClusterOptions::default());
    let ada = user(&master, "ada");
    let mut agent = master.agent("one", 1, vec![]);
    let id = master.submit_as(ada, &format!("{SINGLE}}}"));
    let deactivate = || {
        let change = UserChange { active: Some(false), ..UserChange::default() };
        master.wait(master.database().change_user(ada, change, now())).unwrap();
    };
    fail_once(&mut agent, &master, deactivate);
    fails(&master, id, 1, "its owner ada has been deactivated");
}

#[test]
fn a_trial_whose_secret_was_deleted_ends_and_names_the_secret() {
    let master = Master::new(ClusterOptions::default());
    let ada = user(&master, "ada");
    set_secret(&master, ada, "hf-token");
    let mut agent = master.agent("one", 1, vec![]);
    let id = master.submit_as(ada, &format!("{SINGLE} environment: {{secrets: {{HF_TOKEN: hf-token}}}}}}"));
    let delete = || {
        let scope = SecretScope::User(ada);
        master.wait(master.database().delete_secret(scope, "hf-token".to_owned())).unwrap();
    };
    fail_once(&mut agent, &master, delete);
    fails(&master, id, 1, "secret 'hf-token' does not exist");
}
