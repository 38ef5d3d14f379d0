//! What tests begin with: a database, a trial in it, a report of it.
//!
//! A test's databases are files in a folder of its own. If INSTEP_TEST_DATABASE is the address of a PostgreSQL server,
//! `postgres://user@host:port/database`, each of these files stands for a schema there instead.
#![expect(clippy::unwrap_used, reason = "a part of tests")]
#![allow(dead_code, reason = "every test file uses its part")]

use std::path::Path;
use std::time::Duration;

use instep_api::identifiers::{RunId, TrialId, UserId};
use instep_api::metrics::Report;
use instep_api::values::Values;
use instep_api::wire::Timestamp;
use instep_database::{Database, Error, NewExperiment, NewTrial, Opening, PostgresAddress};
use serde_json::{Value, json};

/// When everything happens that says no other time.
pub const NOW: Timestamp = Timestamp(1_000_000);

/// The PostgreSQL server, if the databases are to be there.
pub fn server() -> Option<String> {
    std::env::var("INSTEP_TEST_DATABASE").ok().filter(|address| !address.is_empty())
}

/// The schema that a file stands for.
pub fn schema(path: &Path) -> String {
    let name = path.to_str().unwrap().chars().map(|letter| if letter.is_alphanumeric() { letter } else { '_' });
    name.collect()
}

/// Opens a database as a master does.
pub fn open(path: &Path) -> Database {
    open_as(path, &opening()).unwrap()
}

/// What a master says of itself.
pub fn opening() -> Opening {
    Opening { holder: "test".into(), cluster_id: "cluster".into(), now: NOW }
}

/// Opens a database, or fails to.
pub fn open_as(path: &Path, opening: &Opening) -> Result<Database, Error> {
    match server() {
        None => Database::open(path, opening),
        Some(_) => blocking(|| Database::open_postgres(path, address(path), opening)),
    }
}

/// Where the schema is that a file stands for.
pub fn address(path: &Path) -> PostgresAddress {
    address_at(&server().unwrap(), path)
}

/// The same at a server, or on a way to it, of the test's own choice.
pub fn address_at(server: &str, path: &Path) -> PostgresAddress {
    PostgresAddress::parse(&format!("{server}?schema={}", schema(path)), None).unwrap()
}

/// What a query gives as a text.
pub fn text(path: &Path, sql: &str) -> String {
    blocking(|| client(path).query_one(sql, &[]).unwrap().get(0))
}

/// Runs a statement on a database that may be open; gives how many rows it changed.
pub fn change(path: &Path, sql: &str) -> usize {
    match server() {
        None => file(path).execute(sql, []).unwrap(),
        Some(_) => blocking(|| usize::try_from(client(path).execute(sql, &[]).unwrap()).unwrap()),
    }
}

/// The number that a query gives, on a database that may be open.
pub fn number(path: &Path, sql: &str) -> i64 {
    match server() {
        None => file(path).query_row(sql, [], |row| row.get(0)).unwrap(),
        Some(_) => blocking(|| client(path).query_one(sql, &[]).unwrap().get(0)),
    }
}

/// Does work of PostgreSQL's driver, which has a runtime of its own and cannot be used within another.
pub fn blocking<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

fn file(path: &Path) -> rusqlite::Connection {
    let file = rusqlite::Connection::open(path).unwrap();
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    file
}

fn client(path: &Path) -> postgres::Client {
    let mut client = postgres::Client::connect(&server().unwrap(), postgres::NoTls).unwrap();
    client.batch_execute(&format!("SET search_path TO \"{}\"", schema(path))).unwrap();
    client
}

/// Bytes of a statement that no chunk of metrics begins with.
pub fn damaged_bytes() -> &'static str {
    if server().is_some() { "'\\x01ff'" } else { "x'01ff'" }
}

/// Waits for what a database promises.
pub fn block<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// An experiment of the first user with nothing special about it.
pub fn experiment() -> NewExperiment {
    NewExperiment {
        external_id: None,
        name: "test".into(),
        description: String::new(),
        labels: vec![],
        config: json!({}),
        original_config: String::new(),
        job_id: "job".into(),
        project_id: None,
        project_names: None,
        owner: UserId(1),
        searcher_name: "single".into(),
        searcher_metric: "loss".into(),
        smaller_is_better: true,
    }
}

/// A trial that has started, of an experiment of its own.
pub async fn new_trial(database: &Database, smaller_is_better: bool) -> TrialId {
    let experiment = NewExperiment { smaller_is_better, ..experiment() };
    let experiment = database.create_experiment(experiment, NOW).await.unwrap().id;
    let new = NewTrial { experiment, external_id: None, hparams: json!({}), task_suffix: experiment.to_string() };
    let trial = database.create_trial(new, NOW).await.unwrap().id;
    database.start_trial(trial, true, NOW).await.unwrap();
    trial
}

/// A report whose time is a thousand times its step.
pub fn report(trial: TrialId, run: i64, group: &str, step: i64, values: Value) -> Report {
    let values = Values::from(values.as_object().unwrap());
    Report { trial, run: RunId(run), group: group.into(), step, time: Timestamp(step * 1000), values, batches: None }
}
