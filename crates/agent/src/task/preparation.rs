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
use super::{context, forwarder, information, master, storage};
use crate::folder::{TaskFolder, read_bounded};
use crate::order::TaskOrder;

/// Where the certificates that masters may show lie in a task's `run`.
const CERTIFICATES: &str = "ssl/master.crt";
/// Which certificates Python's `requests` trusts: before those that Determined's client was given for the master.
const BUNDLES: [&str; 2] = ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];
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

/// Copies the certificates of masters to where the task's user can read them, which may not hold for the agent's file. What
/// the agent has its programs trust besides is joined with them, in a file for each variable that names some.
pub fn certificates(share: &TaskFolder, order: &TaskOrder, inherited: &Variables) -> io::Result<()> {
    let machine = &order.machine;
    let is_encrypted = [&machine.master, &machine.masters].iter().any(|addresses| addresses.contains("https://"));
    let Some(path) = machine.certificates.as_ref().filter(|_| is_encrypted) else { return Ok(()) };
    let own = fs::read(path).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot read the master's certificates in {}: {error}", path.display()))
    })?;
    let run = share.join("run");
    fs::create_dir_all(run.join("ssl"))?;
    fs::write(run.join(CERTIFICATES), &own)?;
    for (name, path) in bundles(inherited) {
        // One that cannot be joined is said in the task's log.
        if let Ok(others) = fs::read(path) {
            fs::write(bundle(&run, name), [&own[..], b"\n", &others[..]].concat())?;
        }
    }
    Ok(())
}

/// Lets the task and its supervisor use them.
pub fn use_certificates(view: &View, order: &mut TaskOrder, inherited: &mut Variables) {
    let own = view.run.join(CERTIFICATES);
    if !own.exists() {
        return;
    }
    order.start.notes.extend(distrust(order, &own));
    order.machine.certificates = Some(own);
    for (name, path) in bundles(&inherited.clone()) {
        let joined = bundle(&view.run, name);
        if joined.exists() {
            inherited.insert(name.into(), joined.into_os_string());
        } else {
            let path = Path::new(path).display();
            order.start.notes.push(format!(
                "{name} of this agent, {path}, is not a file that can be read: programs that use it do not trust the master\n\
                 hint: let it name a file, or start the agent without it"
            ));
        }
    }
}

/// What to say of those that the user names: Determined's client would try in vain for half an hour, without a word. Nothing
/// if it speaks to masters by way of the supervisor.
fn distrust(order: &TaskOrder, own: &Path) -> Vec<String> {
    if order.machine.masters.parse().is_ok_and(|addresses| forwarder::is_able(&addresses)) {
        return Vec::new();
    }
    let known = fs::read(own).unwrap_or_default();
    let known = known.trim_ascii();
    let named = order.start.user_environment.iter().filter_map(|entry| entry.split_once('='));
    let named = named.filter(|(name, path)| BUNDLES.contains(name) && !path.is_empty());
    let without = named.filter(|(_, path)| {
        let others = read_bounded(Path::new(path), LONGEST_LEFT).unwrap_or_default();
        !others.windows(known.len().max(1)).any(|part| part == known)
    });
    let said = without.map(|(name, path)| {
        format!(
            "the master's certificate is not in {name}, {path}: Determined's client will not trust the master\n\
             hint: name a file that also has the certificates in DET_MASTER_CERT_FILE"
        )
    });
    said.collect()
}

/// The variables that name certificates to trust, and which.
fn bundles(inherited: &Variables) -> impl Iterator<Item = (&'static str, &OsStr)> {
    let named = BUNDLES.into_iter().filter_map(|name| Some((name, inherited.get(OsStr::new(name))?.as_os_str())));
    named.filter(|(_, path)| !path.is_empty())
}

/// Where those that a variable names lie together with the master's.
fn bundle(run: &Path, name: &str) -> PathBuf {
    run.join(CERTIFICATES).with_file_name(name)
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

#[cfg(test)]
mod tests {
    use super::super::testing::order;
    use super::*;

    #[test]
    fn certificates_are_where_the_task_finds_them_and_joined_with_those_of_the_agent() {
        let place = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            fs::write(place.path().join(name), text).unwrap();
            place.path().join(name)
        };
        let share = TaskFolder::at(place.path().join("share"));
        folders(&share).unwrap();
        let view = View { run: share.join("run"), tmp: share.join("tmp"), programs: share.join("run"), shim: None };
        let of_agent: Variables = [
            ("REQUESTS_CA_BUNDLE".into(), put("others.pem", "others").into_os_string()),
            ("CURL_CA_BUNDLE".into(), place.path().as_os_str().to_owned()),
        ]
        .into();
        let mut wanted = order();
        wanted.machine.certificates = Some(put("master.pem", "master"));

        let (mut plain, mut inherited) = (wanted.clone(), of_agent.clone());
        certificates(&share, &plain, &inherited).unwrap();
        use_certificates(&view, &mut plain, &mut inherited);
        assert_eq!((&plain, &inherited), (&wanted, &of_agent), "nobody encrypts");

        wanted.machine.masters = "https://a:1/x,https://b:1/x".to_owned();
        certificates(&share, &wanted, &of_agent).unwrap();
        let (mut known, mut inherited) = (wanted.clone(), of_agent.clone());
        use_certificates(&view, &mut known, &mut inherited);
        assert_eq!(fs::read(known.machine.certificates.unwrap()).unwrap(), b"master");
        assert_eq!(fs::read(&inherited[OsStr::new("REQUESTS_CA_BUNDLE")]).unwrap(), b"master\nothers");
        assert_eq!(inherited[OsStr::new("CURL_CA_BUNDLE")], of_agent[OsStr::new("CURL_CA_BUNDLE")]);
        let [note] = &known.start.notes[..] else { panic!("not one note") };
        assert!(note.starts_with("CURL_CA_BUNDLE of this agent, "), "{note}");

        wanted.start.user_environment = [
            "A=1".to_owned(),
            format!("CURL_CA_BUNDLE={}", put("theirs.pem", "theirs").display()),
            format!("REQUESTS_CA_BUNDLE={}", put("both.pem", "theirs\nmaster\n").display()),
        ]
        .into();
        let mut known = wanted.clone();
        use_certificates(&view, &mut known, &mut Variables::new());
        let [note] = &known.start.notes[..] else { panic!("not one note") };
        assert!(note.starts_with("the master's certificate is not in CURL_CA_BUNDLE, "), "{note}");
        let mut forwarded = wanted.clone();
        forwarded.machine.masters = "https://a:1,https://b:1".to_owned();
        use_certificates(&view, &mut forwarded, &mut Variables::new());
        assert_eq!(forwarded.start.notes, Vec::<String>::new(), "the task's client does not ask for certificates");

        fs::remove_file(place.path().join("master.pem")).unwrap();
        let refused = certificates(&share, &wanted, &of_agent).unwrap_err().to_string();
        assert!(refused.starts_with("cannot read the master's certificates in "), "{refused}");
    }
}
