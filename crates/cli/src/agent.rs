//! `instep agent`: lends this machine's slots to a master.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use instep_agent::agent::{self, AgentError, Host, Options};
use instep_api::link::{Device, DeviceKind};
use instep_client::Address;
use instep_launch::machine::{interpreter, nvidia};

use crate::client::{self, Common};
use crate::console;
use crate::report::{Hinted, chain};

/// What `instep agent` takes besides the master's address.
#[derive(Debug, Clone, Default, Args)]
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
    /// Agent token [default: $INSTEP_AGENT_TOKEN, else the session of `instep login`]
    #[arg(long, value_name = "TOKEN", env = "INSTEP_AGENT_TOKEN", hide_env_values = true, hide_env = true)]
    pub(crate) token: Option<String>,
    /// Stop the tasks too when the agent gets SIGTERM
    #[arg(long)]
    pub(crate) stop_tasks: bool,
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
        None => lend(&arguments.common, &arguments.lend),
    }
}

/// Lends slots until the end.
pub(crate) fn lend(common: &Common, arguments: &LendArguments) -> anyhow::Result<ExitCode> {
    if arguments.background {
        // It fails only for the leader of a process group, which what `instep up` starts is not.
        let _ = nix::unistd::setsid();
    }
    let (master, certificates) = client::master(common)?;
    let options = options(master, certificates, arguments)?;
    let token = arguments.token.clone().filter(|token| !token.is_empty());
    let mut host = Terminal { token, common: common.clone() };
    agent::run(&options, &mut host).map_err(explained)?;
    Ok(ExitCode::SUCCESS)
}

fn explained(error: AgentError) -> anyhow::Error {
    let text = chain(&error);
    if text.contains("\nhint: ") { anyhow::anyhow!(text) } else { Hinted::new(text, error.hint()).into() }
}

fn options(master: Address, certificates: Option<PathBuf>, arguments: &LendArguments) -> anyhow::Result<Options> {
    let binary = std::env::current_exe()?;
    let python = interpreter::find(arguments.python.as_deref(), |name| std::env::var_os(name), Some(&binary))?;
    let name = arguments.name.clone().unwrap_or_else(host_name);
    let state = match &arguments.state_folder {
        Some(folder) => std::path::absolute(folder)?,
        None => data_folder()?.join("agents").join(&name),
    };
    Ok(Options {
        master,
        certificates,
        pool: arguments.pool.clone(),
        devices: devices(arguments.slots),
        addresses: arguments.addresses.clone(),
        state,
        python: python.path,
        binary,
        stop_tasks: arguments.stop_tasks,
        name,
    })
}

fn host_name() -> String {
    let name = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
    if name.is_empty() { "agent".to_owned() } else { name }
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
    fn token(&mut self) -> Result<String, String> {
        match &self.token {
            Some(token) => Ok(token.clone()),
            None => client::administrator_token(&self.common).map_err(|error| chain(error.as_ref())),
        }
    }

    fn say(&mut self, what: &str) {
        console::print_error(&format!("{what}\n"));
    }
}
