//! `instep shell`: SSH on the cluster's slots. The key comes from the master, and `ssh` gets there through it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command as Program, ExitCode, Stdio};

use anyhow::Context;
use clap::{Args, Subcommand};
use instep_api::commands::{Command, LaunchRequest, LaunchShellResponse, ShellResponse, ShellsResponse};
use instep_api::states::AllocationState;
use instep_client::tunnel;
use instep_client::websocket::{self, Destination, SocketError};
use instep_client::{Client, segment};
use serde_json::Value;

use super::dialog::say;
use super::interrupt::SayOnInterrupt;
use super::logs::LogArguments;
use super::options::Common;
use super::task_verbs::{self, Kind, Named, Priority, Set};
use super::{context, lookup, session, table};
use crate::console;
use crate::report::Hinted;

/// Bytes of a message from the master: more than it reads at a time.
const LONGEST_MESSAGE: usize = 16 << 20;

/// The verbs of shells, for [`task_verbs`].
struct Shells;

impl Kind for Shells {
    const NOUN: &str = "shell";
    const COLLECTION: &str = "shells";
    const VERBS: &str = "shell";
    const HINT: &str = "start one with `instep shell start`";
    type One = ShellResponse;
    type Many = ShellsResponse;

    fn task(answer: &ShellResponse) -> &Command {
        &answer.shell
    }

    fn config(answer: &ShellResponse) -> &Value {
        &answer.config
    }

    fn tasks(answer: ShellsResponse) -> Vec<Command> {
        answer.shells
    }
}

#[derive(Debug, Args)]
pub(crate) struct ShellArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start a shell, wait until it is ready, and log in to it
    Start(StartArguments),
    /// List shells
    #[command(visible_alias = "ls")]
    List {
        /// Include those of other users
        #[arg(short, long)]
        all: bool,
    },
    /// Show details
    Describe(Named),
    /// Print the configuration
    Config(Named),
    /// Log in to it, or run a command line in it: instep shell open ID -- nvidia-smi
    Open {
        #[command(flatten)]
        named: Named,
        /// Options of ssh, and what to run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Print the command of ssh that logs in to it, for editors and scp; keeps its key in a file
    #[command(alias = "show_ssh_command")]
    ShowSshCommand(Named),
    /// Print its logs
    Logs {
        #[command(flatten)]
        named: Named,
        #[command(flatten)]
        logs: Box<LogArguments>,
    },
    /// Kill it
    Kill(Named),
    /// Set its priority
    SetPriority(Priority),
    #[command(subcommand, hide = true)]
    Set(Set),
    /// Connect standard input and output with it: what ssh runs
    #[command(hide = true)]
    Tunnel(Named),
}

#[derive(Debug, Args)]
struct StartArguments {
    /// Configuration file, YAML or JSON
    #[arg(long = "config-file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Override one setting, such as idle_timeout=1h or resources.slots=0; may be repeated
    #[arg(long = "config", value_name = "KEY=VALUE")]
    config: Vec<String>,
    /// Folder to copy into the shell's working directory
    #[arg(short, long, value_name = "FOLDER")]
    context: Option<PathBuf>,
    /// Apply the configuration on top of this template
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Run it in this workspace [default: Uncategorized]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
    /// Print its id and return without waiting
    #[arg(short, long)]
    detach: bool,
    /// Options of ssh, and what to run
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

pub(crate) fn run(arguments: ShellArguments) -> anyhow::Result<ExitCode> {
    let common = arguments.common;
    if let Verb::Tunnel(named) = &arguments.verb {
        return carry(&common, &named.task).map(|()| ExitCode::SUCCESS);
    }
    let client = session::connect(&common)?;
    let outcome = match arguments.verb {
        Verb::Start(arguments) => return start(&client, &common, arguments),
        Verb::Open { named, words } => {
            // What is no shell will never be one.
            let task = get(&client, &named.task)?.id;
            task_verbs::wait_until_ready::<Shells>(&client, &task)?;
            return open(&client, &get(&client, &task)?, &words);
        }
        Verb::List { all } => task_verbs::list::<Shells>(&client, &common, all),
        Verb::Describe(named) => describe(&client, &common, &named.task),
        Verb::Config(named) => task_verbs::config::<Shells>(&client, &named.task),
        Verb::ShowSshCommand(named) => show(&client, &named.task),
        Verb::Logs { named, logs } => task_verbs::logs::<Shells>(&client, &common, &named.task, &logs),
        Verb::Kill(named) => task_verbs::kill::<Shells>(&client, &named.task),
        Verb::SetPriority(wanted) | Verb::Set(Set::Priority(wanted)) => {
            task_verbs::set_priority::<Shells>(&client, &wanted)
        }
        Verb::Tunnel(_) => Ok(()),
    };
    outcome.map(|()| ExitCode::SUCCESS)
}

fn get(client: &Client, task: &str) -> anyhow::Result<Command> {
    Ok(task_verbs::get::<Shells>(client, task)?.shell)
}

/// Prints one, without the key that opens it.
fn describe(client: &Client, common: &Common, task: &str) -> anyhow::Result<()> {
    if !common.json {
        return task_verbs::describe::<Shells>(client, common, task);
    }
    let found = task_verbs::get::<Shells>(client, task)?;
    table::json(&ShellResponse { shell: Command { private_key: None, ..found.shell }, ..found })
}

fn start(client: &Client, common: &Common, arguments: StartArguments) -> anyhow::Result<ExitCode> {
    let packed = arguments.context.as_deref().map(context::pack).transpose()?.unwrap_or_default();
    let request = LaunchRequest {
        config: Some(task_verbs::read_config(arguments.file.as_deref(), &arguments.config)?),
        template_name: arguments.template,
        files: Some(packed.files),
        workspace_id: lookup::named_workspace(client, arguments.workspace.as_deref())?,
        ..LaunchRequest::default()
    };
    let made: LaunchShellResponse = client.post("/api/v1/shells", &request)?;
    task_verbs::warn(&made.warnings);
    let task = made.shell.id;
    if arguments.detach || common.json {
        task_verbs::print_identifier(&task);
        return Ok(ExitCode::SUCCESS);
    }
    say(&format!("shell {task} is starting"));
    let again = format!("shell {task} goes on starting\nhint: log in with `instep shell open {task}`");
    let interrupt = SayOnInterrupt::new(format!("{again}, stop it with `instep shell kill {task}`"));
    task_verbs::wait_until_ready::<Shells>(client, &task)?;
    // From here on the terminal is the shell's.
    drop(interrupt);
    let outcome = open(client, &get(client, &task)?, &arguments.words);
    say(&format!(
        "shell {task} runs on\nhint: log in again with `instep shell open {task}`, end it with `instep shell kill {task}`"
    ));
    outcome
}

/// The key of a shell, or why there is none.
fn key(shell: &Command) -> anyhow::Result<&str> {
    let id = &shell.id;
    if shell.state == AllocationState::Terminated {
        let hint = format!("see its logs with `instep shell logs {id}`");
        return Err(Hinted::new(format!("shell {id} has ended: {}", shell.reason), hint).into());
    }
    shell.private_key.as_deref().ok_or_else(|| anyhow::anyhow!("the master gave no key for shell {id}"))
}

/// Logs in, or runs a command line, or the lines that come from a pipe; with a terminal if there is one here.
fn open(client: &Client, shell: &Command, words: &[String]) -> anyhow::Result<ExitCode> {
    let folder = Folder::new(&shell.id, false)?;
    folder.write(key(shell)?)?;
    let mut ssh = Program::new("ssh");
    ssh.args(options(client, &folder.key)?);
    if nix::unistd::isatty(io::stdin()).unwrap_or(false) {
        ssh.arg("-tt");
    }
    ssh.arg(host(shell)?).args(words).stdin(Stdio::inherit());
    let status = ssh.status().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let hint = "install OpenSSH's client: apt-get install openssh-client";
            anyhow::Error::from(Hinted::new("`ssh` is not installed on this machine", hint))
        }
        _ => anyhow::Error::from(error).context("cannot start ssh"),
    })?;
    // What it has to say it has said.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Prints the command of ssh, with a key that stays.
fn show(client: &Client, task: &str) -> anyhow::Result<()> {
    let shell = get(client, task)?;
    let folder = Folder::new(&shell.id, true)?;
    folder.write(key(&shell)?)?;
    let words: Vec<String> = options(client, &folder.key)?.iter().map(|word| quoted(word)).collect();
    console::print(format!("ssh {} {}\n", words.join(" "), quoted(&host(&shell)?)).as_bytes());
    Ok(())
}

/// As whom and where: the name is for people, the key decides. `ssh` must not take what a master says for its options.
fn host(shell: &Command) -> anyhow::Result<String> {
    let group = shell.agent_user_group.as_ref();
    let user = group.and_then(|group| group["user"].as_str()).filter(|user| !user.is_empty()).unwrap_or("root");
    let is_plain = |word: &str| {
        let letter = |letter: char| letter.is_alphanumeric() || "._-".contains(letter);
        !word.starts_with('-') && word.chars().all(letter)
    };
    anyhow::ensure!(
        is_plain(user) && is_plain(&shell.id),
        "the master names a shell {user:?}@{:?}, which is no name",
        shell.id
    );
    Ok(format!("{user}@{}", shell.id))
}

fn options(client: &Client, key: &Path) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe().context("this program cannot be found")?;
    let words =
        [program.to_string_lossy().as_ref(), "shell", "-m", client.addresses().to_string().as_str(), "tunnel", "%h"]
            .map(quoted);
    // A shell has another key with each start, and no name that another one could have.
    let settings = [
        format!("ProxyCommand={}", words.join(" ")),
        "StrictHostKeyChecking=no".to_owned(),
        "UserKnownHostsFile=/dev/null".to_owned(),
        "LogLevel=ERROR".to_owned(),
        "IdentitiesOnly=yes".to_owned(),
        // The shell belongs to whoever started it, and so would what is forwarded to it.
        "ForwardAgent=no".to_owned(),
        "ForwardX11=no".to_owned(),
        // A server that hangs is given up.
        "ConnectTimeout=30".to_owned(),
        "ServerAliveInterval=30".to_owned(),
    ];
    let mut options: Vec<String> = settings.into_iter().flat_map(|setting| ["-o".to_owned(), setting]).collect();
    options.extend(["-i".to_owned(), key.to_string_lossy().into_owned()]);
    Ok(options)
}

/// One word for a shell.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Where the key of a shell lies while it is used, or for longer.
struct Folder {
    key: PathBuf,
    stays: bool,
}

impl Folder {
    fn new(task: &str, stays: bool) -> anyhow::Result<Folder> {
        let place = session::folder()?.join("shells");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&place)
            .with_context(|| place.display().to_string())?;
        let name = if stays { task.to_owned() } else { format!("{task}.{}", std::process::id()) };
        // Its name comes from the master.
        anyhow::ensure!(!name.contains(['/', '\0']), "{task:?} is no name of a shell");
        Ok(Folder { key: place.join(name), stays })
    }

    fn write(&self, key: &str) -> anyhow::Result<()> {
        let _ = fs::remove_file(&self.key);
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.key);
        let written = file.and_then(|mut file| file.write_all(key.as_bytes()));
        written.with_context(|| format!("cannot write {}", self.key.display()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.stays {
            let _ = fs::remove_file(&self.key);
        }
    }
}

/// What ssh runs: connects its two ends with the shell. No login is asked for on this way, as with Determined.
fn carry(common: &Common, task: &str) -> anyhow::Result<()> {
    let (masters, certificates) = session::master(common)?;
    let path = format!("/proxy/{}/", segment(task));
    let open = |master| {
        Destination {
            master,
            certificates: certificates.as_deref(),
            path: &path,
            token: None,
            longest_message: LONGEST_MESSAGE,
            timeout: websocket::answer_timeout(&masters),
        }
        .open()
    };
    let mut opened = open(masters.first());
    for master in masters.all().skip(1) {
        // Of several masters the next one is asked where one cannot be reached.
        if matches!(opened, Err(SocketError::Broken { .. } | SocketError::Answered { status: 503, .. })) {
            opened = open(master);
        }
    }
    let mut socket = opened.map_err(|error| match error {
        SocketError::Answered { status: 401, .. } => {
            let hint = format!("see how it stands with `instep shell describe {task}`");
            anyhow::Error::from(Hinted::new(format!("shell {task} does not run"), hint))
        }
        SocketError::Answered { said, .. } => anyhow::anyhow!(said),
        other => other.into(),
    })?;
    tunnel::carry(&mut socket, io::stdin(), io::stdout()).context("the connection to the shell broke")
}
