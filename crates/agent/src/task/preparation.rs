//! What is done before the entrypoint starts, natively: what Determined's `prep_container` and `launch` do in Python.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use instep_api::states::LogLevel;
use instep_client::Client;
use serde_json::Value;

use super::environment::Variables;
use super::privileges::Account;
use super::view::View;
use super::{context, information, master, storage};
use crate::folder::{TaskFolder, read_bounded};
use crate::order::TaskOrder;

/// Bytes of what a hook leaves: an environment is no longer than a few megabytes.
const LONGEST_LEFT: u64 = 16 << 20;

/// Something to say in the task's log.
pub type Sentence = (LogLevel, String);

/// Makes the folders that a task finds, in the share's folder and new.
pub fn folders(share: &TaskFolder) -> io::Result<()> {
    let in_run = ["info", "train/model", "train/logs", "workdir", "config", "programs", "instep"];
    for name in in_run {
        fs::create_dir_all(share.join("run").join(name))?;
    }
    fs::create_dir_all(share.join("tmp"))?;
    // Programs in the task may run as others; a folder for everybody's temporary files is open to all.
    fs::set_permissions(share.join("tmp"), fs::Permissions::from_mode(0o1777))
}

/// Puts `instep` and, if the interpreter has no such neighbour, `python3` where the task finds them.
pub fn programs(share: &TaskFolder, order: &TaskOrder) -> io::Result<()> {
    let folder = share.join("run/programs");
    symlink(&order.machine.binary, folder.join("instep"))?;
    let python = &order.machine.python;
    if !python.with_file_name("python3").exists() {
        // Not a link: a virtual environment is found by the name under which its Python was started.
        let quoted = python.to_string_lossy().replace('\'', r"'\''");
        let path = folder.join("python3");
        fs::write(&path, format!("#!/bin/sh\nexec '{quoted}' \"$@\"\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// The paths that must stay reachable in a private `/tmp`.
pub fn needed_paths(
    share: &TaskFolder,
    order: &TaskOrder,
    inherited: &Variables,
    account: Option<&Account>,
) -> Vec<PathBuf> {
    let machine = &order.machine;
    let mut paths = vec![share.path().to_owned(), machine.python.clone(), machine.binary.clone()];
    paths.extend(machine.certificates.clone());
    paths.extend(order.start.mounts.iter().map(|mount| PathBuf::from(&mount.host_path)));
    for path in order.start.paths.iter().map(PathBuf::from) {
        provide_storage(&path, account);
        paths.push(path);
    }
    if let Some(Ok(folder)) = storage::config(order).as_ref().and_then(storage::folder) {
        provide_storage(&folder, account);
        paths.push(folder);
    }
    for name in ["HOME", "VIRTUAL_ENV", "PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "XDG_CACHE_HOME"] {
        paths.extend(inherited.get(OsStr::new(name)).into_iter().flat_map(std::env::split_paths));
    }
    // A link may lead elsewhere in `/tmp`, and so may the folder that it lies in.
    let folders: Vec<PathBuf> = paths.iter().filter_map(|path| path.parent()).map(Path::to_owned).collect();
    let behind: Vec<PathBuf> = paths.iter().chain(&folders).filter_map(|path| path.canonicalize().ok()).collect();
    paths.extend(behind);
    paths
}

/// Makes the storage of checkpoints while the machine's own `/tmp` is still seen: in a private one it would be lost. It is
/// made with the rights of the task's user, who named it. What fails here is reported when it is tried out.
fn provide_storage(folder: &Path, account: Option<&Account>) {
    let make = || if folder.exists() { Ok(()) } else { fs::create_dir_all(folder) };
    let _ = match account {
        Some(account) => account.acting(make).and_then(|made| made),
        None => make(),
    };
}

/// Fetches the context and writes the information files. `Err` is why the task cannot run.
pub fn prepare(client: &Client, order: &TaskOrder, view: &View, all: &Variables) -> Result<Vec<Sentence>, String> {
    let mut said = Vec::new();
    if order.start.context
        && let Some(archive) = master::context(client, &order.start.task)?
    {
        for folder in ["train/model", "workdir"] {
            context::unpack(&archive, &view.run.join(folder)).map_err(|error| error.to_string())?;
        }
    }
    secret_files(order, view)?;
    let uuids = master::uuids(order);
    information::write(&view.run.join("info"), all, &uuids)?;
    if let Err(error) = master::report_devices(client, order) {
        // Bookkeeping: no reason to end a task.
        said.push((LogLevel::Warning, error));
    }
    Ok(said)
}

/// Writes the secrets that are files, for the task's user alone.
fn secret_files(order: &TaskOrder, view: &View) -> Result<(), String> {
    let files = &order.start.secrets.files;
    if files.is_empty() {
        return Ok(());
    }
    let folder = view.run.join("secrets");
    let write = || {
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        files.iter().try_for_each(|(name, value)| {
            let file = fs::File::options().create_new(true).write(true).mode(0o400).open(folder.join(name));
            file.and_then(|mut file| file.write_all(value.as_bytes()))
        })
    };
    write().map_err(|error: io::Error| format!("cannot write the secrets to {}: {error}", folder.display()))
}

/// Whether the task is a trial of an experiment.
pub fn is_trial(order: &TaskOrder) -> bool {
    order.start.environment.get("DET_TASK_TYPE").is_some_and(|kind| kind == "TRIAL")
}

/// The first line of a task's log; and the link by which older scripts write TensorBoard's files.
pub fn announce(order: &TaskOrder, view: &View, all: &Variables) -> String {
    let (resources, agent) = (&order.start.share.resources, &order.machine.agent);
    if !is_trial(order) {
        let kind = order.start.environment.get("DET_TASK_TYPE").map_or("task", String::as_str);
        return format!("this {} has started on agent {agent}", kind.to_lowercase());
    }
    if view.shim.is_none() {
        let name = format!("tensorboard-{}-0", order.start.share.allocation);
        // There may be one from the context already; scripts that need it are old.
        let _ = symlink(view.tmp.join(name), view.tmp.join("tensorboard"));
    }
    let hyperparameters = all.get(OsStr::new("DET_HPARAMS")).map(|text| text.to_string_lossy());
    let hyperparameters: serde_json::Map<String, Value> =
        hyperparameters.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let pairs: Vec<String> = hyperparameters.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let chosen = if pairs.is_empty() { String::new() } else { format!(": {}", pairs.join(", ")) };
    format!("New trial runner in (container {resources}) on agent {agent}{chosen}")
}

/// Whether checkpoints can be stored. Storage that is no folder is tried by whoever uses it.
pub fn try_storage(order: &TaskOrder) -> Result<(), String> {
    let Some(folder) = storage::config(order).as_ref().and_then(storage::folder) else { return Ok(()) };
    storage::probe(&folder?, &format!(".probe-{}", order.start.share.resources))
        .map_err(|error| format!("Checkpoint storage validation failed: {error}{}", refused(order, &error)))
}

/// What may help where the task's user may not write.
fn refused(order: &TaskOrder, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return String::new();
    }
    let uid = nix::unistd::geteuid();
    let name = nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| uid.to_string(), |user| user.name);
    format!(
        ", for the Unix user {name} on agent {}\nhint: name a folder that all agents share and this user may write: with \
         --checkpoints of the master, or as checkpoint_storage of the experiment",
        order.machine.agent
    )
}

/// The script that runs before the entrypoint, if the context has one.
pub fn hook(view: &View) -> Option<PathBuf> {
    Some(view.run.join("workdir/startup-hook.sh")).filter(|path| path.is_file())
}

/// What the hook leaves in a folder to the entrypoint: variables and the folder it ended in.
pub fn after_hook(left: &Path) -> Option<(Variables, PathBuf)> {
    use std::os::unix::ffi::OsStringExt;
    let bytes = read_bounded(&left.join("hook.environment"), LONGEST_LEFT).ok()?;
    let entries = bytes.split(|byte| *byte == 0).filter_map(|entry| {
        let at = entry.iter().position(|byte| *byte == b'=')?;
        let text = |bytes: &[u8]| std::ffi::OsString::from_vec(bytes.to_vec());
        Some((text(&entry[..at]), text(&entry[at + 1..])))
    });
    let folder = read_bounded(&left.join("hook.folder"), LONGEST_LEFT).ok()?;
    let folder = folder.strip_suffix(b"\n").unwrap_or(&folder).to_vec();
    Some((entries.collect(), PathBuf::from(std::ffi::OsString::from_vec(folder))))
}
