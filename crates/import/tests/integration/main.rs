//! An import that stops at any row, and is repeated, ends as one that never stopped (invariants 1 to 3).

use std::collections::BTreeMap;
use std::path::Path;

use instep_api::wire::Timestamp;
use instep_database::Opening;
use instep_database::import::Import;
use instep_import::source::{Marker, Source, Table, Visit};
use instep_import::{Dump, Error, Observer, Options, Result, Summary};

/// One of everything, in the form of `pg_dump`.
fn dump() -> String {
    let time = "2024-02-01 00:00:00+00";
    let uuid = "00000000-0000-4000-8000-000000000001";
    let report = |id: i64, trial: i64, step: i64| {
        format!("{trial}\t{time}\t{{\"avg_metrics\": {{\"loss\": {step}}}}}\t{step}\t1\tf\t{id}\ttraining")
    };
    let tables: Vec<(&str, Vec<String>)> = vec![
        ("gopg_migrations (version)", vec!["20241024164947".into()]),
        ("cluster_id (cluster_id)", vec!["c".into()]),
        (
            "users (id, username, password_hash, admin, active, display_name, modified_at, remote, last_auth_at)",
            vec![
                format!("1\tadmin\t\\N\tt\tt\t\\N\t{time}\tf\t\\N"),
                format!("5\tann\t$2a$04$x\tf\tt\tAnn\t{time}\tf\t\\N"),
            ],
        ),
        ("groups (id, group_name, user_id)", vec!["1\tone\t1".into(), "2\tvision\t\\N".into()]),
        ("user_group_membership (user_id, group_id)", vec!["5\t2".into(), "5\t77".into()]),
        ("role_assignment_scopes (id, scope_workspace_id)", vec!["1\t\\N".into()]),
        ("role_assignments (group_id, role_id, scope_id)", vec!["2\t5\t1".into(), "2\t8\t1".into()]),
        (
            "workspaces (id, name, archived, created_at, user_id, immutable, uid, user_, gid, group_, \
             checkpoint_storage_config)",
            vec![format!("2\tlab\tf\t{time}\t5\tf\t\\N\t\\N\t\\N\t\\N\t\\N")],
        ),
        (
            "projects (id, name, description, archived, created_at, notes, workspace_id, user_id, immutable, key)",
            vec![format!("2\tmnist\t\\N\tf\t{time}\t\\N\t2\t5\tf\tMNI")],
        ),
        (
            "experiments (id, state, config, model_definition, start_time, end_time, archived, parent_id, owner_id, \
             progress, original_config, notes, job_id, project_id, unmanaged, external_experiment_id)",
            [(3, "COMPLETED"), (4, "ERROR"), (5, "ACTIVE")]
                .map(|(id, state)| {
                    format!(
                        "{id}\t{state}\t{{\"name\": \"e\"}}\t\\\\x00ff\t{time}\t{time}\tf\t\\N\t5\t1\t\\N\t\tj{id}\t2\tf\tx{id}"
                    )
                })
                .into(),
        ),
        (
            "runs (id, experiment_id, state, start_time, end_time, hparams, warm_start_checkpoint_id, runner_state, \
             restart_id, restarts, total_batches, last_activity, external_run_id, log_retention_days, archived, \
             log_policy_matched)",
            [(7, 3), (8, 4), (9, 5)]
                .map(|(id, of)| {
                    format!(
                        "{id}\t{of}\tCOMPLETED\t{time}\t{time}\t{{}}\t\\N\t\t1\t0\t9\t\\N\t\\N\t\\N\tf\t\\N"
                    )
                })
                .into(),
        ),
        ("run_id_task_id (run_id, task_id)", vec!["7\tt7".into(), "8\tt8".into(), "9\tt9".into()]),
        ("run_checkpoints (run_id, checkpoint_id)", vec![format!("7\t{uuid}")]),
        (
            "checkpoints_v2 (id, uuid, task_id, allocation_id, report_time, state, resources, metadata, size, storage_id)",
            vec![format!("1\t{uuid}\tt7\t\\N\t{time}\tCOMPLETED\t{{\"a\": 1}}\t{{\"steps_completed\": 2}}\t1\t\\N")],
        ),
        (
            "models (name, description, creation_time, last_updated_time, metadata, id, labels, user_id, archived, notes, \
             workspace_id)",
            vec![format!("best\t\\N\t{time}\t\\N\t{{}}\t1\t{{a}}\t5\tf\t\\N\t2")],
        ),
        (
            "model_versions (version, checkpoint_uuid, creation_time, last_updated_time, metadata, model_id, id, name, \
             comment, user_id, labels, notes)",
            vec![format!("1\t{uuid}\t{time}\t\\N\t{{}}\t1\t1\t\\N\t\\N\t5\t\\N\t\\N")],
        ),
        ("templates (name, config, workspace_id)", vec!["t\t{}\t2".into()]),
        (
            "raw_steps (trial_id, end_time, metrics, total_batches, trial_run_id, archived, id, metric_group)",
            vec![report(1, 7, 2), report(2, 7, 1), report(3, 8, 1), report(4, 9, 1)],
        ),
        (
            "task_logs (id, task_id, allocation_id, agent_id, container_id, rank_id, source, stdtype, level, timestamp, \
             log)",
            vec![
                "1\tt7\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\tINFO\t2024-02-01 00:00:00\t\\\\x61".into(),
                "2\tt9\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\tINFO\t2024-02-01 00:00:00\t\\\\x61".into(),
            ],
        ),
        ("unheard_of (a)", vec!["1".into()]),
    ];
    let mut text = String::new();
    for (header, rows) in tables {
        text += &format!("COPY public.{header} FROM stdin;\n");
        rows.iter().for_each(|row| text += &format!("{row}\n"));
        text += "\\.\n";
    }
    text + "-- PostgreSQL database dump complete\n"
}

/// Rows between one place to stop at and the next: every one would take long and find the same.
const STRIDE: usize = 3;

/// Gives so many rows, then no more.
struct Breaking {
    dump: Dump,
    rows_left: usize,
}

impl Source for Breaking {
    fn place(&self) -> &str {
        "test"
    }

    fn counts(&mut self) -> Result<BTreeMap<String, u64>> {
        self.dump.counts()
    }

    fn read(&mut self, table: &Table, after: Option<Marker>, visit: Visit<'_>) -> Result<()> {
        let rows_left = &mut self.rows_left;
        self.dump.read(table, after, &mut |row, marker| {
            *rows_left = rows_left.checked_sub(1).ok_or_else(|| Error::Server {
                place: "test".to_owned(),
                why: "as the test wants it".to_owned(),
                hint: "again",
            })?;
            visit(row, marker)
        })
    }
}

#[derive(Default)]
struct Quiet {
    continued: bool,
}

impl Observer for Quiet {
    fn progress(&mut self, _: &str, _: u64, _: u64) {}

    fn continued(&mut self) {
        self.continued = true;
    }
}

fn opening() -> Opening {
    Opening { holder: "test".to_owned(), cluster_id: "here".to_owned(), now: Timestamp(1) }
}

/// Imports as many rows as are given.
fn import(folder: &Path, target: &Path, rows_left: usize) -> (Result<Summary>, bool) {
    let mut source = Breaking { dump: Dump::open(&folder.join("a.sql")).expect("the dump is whole"), rows_left };
    let mut observer = Quiet::default();
    let outcome = instep_import::run(&mut source, target, Options::default(), &opening(), &mut observer);
    (outcome, observer.continued)
}

/// What is there, in words.
fn content(target: &Path) -> String {
    format!("{:?}", Import::begin(target, &opening(), "c").expect("nobody has it open").known())
}

#[test]
fn an_import_that_stops_anywhere_continues_to_the_same_end() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.sql"), dump()).unwrap();
    let whole = folder.path().join("whole.db");
    let expected = import(folder.path(), &whole, usize::MAX).0.unwrap();
    let tally = |table: &str| {
        let tally = &expected.tables[table];
        (tally.taken_over, tally.there_already, tally.not_taken_over.values().sum::<u64>())
    };
    assert_eq!(tally("experiments"), (2, 0, 1));
    assert_eq!(tally("raw_steps"), (3, 0, 1));
    assert_eq!(tally("users"), (2, 0, 0));
    assert_eq!(tally("role_assignments"), (1, 0, 1));
    assert_eq!(tally("task_logs"), (1, 0, 1));
    assert_eq!(tally("unheard_of"), (0, 0, 1));
    assert_eq!(expected.passwords, 1);

    let (mut rows, mut continued) = (1, 0);
    loop {
        let target = folder.path().join(format!("{rows}.db"));
        let (stopped, _) = import(folder.path(), &target, rows);
        if stopped.is_ok() {
            break;
        }
        assert!(!target.exists(), "nothing is there before all is: {rows}");
        let (again, was_continued) = import(folder.path(), &target, usize::MAX);
        continued += usize::from(was_continued);
        assert_eq!(again.unwrap().tables, expected.tables, "stopped at row {rows}");
        assert_eq!(content(&target), content(&whole), "stopped at row {rows}");
        rows += STRIDE;
    }
    assert!(continued > 5, "{continued} of {rows} were continued");
}

#[test]
fn an_import_into_a_database_in_use_changes_nothing_until_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.sql"), dump()).unwrap();
    let target = folder.path().join("a.db");
    let database = instep_database::Database::open(&target, &opening()).unwrap();
    let (refused, _) = import(folder.path(), &target, usize::MAX);
    assert!(refused.unwrap_err().hint().contains("stop the master first"));
    // Only dropped, it would go on closing for a while.
    database.close();
    drop(database);
    let before = std::fs::read(&target).unwrap();
    let (stopped, _) = import(folder.path(), &target, 40);
    assert!(stopped.is_err());
    assert!(std::fs::read(&target).unwrap() == before);
    let done = import(folder.path(), &target, usize::MAX).0.unwrap();
    assert!(std::fs::read(done.kept.unwrap()).unwrap() == before);
    assert!(!import(folder.path(), &target, usize::MAX).0.unwrap().changed);
    // A master opens it, and finds what came.
    instep_database::Database::open(&target, &opening()).unwrap().close();
    assert!(content(&target).contains("\"best\""));
}
