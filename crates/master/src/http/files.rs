//! Checkpoints' files: sending them, deleting them.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use instep_api::checkpoints::{Checkpoint, DeleteCheckpointsRequest, RemoveFilesRequest};
use instep_api::error::Code;
use instep_api::states::CheckpointState;
use instep_api::wire::Long;
use instep_database::Subject;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};

use super::call::Call;
use super::failure::Failure;
use super::models::undeleted;
use super::reply::{Download, Json, Nothing, Reply};
use crate::archive::{Format, pack};
use crate::deletions::carry_out;
use crate::file_owners::FileOwners;
use crate::storage::{CheckpointFolder, Entry, Kind, Storage, Unreachable};

/// Downloads at the same time; the next one waits.
static DOWNLOADS: Semaphore = Semaphore::const_new(16);
/// Bytes that are sent at a time.
const PART: usize = 128 << 10;
/// Parts that may wait for a slow reader.
const PARTS_AHEAD: usize = 8;
/// How long a reader may take nothing before it is given up.
const SEND_TIMEOUT: Duration = Duration::from_secs(120);
/// Checkpoints that one request may name.
const MOST: usize = 10_000;
/// Patterns that one request may have.
const MOST_GLOBS: usize = 1000;

/// The files of a checkpoint, found on this machine.
struct Found {
    folder: CheckpointFolder,
    entries: Vec<Entry>,
}

/// Looks for a checkpoint's files where its configuration says that they are.
async fn find(call: &Call, uuid: String, storage: Option<Value>) -> Result<Found, Failure> {
    let storage = reachable(call, &uuid, storage)?;
    let owners = owners(call, Subject::Checkpoint(uuid.clone())).await?;
    let looking = tokio::task::spawn_blocking(move || {
        let Some(found) = CheckpointFolder::open(&storage, &uuid).map_err(|error| unreadable(&uuid, &error))? else {
            let shown = storage.path();
            let what = format!("checkpoint '{uuid}' is not in {} on the master's machine", shown.display());
            return Err(Failure::not_found(what));
        };
        let entries = found.entries().map_err(|error| unreadable(&uuid, &error))?;
        found.check(&entries, &owners).map_err(|error| not_theirs(&uuid, &error))?;
        if let Some(other) = entries.iter().find(|entry| entry.kind == Kind::Other) {
            let what = format!("checkpoint '{uuid}': {} is not a file and is not followed", other.path.display());
            return Err(Failure::new(Code::FailedPrecondition, what));
        }
        Ok(Found { folder: found, entries })
    });
    looking.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))?
}

/// Which files may be those of a thing's owner.
async fn owners(call: &Call, subject: Subject) -> Result<FileOwners, Failure> {
    let database = &call.application.database;
    match database.ownership(subject).await?.and_then(|found| found.owners.first().copied()) {
        Some(owner) => Ok(FileOwners::of(database, owner).await?),
        None => Ok(FileOwners::default()),
    }
}

/// Refuses a report of a checkpoint whose files are another's. What the master cannot see it neither serves nor deletes.
pub(super) async fn check_reported(call: &Call, task: &str, uuid: &str, storage: Option<Value>) -> Result<(), Failure> {
    let Ok(storage) = call.application.storage.find(&storage.unwrap_or(Value::Null)) else { return Ok(()) };
    let owners = owners(call, Subject::Task(task.to_owned())).await?;
    let uuid = uuid.to_owned();
    let looking = tokio::task::spawn_blocking(move || {
        let Ok(Some(folder)) = CheckpointFolder::open(&storage, &uuid) else { return Ok(()) };
        folder.check(&[], &owners).map_err(|error| not_theirs(&uuid, &error))
    });
    looking.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))?
}

fn not_theirs(uuid: &str, error: &io::Error) -> Failure {
    Failure::forbidden(format!("checkpoint '{uuid}' cannot be used: {error}"))
}

fn reachable(call: &Call, uuid: &str, storage: Option<Value>) -> Result<Storage, Failure> {
    let found = call.application.storage.find(&storage.unwrap_or(Value::Null));
    found.map_err(|why| out_of_reach(uuid, &why))
}

fn out_of_reach(uuid: &str, why: &Unreachable) -> Failure {
    Failure::new(Code::FailedPrecondition, format!("checkpoint '{uuid}': {why}"))
}

fn unreadable(uuid: &str, error: &io::Error) -> Failure {
    Failure::new(Code::FailedPrecondition, format!("cannot read checkpoint '{uuid}': {error}"))
}

/// Sends a checkpoint's files as one archive.
pub(crate) async fn download(call: Call) -> Result<Reply, Failure> {
    let format = Format::accepted(call.accept.as_deref())
        .ok_or_else(|| Failure::unsupported("checkpoints are sent as application/x-tar or application/gzip"))?;
    let uuid = call.part("uuid").to_owned();
    let (checkpoint, storage) = call.application.database.checkpoint_storage(uuid.clone()).await?;
    if !matches!(checkpoint.state, CheckpointState::Completed | CheckpointState::PartiallyDeleted) {
        let what = format!("checkpoint '{uuid}' is in {} and has no files", checkpoint.state.as_str());
        return Err(Failure::new(Code::FailedPrecondition, what));
    }
    let found = find(&call, uuid.clone(), storage).await?;
    let permit = DOWNLOADS.acquire().await.map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
    let (sender, parts) = mpsc::channel(PARTS_AHEAD);
    let runtime = tokio::runtime::Handle::current();
    // The thread ends with the download: when everything is sent, or when the reader goes away or stands still.
    tokio::task::spawn_blocking(move || {
        let mut out = Out { sender, runtime, part: Vec::with_capacity(PART) };
        let packed = pack(&found.folder, &found.entries, format, &mut out).and_then(|()| out.flush());
        if let Err(error) = packed {
            // Sent in place of the end, so that the reader does not take a part for the whole.
            let _ = out.sender.blocking_send(Err(error));
        }
        drop(permit);
    });
    let name = format!("{uuid}.{}", format.extension());
    Ok(Reply::Download(Download { media_type: format.media_type(), name, parts }))
}

/// Collects what is written into parts, and sends them.
struct Out {
    sender: mpsc::Sender<io::Result<Vec<u8>>>,
    runtime: tokio::runtime::Handle,
    part: Vec<u8>,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PART - self.part.len());
        self.part.extend_from_slice(&bytes[..count]);
        if self.part.len() == PART {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.part.is_empty() {
            return Ok(());
        }
        let part = std::mem::replace(&mut self.part, Vec::with_capacity(PART));
        let sending = tokio::time::timeout(SEND_TIMEOUT, self.sender.send(Ok(part)));
        match self.runtime.block_on(sending) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// The checkpoints that a request names, all of which its caller may delete.
async fn owned(call: &Call, uuids: Option<Vec<String>>) -> Result<Vec<(Checkpoint, Option<Value>)>, Failure> {
    let uuids = uuids.unwrap_or_default();
    if uuids.is_empty() || uuids.len() > MOST {
        return Err(Failure::invalid(format!("checkpointUuids must name 1 to {MOST} checkpoints")));
    }
    let mut found = Vec::new();
    for uuid in uuids {
        call.may_change(Subject::Checkpoint(uuid.clone())).await?;
        let (checkpoint, storage) = call.application.database.checkpoint_storage(uuid.clone()).await?;
        // Said before anything is given up: files that only this master could delete would stay for ever.
        let config = storage.as_ref().unwrap_or(&Value::Null);
        if let Err(why @ Unreachable::Outside(_)) = call.application.storage.find(config) {
            return Err(out_of_reach(&uuid, &why));
        }
        if let Some(task) =
            call.application.database.ownership(Subject::Checkpoint(uuid.clone())).await?.and_then(|found| found.task)
        {
            check_reported(call, &task, &uuid, storage.clone()).await?;
        }
        found.push((checkpoint, storage));
    }
    Ok(found)
}

/// Waits until files are gone that were given up; says which of them could not be deleted.
pub(super) async fn gone(call: &Call, uuids: &[String]) -> Result<Json<Nothing>, Failure> {
    let problems = carry_out(&call.application).await?;
    match problems.iter().find(|problem| uuids.contains(&problem.uuid)) {
        None => Ok(Json(Nothing {})),
        Some(problem) => {
            let what = format!("'{}' is deleted, but its files are not: {}", problem.uuid, problem.why);
            Err(Failure::new(Code::FailedPrecondition, what))
        }
    }
}

pub(crate) async fn delete(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: DeleteCheckpointsRequest = call.json()?;
    let uuids: Vec<String> =
        owned(&call, request.checkpoint_uuids).await?.into_iter().map(|(checkpoint, _)| checkpoint.uuid).collect();
    if let Err(error) = call.application.database.delete_checkpoints(uuids.clone()).await {
        return Err(undeleted(&call, error).await);
    }
    gone(&call, &uuids).await
}

/// The patterns of a request: `*` stays within a folder, `**` does not.
fn patterns(globs: &[String]) -> Result<GlobSet, Failure> {
    let wrong = |error: globset::Error| Failure::invalid(format!("checkpointGlobs: {error}"));
    if globs.len() > MOST_GLOBS {
        return Err(Failure::invalid(format!(
            "checkpointGlobs has {} patterns, and may have {MOST_GLOBS}",
            globs.len()
        )));
    }
    let mut patterns = GlobSetBuilder::new();
    for glob in globs {
        patterns.add(GlobBuilder::new(glob).literal_separator(true).build().map_err(wrong)?);
    }
    patterns.build().map_err(wrong)
}

/// What is left of a checkpoint's files by patterns, and what goes. Folders stay as long as they hold something.
fn split(entries: &[Entry], patterns: &GlobSet) -> (BTreeMap<String, Long>, Vec<String>) {
    let name = |path: &PathBuf| path.to_string_lossy().into_owned();
    let goes = |entry: &Entry| entry.kind == Kind::File && patterns.is_match(&entry.path);
    let kept = entries.iter().filter(|entry| entry.kind == Kind::File && !goes(entry));
    let holding: HashSet<&Path> = kept.flat_map(|entry| entry.path.ancestors().skip(1)).collect();
    let stays = |entry: &&Entry| match entry.kind {
        Kind::Folder => holding.contains(entry.path.as_path()),
        Kind::File | Kind::Other => !goes(entry),
    };
    let left = entries.iter().filter(stays);
    let left = left.map(|entry| match entry.kind {
        Kind::Folder => (name(&entry.path) + "/", Long(0)),
        Kind::File | Kind::Other => (name(&entry.path), Long(entry.size as i64)),
    });
    (left.collect(), entries.iter().filter(|entry| goes(entry)).map(|entry| name(&entry.path)).collect())
}

pub(crate) async fn remove(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: RemoveFilesRequest = call.json()?;
    let globs = request.checkpoint_globs.unwrap_or_default();
    let patterns = patterns(&globs)?;
    let mut uuids = Vec::new();
    for (checkpoint, storage) in owned(&call, request.checkpoint_uuids).await? {
        let uuid = checkpoint.uuid;
        let found = find(&call, uuid.clone(), storage).await?;
        let patterns = patterns.clone();
        // There may be a million.
        let splitting = tokio::task::spawn_blocking(move || split(&found.entries, &patterns));
        let (left, paths) = splitting.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
        if let Err(error) = call.application.database.delete_checkpoint_files(uuid.clone(), left, paths).await {
            return Err(undeleted(&call, error).await);
        }
        uuids.push(uuid);
    }
    gone(&call, &uuids).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_files_and_empty_folders_go() {
        let entry = |path: &str, kind| Entry { path: path.into(), kind, size: 3, modified: 0, uid: 0 };
        let entries = [
            entry("a.pt", Kind::File),
            entry("metadata.json", Kind::File),
            entry("sub", Kind::Folder),
            entry("sub/b.pt", Kind::File),
            entry("sub/inner", Kind::Folder),
            entry("sub/inner/c.txt", Kind::File),
        ];
        let cases: &[(&[&str], &[&str])] = &[
            (&[], &["a.pt", "metadata.json", "sub/", "sub/b.pt", "sub/inner/", "sub/inner/c.txt"]),
            (&["*.pt"], &["metadata.json", "sub/", "sub/b.pt", "sub/inner/", "sub/inner/c.txt"]),
            (&["**/*.pt"], &["metadata.json", "sub/", "sub/inner/", "sub/inner/c.txt"]),
            (&["sub/**"], &["a.pt", "metadata.json"]),
            (&["sub/inner/*", "a.*"], &["metadata.json", "sub/", "sub/b.pt"]),
            (&["**/*"], &[]),
            (&["**"], &[]),
        ];
        for (globs, expected) in cases {
            let globs: Vec<String> = globs.iter().map(|glob| (*glob).to_owned()).collect();
            let (left, gone) = split(&entries, &patterns(&globs).unwrap());
            assert_eq!(left.keys().map(String::as_str).collect::<Vec<_>>(), *expected, "{globs:?}");
            assert!(gone.iter().all(|path| !left.contains_key(path)), "{globs:?}");
        }
        assert!(patterns(&["[".to_owned()]).is_err());
        assert!(patterns(&vec!["a".to_owned(); MOST_GLOBS + 1]).is_err());
    }
}
