//! The `instep` binary: argument parsing, output, exit codes.
//!
//! Exit codes: 0 success, 1 failure, 2 a command line that cannot be understood; 3 from `diagnose`: something is stuck.

mod agent;
mod bench;
mod client;
mod console;
mod demo;
mod diagnose;
mod doctor;
mod drill;
mod help;
mod import;
mod master;
mod module;
mod progress;
mod report;
mod run;
mod sshd;
mod store;
mod task;
mod usage;
mod wrap_rank;

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use instep_launch::control::token::JobToken;
use instep_launch::workers::guardian;

use self::run::{Launcher, Start};

/// Distributed training for PyTorch.
#[derive(Debug, Parser)]
#[command(name = "instep", version, max_term_width = 100, infer_subcommands = false)]
#[command(
    after_help = "Command lines of torchrun work with `instep run ...`.\n`instep -m ADDRESS COMMAND` works like \
                        Determined's `det`."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Start(Start),
    /// Serve a key-value store for torch's TCPStore clients
    Store(store::StoreArguments),
    /// Serve Determined's REST API: record training, schedule experiments
    Master(Box<master::MasterArguments>),
    /// Start a master in the background, if none is running (takes the options of `instep master`)
    Up(master::UpArguments),
    /// Stop the master that `instep up` started
    Down(master::DownArguments),
    /// Lend this machine's slots to a master; or list, enable, disable agents
    #[command(visible_alias = "a")]
    Agent(Box<agent::AgentArguments>),
    /// Prefix every output line of a program with [rank=N], for launchers such as mpirun
    #[command(override_usage = "instep wrap-rank [RANK] -- COMMAND...")]
    WrapRank(wrap_rank::WrapRankArguments),
    /// Manage tasks: list, logs, and generic tasks
    #[command(arg_required_else_help = true)]
    Task(task::TaskArguments),
    /// Serve a shell of the cluster
    #[command(hide = true)]
    Sshd,
    /// Serve files to a client of a shell
    #[command(hide = true)]
    SftpServer,
    /// Print a new token for --job-token-file: whoever does not have it cannot join the job
    #[command(
        after_help = "Keep it in a file that only you can read:\n  install -m 600 /dev/null FILE && instep job-token > FILE"
    )]
    JobToken,
    #[command(flatten)]
    Client(client::Verb),
    /// Check what this machine has and what is missing
    Doctor {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Explain why a job hangs: the stuck collective, the missing ranks, what they do
    Diagnose(diagnose::DiagnoseArguments),
    /// Benchmark how fast backends move tensors between ranks
    Bench(bench::BenchArguments),
    /// Kill ranks of a job on purpose and report whether it recovers
    #[command(override_usage = "instep drill [OPTIONS] -- instep run ...")]
    Drill(drill::DrillArguments),
    /// Train a small model, kill one of its processes, watch the recovery; then search for a better model
    #[command(disable_help_flag = true)]
    Demo {
        /// Options of the demo; --help lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Take over the database of another system: Determined
    Import(import::ImportArguments),
    /// Print a completion script: instep completion bash > /etc/bash_completion.d/instep
    Completion {
        /// Shell
        shell: Shell,
    },
}

fn main() -> ExitCode {
    if std::env::args_os().next().is_some_and(|name| name == guardian::NAME) {
        guardian::run();
        return ExitCode::SUCCESS;
    }
    let command = match parse() {
        Ok(command) => command,
        Err(error) => return usage_error(&error),
    };
    let result = match command {
        Command::Start(Start::Run(arguments)) => run::run(*arguments, print_completion),
        Command::Start(Start::Launch(arguments)) => run::launch(*arguments, print_completion),
        Command::Store(arguments) => store::serve(&arguments),
        Command::Master(arguments) => master::run(*arguments),
        Command::Up(arguments) => master::up(&arguments),
        Command::Down(arguments) => master::down(&arguments),
        Command::Agent(arguments) => agent::run(&arguments),
        Command::WrapRank(arguments) => wrap_rank::run(&arguments),
        Command::Task(arguments) => task::run(&arguments),
        Command::Sshd => sshd::run(),
        Command::SftpServer => sshd::serve_files(),
        Command::JobToken => job_token(),
        Command::Client(verb) => client::run(verb),
        Command::Doctor { json } => doctor::run(json),
        Command::Diagnose(arguments) => diagnose::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Drill(arguments) => drill::run(arguments, print_completion),
        Command::Demo { arguments } => demo::run(arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Completion { shell } => {
            print_completion(shell);
            Ok(ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        report::error(&error);
        ExitCode::FAILURE
    })
}

fn job_token() -> anyhow::Result<ExitCode> {
    let token = JobToken::generate().context("the system gives no random numbers")?;
    console::print(format!("{token}\n").as_bytes());
    Ok(ExitCode::SUCCESS)
}

/// Understands the command line. What the launcher's commands alone do not take is tried with all of them, whose errors
/// are the ones to show.
fn parse() -> Result<Command, clap::Error> {
    let starts = std::env::args_os().nth(1).is_some_and(|word| word == "run" || word == "launch");
    let alone = if starts { Launcher::try_parse().ok() } else { None };
    match alone {
        Some(launcher) => Ok(Command::Start(launcher.command)),
        None => {
            let words = usage::with_master_behind_the_command(&Cli::command(), std::env::args_os().collect());
            Cli::try_parse_from(words).map(|cli| cli.command)
        }
    }
}

/// Help and version are printed as they are; everything else is a command line that cannot be understood.
fn usage_error(error: &clap::Error) -> ExitCode {
    let program = Cli::command();
    let given = usage::with_master_behind_the_command(&program, std::env::args_os().collect());
    let words: Vec<String> = given.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    match usage::explain(error, &program, &usage::subcommand(&program, &words)) {
        Some(text) => {
            report::complain(&text);
            ExitCode::from(2)
        }
        None => {
            // Says the same, but lists the commands in groups.
            let _ = help::program().get_matches_from(given);
            error.exit()
        }
    }
}

fn print_completion(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "instep", &mut script);
    console::print(&script);
}
