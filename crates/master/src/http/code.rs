//! The code of an experiment, file by file.

use std::collections::BTreeMap;
use std::io::{self, Read};

use flate2::read::GzDecoder;
use instep_api::error::Code;
use instep_api::experiments::{FileNode, ModelFileRequest, ModelFileResponse, ModelTreeResponse};
use instep_api::wire::{Base64, Timestamp};

use super::call::Call;
use super::failure::Failure;
use super::reply::Json;
use crate::clock::now;

/// Bytes of a file that is shown; whoever wants more saves the whole definition.
const LARGEST: u64 = 16 << 20;

type Archive<'a> = tar::Archive<Box<dyn Read + 'a>>;

/// Runs `read` over the archive of an experiment's code, where it may take its time.
async fn read_archive<T: Send + 'static>(
    call: &Call,
    read: impl FnOnce(Archive<'_>) -> io::Result<T> + Send + 'static,
) -> Result<T, Failure> {
    let content = call.application.database.model_definition(call.id("id")?, now()).await?;
    let reading = tokio::task::spawn_blocking(move || {
        // An experiment without files has no archive.
        let unpacked: Box<dyn Read + '_> =
            if content.is_empty() { Box::new(io::empty()) } else { Box::new(GzDecoder::new(content.as_slice())) };
        read(tar::Archive::new(unpacked))
    });
    let read = reading.await.map_err(|error| Failure::new(Code::Internal, error.to_string()))?;
    read.map_err(|error| Failure::new(Code::Internal, format!("cannot read the experiment's code: {error}")))
}

fn plain(path: &std::path::Path) -> String {
    path.to_string_lossy().trim_start_matches("./").trim_end_matches('/').to_owned()
}

/// What is in the archive, by path; folders that have no entry of their own, too.
fn entries(mut archive: Archive<'_>) -> io::Result<BTreeMap<String, FileNode>> {
    let mut found: BTreeMap<String, FileNode> = BTreeMap::new();
    for entry in archive.entries()? {
        let entry = entry?;
        let path = plain(&entry.path()?);
        if path.is_empty() || path == "." {
            continue;
        }
        for (end, _) in path.match_indices('/') {
            found.entry(path[..end].to_owned()).or_insert_with(|| node(&path[..end], true, 0, 0));
        }
        let header = entry.header();
        let is_dir = header.entry_type().is_dir();
        found.insert(path.clone(), node(&path, is_dir, header.size()?, header.mtime()?));
    }
    Ok(found)
}

fn node(path: &str, is_dir: bool, size: u64, modified: u64) -> FileNode {
    let name = path.rsplit('/').next().unwrap_or(path).to_owned();
    let content_type = match name.rsplit_once('.').map(|(_, extension)| extension) {
        _ if is_dir => "",
        Some("json") => "application/json",
        Some("gz" | "tgz" | "zip" | "png" | "jpg" | "pt" | "bin" | "so") => "application/octet-stream",
        _ => "text/plain; charset=utf-8",
    };
    FileNode {
        path: path.to_owned(),
        name,
        modified_time: Timestamp(i64::try_from(modified).unwrap_or(0).saturating_mul(1_000_000)),
        content_length: i64::try_from(size).unwrap_or(i64::MAX),
        is_dir,
        content_type: content_type.to_owned(),
        files: Vec::new(),
    }
}

/// Hangs everything where it belongs, the deepest first.
fn tree(mut found: BTreeMap<String, FileNode>) -> Vec<FileNode> {
    let mut paths: Vec<String> = found.keys().cloned().collect();
    paths.sort_by_key(|path| std::cmp::Reverse(path.matches('/').count()));
    for path in paths {
        let Some((parent, _)) = path.rsplit_once('/') else { continue };
        if let Some(child) = found.remove(&path)
            && let Some(folder) = found.get_mut(parent)
        {
            folder.files.push(child);
        }
    }
    let mut files: Vec<FileNode> = found.into_values().collect();
    sort(&mut files);
    files
}

fn sort(files: &mut [FileNode]) {
    files.sort_by(|one, other| one.name.cmp(&other.name));
    files.iter_mut().for_each(|file| sort(&mut file.files));
}

pub(crate) async fn file_tree(call: Call) -> Result<Json<ModelTreeResponse>, Failure> {
    let found = read_archive(&call, entries).await?;
    Ok(Json(ModelTreeResponse { files: tree(found) }))
}

pub(crate) async fn file(call: Call) -> Result<Json<ModelFileResponse>, Failure> {
    let request: ModelFileRequest = call.json()?;
    let wanted = request.path.unwrap_or_default();
    let path = plain(std::path::Path::new(&wanted));
    let found = read_archive(&call, move |mut archive| {
        for entry in archive.entries()? {
            let mut entry = entry?;
            if plain(&entry.path()?) == path && entry.header().entry_type().is_file() {
                let size = entry.header().size()?;
                let mut content = Vec::new();
                if size <= LARGEST {
                    entry.read_to_end(&mut content)?;
                }
                return Ok(Some((size, content)));
            }
        }
        Ok(None)
    });
    match found.await? {
        None => Err(Failure::not_found(format!("there is no file `{wanted}` in the experiment's code"))),
        Some((size, _)) if size > LARGEST => Err(Failure::invalid(format!(
            "`{wanted}` has {size} bytes, and files of up to {LARGEST} are shown\n\
             hint: save all of the code from /experiments/ID/model_def"
        ))),
        Some((_, content)) => Ok(Json(ModelFileResponse { file: Base64(content) })),
    }
}
