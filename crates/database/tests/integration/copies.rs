//! Databases that are copied to other places: everything comes along, whatever stops it on the way. On PostgreSQL one of
//! the two is there.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::made::{NOW, address, block, change, experiment, new_trial, open, opening, report, server};
use instep_api::identifiers::UserId;
use instep_database::{
    CopiedTable, CopyError, CopyObserver, CopySide, Database, Error, NewExperiment, SecretScope, Transfer,
};
use serde_json::json;

/// Ends a copy after so many steps, as a crash would.
struct Crash(Option<usize>);

impl CopyObserver for Crash {
    fn begins_anew(&mut self) {}

    fn progress(&mut self, _: &str, _: bool, _: u64, _: u64) {
        if let Some(left) = &mut self.0 {
            assert!(*left > 0, "crash, as the test wants it");
            *left -= 1;
        }
    }
}

/// The database that tests make with `open`.
fn made(path: &Path) -> CopySide {
    match server() {
        None => CopySide::File(path.to_owned()),
        Some(_) => CopySide::Postgres { address: Box::new(address(path)), path: path.to_owned() },
    }
}

fn file(path: &Path) -> CopySide {
    CopySide::File(path.to_owned())
}

fn copied(from: &CopySide, to: &CopySide, steps: Option<usize>) -> Result<Vec<CopiedTable>, CopyError> {
    let mut transfer = Transfer::begin(from, to, &opening())?;
    let tables = transfer.run(&opening(), &mut Crash(steps))?;
    transfer.finish()?;
    Ok(tables)
}

fn copy(from: &CopySide, to: &CopySide) -> Vec<CopiedTable> {
    copied(from, to, None).unwrap()
}

/// A database with something of every kind: texts of all letters, numbers that are hard to keep, bytes, gaps in ids.
fn fill(path: &Path) {
    let database = open(path);
    block(async {
        let trial = new_trial(&database, true).await;
        for (step, value) in [0.1 + 0.2, -0.0, f64::MIN_POSITIVE, f64::MAX, -1e-300].into_iter().enumerate() {
            let step = i64::try_from(step).unwrap() + 1;
            database.report_metrics(report(trial, 1, "training", step, json!({"a": value}))).await.unwrap();
        }
        for name in ["é ünï ☃ 𝄞", "'; DROP TABLE users; --", "\"\\\n\t\u{1}\u{7f}", "", "NULL", "?1 $1"] {
            database.create_experiment(NewExperiment { name: name.into(), ..experiment() }, NOW).await.unwrap();
        }
        let secret = vec![0, 255, 39, 92, 0];
        database.set_secret(SecretScope::User(UserId(1)), "key".into(), secret, UserId(1), NOW).await.unwrap();
    });
    database.close();
    for (id, value) in [(1, "CAST('-0' AS DOUBLE PRECISION)"), (2, "1e308"), (3, "0.1"), (4, "NULL"), (5, "3")] {
        change(path, &format!("UPDATE experiments SET progress = {value} WHERE id = {id}"));
    }
    // The last ones go, and their ids are not used again.
    change(path, "DELETE FROM experiments WHERE id >= 6");
}

#[test]
fn a_database_comes_back_the_same_from_wherever_it_was_copied_to() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, third] = ["a.db", "b.db", "c.db"].map(|name| folder.path().join(name));
    fill(&first);
    let there = copy(&made(&first), &file(&second));
    let back = copy(&file(&second), &made(&third));
    assert_eq!(there, back);
    let rows = |name: &str| there.iter().find(|table| table.table == name).unwrap();
    assert_eq!((rows("experiments").rows, rows("experiments").next_id), (5, Some(8)));
    assert_eq!((rows("users").rows, rows("secrets").rows), (2, 1));
    // A master works with it, and its ids go on where the first one's ended.
    let database = open(&third);
    assert_eq!(database.cluster_id(), "cluster");
    let next = block(database.create_experiment(experiment(), NOW)).unwrap();
    assert_eq!(next.id.0, 8);
    drop(database);
    // What was worked with is no copy any more; what was not is one still.
    assert!(matches!(copied(&file(&second), &made(&third), None), Err(CopyError::Occupied(_))));
    assert_eq!(copy(&made(&first), &file(&second)), there);
}

#[test]
fn a_copy_that_stops_anywhere_is_not_opened_and_is_begun_anew_by_the_same_command() {
    let folder = tempfile::tempdir().unwrap();
    let [source, target, whole] = ["a.db", "b.db", "c.db"].map(|name| folder.path().join(name));
    fill(&source);
    let from = file(&folder.path().join("from.db"));
    copy(&made(&source), &from);
    let expected = copy(&from, &made(&whole));
    let mut stops = 0;
    for steps in (0..).step_by(5) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut transfer = Transfer::begin(&from, &made(&target), &opening()).unwrap();
            transfer.run(&opening(), &mut Crash(Some(steps))).unwrap();
        }));
        if outcome.is_ok() {
            break;
        }
        stops += 1;
        match crate::made::open_as(&target, &opening()).err().unwrap() {
            Error::Incomplete { original, .. } => assert_eq!(original, from.shown()),
            other => panic!("{other}"),
        }
        let onwards = copied(&made(&target), &file(&folder.path().join("d.db")), None);
        assert!(matches!(onwards, Err(CopyError::Failed(Error::Incomplete { .. }))), "{onwards:?}");
    }
    assert!(stops >= 3, "{stops}");
    assert_eq!(copy(&from, &made(&target)), expected);
    open(&target);
}

#[test]
fn nothing_is_overwritten_and_nothing_is_copied_that_is_in_use_or_no_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    let (one, two) = (path("a.db"), path("b.db"));
    drop(open(&one));
    let refused = |from: &CopySide, to: &CopySide| copied(from, to, None).unwrap_err();
    assert!(matches!(refused(&made(&one), &made(&one)), CopyError::Same(_)));
    assert!(matches!(refused(&file(&path("none.db")), &made(&two)), CopyError::Failed(Error::File { .. })));
    assert!(!path("none.db.lock").exists());
    let in_use = |error: CopyError| {
        matches!(error, CopyError::Failed(Error::InUse { .. } | Error::InUseHere { .. } | Error::InUseElsewhere { .. }))
    };
    let database = open(&one);
    assert!(in_use(refused(&made(&one), &file(&path("c.db")))));
    drop(database);
    std::fs::write(path("text.db"), "no database, although it is long enough to be one".repeat(100)).unwrap();
    assert!(matches!(refused(&file(&path("text.db")), &made(&two)), CopyError::Failed(Error::Unusable { .. })));
    assert!(matches!(refused(&made(&one), &file(&path("text.db"))), CopyError::Failed(Error::Unusable { .. })));
    let foreign = rusqlite::Connection::open(path("foreign.db")).unwrap();
    foreign.execute_batch("CREATE TABLE mine (id INTEGER)").unwrap();
    assert!(matches!(refused(&file(&path("foreign.db")), &made(&two)), CopyError::Absent(_)));
    assert!(matches!(refused(&made(&one), &file(&path("foreign.db"))), CopyError::Foreign(_)));
    let other =
        Database::open(&path("other.db"), &instep_database::Opening { cluster_id: "other".into(), ..opening() });
    assert!(in_use(refused(&made(&one), &file(&path("other.db")))));
    drop(other);
    assert!(matches!(refused(&made(&one), &file(&path("other.db"))), CopyError::Occupied(_)));
    change(&one, "DELETE FROM schema_steps WHERE number = (SELECT MAX(number) FROM schema_steps)");
    assert!(matches!(refused(&made(&one), &file(&path("d.db"))), CopyError::OtherSchema { .. }));
    change(&one, "INSERT INTO schema_steps SELECT MAX(number) + 2, 1 FROM schema_steps");
    assert!(matches!(refused(&made(&one), &file(&path("d.db"))), CopyError::Failed(Error::TooNew { .. })));
    assert!(!path("d.db").exists());
}

#[test]
fn a_text_that_postgresql_does_not_keep_is_named() {
    if server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [source, target] = ["a.db", "b.db"].map(|name| folder.path().join(name));
    let database = Database::open(&source, &opening()).unwrap();
    let id =
        block(database.create_experiment(NewExperiment { name: "no\0text".into(), ..experiment() }, NOW)).unwrap().id;
    drop(database);
    let error = copied(&file(&source), &made(&target), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "table experiments, row id {}: column name has the character NUL, which PostgreSQL does not keep",
            id.0
        )
    );
    let again = copied(&file(&source), &made(&target), None).unwrap_err();
    assert!(matches!(again, CopyError::Unfit { .. }), "{again}");
}

#[test]
fn one_schema_under_two_addresses_is_one() {
    let Some(server) = server() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    drop(open(&path));
    let other_words = server.replace("127.0.0.1", "localhost");
    let other = CopySide::Postgres {
        address: Box::new(crate::made::address_at(&other_words, &path)),
        path: folder.path().join("other"),
    };
    assert!(matches!(copied(&made(&path), &other, None), Err(CopyError::Same(_))));
}
