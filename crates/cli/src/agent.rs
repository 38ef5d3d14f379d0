//! `instep agent`: lends this machine's slots to a master.

mod pod;
mod reach;
mod slurm;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use instep_agent::agent::{self, AgentError, Host, NoToken, Options};
use instep_agent::cgroup::limits::{Budget, MemoryBudget, ProcessBudget};
use instep_agent::order::AllowedMount;
use instep_api::link::{Device, DeviceKind, RunAs};
use instep_client::Addresses;
use instep_launch::host_name;
use instep_launch::machine::{interpreter, nvidia};
use nix::unistd::User;

use crate::client::{self, Common};
use crate::console;
use crate::report::{Hinted, chain};

/// The number of the user without rights.
const NOBODY: u32 = 65534;

/// What `instep agent` takes besides the master's address.
#[derive(Debug, Clone, Args)]
pub(crate) struct LendArguments {
    /// Name that identifies this agent to the master [default: the host name]
    #[arg(long, value_name = "NAME", env = "INSTEP_AGENT_NAME", hide_env = true)]
    pub(crate) name: Option<String>,
    /// Pool to add the slots to [default: the master's default pool]
    #[arg(
        long,
        value_name = "NAME",
        env = "INSTEP_AGENT_POOL",
        hide_env = true,
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) pool: String,
    /// Offer this many CPU slots instead of GPUs [default: GPUs, else one slot per core]
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// Python for tasks [default: PYTHON_EXEC, VIRTUAL_ENV, next to instep, PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Address at which other machines reach this one; may be repeated [default: that of the connection to the master]
    #[arg(long = "address", value_name = "ADDRESS")]
    pub(crate) addresses: Vec<String>,
    /// Folder for state that outlives the agent [default: instep/agents/NAME in your data folder]
    #[arg(long, value_name = "FOLDER", env = "INSTEP_AGENT_STATE", hide_env = true)]
    pub(crate) state_folder: Option<PathBuf>,
    /// File with the agent token, read once at the start; /dev/stdin works too [default: the session of `instep login`]
    #[arg(long, value_name = "FILE", env = "INSTEP_AGENT_TOKEN_FILE", hide_env = true)]
    pub(crate) token_file: Option<PathBuf>,
    /// Agent token [default: $INSTEP_AGENT_TOKEN]; other users may see it in `ps` for a moment, so prefer --token-file
    #[arg(long, value_name = "TOKEN", env = "INSTEP_AGENT_TOKEN", hide_env_values = true, hide_env = true)]
    pub(crate) token: Option<String>,
    /// Let tasks inherit this variable of the agent besides the usual ones; NAME* for all that begin so; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) pass_environment: Vec<String>,
    /// With root: Unix user for tasks of accounts that have none; a name, UID or UID:GID [default: nobody; in a pod of
    /// Kubernetes the user that its container has]
    #[arg(long, value_name = "USER")]
    pub(crate) default_user: Option<String>,
    /// With root: folder that users may mount with `bind_mounts`, read-only without `:rw`; may be repeated
    #[arg(long, value_name = "PATH[:rw]")]
    pub(crate) allow_mount: Vec<String>,
    /// Without root: run tasks of all users as this Unix user, where they can read each other's files and tokens
    #[arg(long)]
    pub(crate) shared_uid: bool,
    /// Without root: the only user whose tasks to run [default: the first who gets a task here]
    #[arg(long, value_name = "NAME", conflicts_with = "shared_uid")]
    pub(crate) serve_user: Option<String>,
    /// Memory that all tasks together may use: a size such as 64GiB, a part of the machine's, or `none`; a task gets its
    /// part by its slots, and at least 2GiB
    #[arg(long, value_name = "SIZE", default_value = "95%")]
    pub(crate) task_memory: MemoryBudget,
    /// Processes and threads that a task may have for each of its slots, or `none`
    #[arg(long, value_name = "N", default_value = "4096")]
    pub(crate) task_processes: ProcessBudget,
    /// Stop the tasks too when the agent gets SIGTERM
    #[arg(long)]
    pub(crate) stop_tasks: bool,
    /// Serve this allocation alone, and end with it: what the master's jobs in Slurm and Kubernetes start
    #[arg(
        long = "for",
        value_name = "ALLOCATION",
        conflicts_with_all = ["name", "pool", "state_folder", "shared_uid", "serve_user", "stop_tasks"]
    )]
    pub(crate) allocation: Option<String>,
    /// Detach from the terminal's session; used by `instep up`
    #[arg(long, hide = true)]
    pub(crate) background: bool,
}

/// `instep agent`.
#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    lend: LendArguments,
    #[command(subcommand)]
    verb: Option<client::agent::AgentVerb>,
}

pub(crate) fn run(arguments: &AgentArguments) -> anyhow::Result<ExitCode> {
    match &arguments.verb {
        Some(verb) => client::agents(&arguments.common, verb),
        None => {
            hide_token()?;
            lend(&arguments.common, &arguments.lend)
        }
    }
}

/// Becomes the same program again with the token of its command line in the environment: everybody on the machine sees
/// command lines, and nobody else sees an agent's environment.
fn hide_token() -> anyhow::Result<()> {
    let (words, token) = without_token(std::env::args_os());
    let Some(token) = token else { return Ok(()) };
    let mut words = words.into_iter();
    let mut again = std::process::Command::new(std::env::current_exe()?);
    again.arg0(words.next().unwrap_or_default()).args(words).env("INSTEP_AGENT_TOKEN", token);
    // It comes back only with an error.
    Err(again.exec()).context("cannot start instep again without the token in its command line")
}

/// A command line without its `--token`, and the token.
fn without_token(words: impl IntoIterator<Item = OsString>) -> (Vec<OsString>, Option<OsString>) {
    let (mut kept, mut token) = (Vec::new(), None);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        if word == "--token" {
            token = words.next();
        } else if let Some(value) = word.to_str().and_then(|word| word.strip_prefix("--token=")) {
            token = Some(value.into());
        } else {
            kept.push(word);
        }
    }
    (kept, token)
}

/// Lends slots until the end.
pub(crate) fn lend(common: &Common, arguments: &LendArguments) -> anyhow::Result<ExitCode> {
    if arguments.background {
        // It fails only for the leader of a process group, which what `instep up` starts is not.
        let _ = nix::unistd::setsid();
    }
    let (masters, certificates) = client::master(common)?;
    let node = arguments.allocation.as_ref().map(|allocation| slurm::Node::this(allocation)).transpose()?;
    let options = options(masters, certificates, arguments, node.as_ref())?;
    let token = match &arguments.token_file {
        Some(path) => Some(token_in(path)?),
        None => arguments.token.clone().filter(|token| !token.is_empty()),
    };
    let mut host = Terminal { token, common: common.clone() };
    let failure = agent::run(&options, &mut host).map_err(explained)?;
    // Whoever started it for one allocation wants to know how that ended.
    Ok(if node.is_some() { ExitCode::from(failure) } else { ExitCode::SUCCESS })
}

/// The token in a file. It is read once: tasks of an agent without root run as its user, who may want to delete the file.
fn token_in(path: &Path) -> anyhow::Result<String> {
    let hint = "write the token there that `instep agent token create NAME` prints, and nothing else";
    let text = std::fs::read_to_string(path)
        .map_err(|error| Hinted::new(format!("cannot read the token in {}: {error}", path.display()), hint))?;
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        return Err(Hinted::new(format!("{} does not hold one token", path.display()), hint).into());
    }
    Ok(token.to_owned())
}

/// The user that `--default-user` names. It matters for root alone.
fn default_user(text: &str) -> anyhow::Result<RunAs> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(RunAs::unnamed(nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw()));
    }
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let (uid, gid) = (user.parse::<u32>().ok(), group.map(str::parse::<u32>).transpose().ok());
    let found = match uid {
        Some(uid) => User::from_uid(uid.into())?.map(|user| (user.uid, user.gid)).or(Some((uid.into(), uid.into()))),
        None => User::from_name(user)?.map(|user| (user.uid, user.gid)),
    };
    // Systems without this name know the number all the same.
    let found = found.or((text == "nobody").then_some((NOBODY.into(), NOBODY.into())));
    let (Some((uid, own)), Some(group)) = (found, gid) else {
        let hint = "name a user of this machine, or give numbers as UID or UID:GID";
        return Err(Hinted::new(format!("--default-user: there is no user `{text}`"), hint).into());
    };
    Ok(RunAs::unnamed(uid.as_raw(), group.unwrap_or(own.as_raw())))
}

/// Tasks of accounts without a Unix user would fail one by one.
fn warn_of_python(python: &Path, user: &RunAs) {
    let Some(barrier) = reach::barrier(python, user.uid, user.gid) else { return };
    let name = User::from_uid(user.uid.into()).ok().flatten().map_or_else(|| user.uid.to_string(), |user| user.name);
    console::print_error(&format!(
        "warning: tasks of accounts without a Unix user run as {name}, who may not pass {}: their Python is {}\nhint: choose \
         one that this user reaches with --python, another user with --default-user, or link the accounts to Unix users \
         (`instep user link-with-agent-user`)\n",
        barrier.display(),
        python.display()
    ));
}

/// What `--allow-mount` allows, without links.
fn allowed_mount(text: &str) -> anyhow::Result<AllowedMount> {
    let (path, writable) = match text.strip_suffix(":rw") {
        Some(path) => (path, true),
        None => (text.strip_suffix(":ro").unwrap_or(text), false),
    };
    let path = Path::new(path);
    if !path.is_absolute() {
        let hint = "give the whole path, such as /data, or /data:rw to let tasks write there";
        return Err(Hinted::new(format!("--allow-mount: {} is not absolute", path.display()), hint).into());
    }
    let real = path.canonicalize().map_err(|error| {
        Hinted::new(format!("--allow-mount: {}: {error}", path.display()), "create it before the agent starts")
    })?;
    Ok(AllowedMount { path: real, writable })
}

fn explained(error: AgentError) -> anyhow::Error {
    let text = chain(&error);
    if text.contains("\nhint: ") { anyhow::anyhow!(text) } else { Hinted::new(text, error.hint()).into() }
}

fn options(
    masters: Addresses,
    certificates: Option<PathBuf>,
    arguments: &LendArguments,
    node: Option<&slurm::Node>,
) -> anyhow::Result<Options> {
    let binary = std::env::current_exe()?;
    let python = interpreter::find(arguments.python.as_deref(), |name| std::env::var_os(name), Some(&binary))?;
    // A pod is walls enough, and its image and template say whom it runs as.
    let unnamed = if pod::is_here(|name| std::env::var(name).ok()) { "0" } else { "nobody" };
    let default_user = default_user(arguments.default_user.as_deref().unwrap_or(unnamed))?;
    warn_of_python(&python.path, &default_user);
    let name = match (node, &arguments.name) {
        (Some(node), _) => node.agent_name(),
        (None, Some(name)) => name.clone(),
        (None, None) => host_name(),
    };
    let state = match (node, &arguments.state_folder) {
        (Some(node), _) => node.folder.path().to_owned(),
        (None, Some(folder)) => std::path::absolute(folder)?,
        (None, None) => data_folder()?.join("agents").join(&name),
    };
    Ok(Options {
        masters,
        certificates,
        pool: arguments.pool.clone(),
        devices: devices(arguments.slots),
        addresses: arguments.addresses.clone(),
        state,
        python: python.path,
        binary,
        // Nobody comes after it.
        stop_tasks: arguments.stop_tasks || node.is_some(),
        pass_environment: arguments.pass_environment.clone(),
        default_user,
        allowed_mounts: arguments.allow_mount.iter().map(|text| allowed_mount(text)).collect::<Result<_, _>>()?,
        shared_uid: arguments.shared_uid,
        serve_user: arguments.serve_user.clone(),
        budget: Budget { memory: arguments.task_memory, processes: arguments.task_processes },
        bound: node.map(|node| node.bound.clone()),
        name,
    })
}

/// Where things are kept that are not for people to change; for root, where services keep theirs.
fn data_folder() -> anyhow::Result<PathBuf> {
    if nix::unistd::geteuid().is_root() && std::env::var_os("XDG_DATA_HOME").is_none() {
        return Ok("/var/lib/instep".into());
    }
    let named = std::env::var_os("XDG_DATA_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let folder = named.or_else(|| Some(std::env::home_dir()?.join(".local/share")));
    let none = || Hinted::new("this user has no home directory", "set --state-folder");
    Ok(folder.ok_or_else(none)?.join("instep"))
}

/// The slots: what was asked for, else the GPUs, else the cores.
pub(crate) fn devices(slots: Option<u32>) -> Vec<Device> {
    let gpus = if slots.is_none() { nvidia::visible_gpus() } else { Vec::new() };
    if !gpus.is_empty() {
        let device =
            |(id, gpu): (u32, nvidia::Gpu)| Device { id, kind: DeviceKind::Cuda, brand: gpu.name, uuid: gpu.uuid };
        return (0..).zip(gpus).map(device).collect();
    }
    let cores = std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
    let brand = processor();
    let device = |id| Device { id, kind: DeviceKind::Cpu, brand: brand.clone(), uuid: String::new() };
    (0..slots.unwrap_or(cores)).map(device).collect()
}

/// What the processors call themselves.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "CPU".to_owned(), |(_, name)| name.trim().to_owned())
}

struct Terminal {
    token: Option<String>,
    common: Common,
}

impl Host for Terminal {
    fn token(&mut self) -> Result<String, NoToken> {
        match &self.token {
            Some(token) => Ok(token.clone()),
            None => client::administrator_token(&self.common),
        }
    }

    fn say(&mut self, what: &str) {
        console::print_error(&format!("{what}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_taken_out_of_the_command_line() {
        let cases: [(&[&str], &[&str], Option<&str>); 3] = [
            (&["instep", "agent", "--token", "t", "--slots", "1"], &["instep", "agent", "--slots", "1"], Some("t")),
            (&["instep", "agent", "--token=t"], &["instep", "agent"], Some("t")),
            (&["instep", "agent", "--token-file", "f"], &["instep", "agent", "--token-file", "f"], None),
        ];
        for (words, kept, token) in cases {
            let found = without_token(words.iter().map(OsString::from));
            assert_eq!(found, (kept.iter().map(OsString::from).collect(), token.map(OsString::from)));
        }
    }

    #[test]
    fn mounts_are_allowed_for_reading_unless_said_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        let text = path.to_str().unwrap();
        for (suffix, writable) in [("", false), (":ro", false), (":rw", true)] {
            let allowed = allowed_mount(&format!("{text}{suffix}")).unwrap();
            assert_eq!(allowed, AllowedMount { path: path.clone(), writable });
        }
        assert!(allowed_mount("data").is_err() && allowed_mount("/no/such/folder").is_err());
    }

    #[test]
    fn a_token_file_holds_one_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(token_in(&path).is_err());
        for (text, fine) in [("abc\n", true), ("", false), ("a b", false)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(token_in(&path).is_ok(), fine, "{text:?}");
        }
    }
}
