//! Why an import does not take place, and what to do about it.

use std::path::PathBuf;

/// What stopped an import. Whatever it is, the master's database is as it was.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Error {
    #[error("cannot read the address of the database: {why}")]
    Address { why: String },
    #[error("cannot connect to PostgreSQL at {place}: {why}")]
    Connect { place: String, why: String, hint: &'static str },
    #[error("cannot read {place}: {why}")]
    Server { place: String, why: String, hint: &'static str },
    #[error("cannot read {}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{} is {what}", path.display())]
    OtherFormat { path: PathBuf, what: &'static str, hint: String },
    #[error("{} ends in the middle of {place}", path.display())]
    CutOff { path: PathBuf, place: String },
    #[error("{place} is not a database of Determined: it has no table `{table}`")]
    NotDetermined { place: String, table: &'static str },
    #[error(
        "{place} is of another version of Determined: its last migration is {found}, and this version of instep knows {known} ({release})"
    )]
    OtherVersion { place: String, found: String, known: i64, release: &'static str },
    #[error("the table `{table}` has no column `{column}`")]
    MissingColumn { table: String, column: String },
    #[error("cannot read {}row {number} of the table `{table}`: {why}", column.map(|name| format!("column `{name}` of ")).unwrap_or_default())]
    Row { table: &'static str, number: u64, column: Option<&'static str>, why: String },
    #[error("cannot write the master's database")]
    Target(#[from] instep_database::Error),
}

/// What an import answers.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What to do next.
    pub fn hint(&self) -> String {
        match self {
            Error::Address { .. } => {
                "write it as postgres://USER:PASSWORD@HOST:PORT/DATABASE, as in the `db` section of Determined's master.yaml"
                    .to_owned()
            }
            Error::Connect { hint, .. } | Error::Server { hint, .. } => (*hint).to_owned(),
            Error::File { .. } => "check the path and its permissions".to_owned(),
            Error::OtherFormat { hint, .. } => hint.clone(),
            Error::CutOff { .. } => "write the dump again, with enough room on the disk, and import that".to_owned(),
            Error::NotDetermined { .. } => {
                "name the database of Determined's master; its master.yaml says which it is (`db`, `name`)".to_owned()
            }
            Error::OtherVersion { found, known, release, .. } => {
                let older = found.parse::<i64>().is_ok_and(|found| found < *known);
                if older {
                    format!("start the master of Determined {release} on it once, which brings it up to date; then import it")
                } else {
                    "use a later version of instep".to_owned()
                }
            }
            Error::MissingColumn { .. } | Error::Row { .. } => {
                "if this is a dump, write it again with `pg_dump`; otherwise report it, with this message".to_owned()
            }
            Error::Target(error) => target_hint(error),
        }
    }
}

fn target_hint(error: &instep_database::Error) -> String {
    use instep_database::Error as Database;
    match error {
        Database::InUse { .. } => "stop the master first (`instep down`, or end its process), then import".to_owned(),
        Database::Incomplete { .. } => "run the same `instep master copy` again first, which begins anew".to_owned(),
        Database::TooNew { .. } => "use the version of instep that wrote it, or a later one".to_owned(),
        Database::Unusable { .. } => {
            "name another file with --to, or restore a backup with `instep master restore`".to_owned()
        }
        other if other.is_full_disk() => {
            "nothing was changed; make room on the disk and run the command again: it continues where it stopped"
                .to_owned()
        }
        _ => "nothing was changed; check the disk and the file's permissions, and run the command again".to_owned(),
    }
}
