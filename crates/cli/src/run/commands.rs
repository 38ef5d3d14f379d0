//! The command lines that start ranks.

use clap::{Parser, Subcommand};

use super::options::{LaunchArguments, RunArguments};

/// Below the options of `instep run --help`.
const AFTER_HELP: &str = "\
Options can also be abbreviated, written with underscores, or set by variables: PET_NNODES for --nnodes.
Arguments after SCRIPT go to the script; ${local_rank} is replaced by each worker's local rank.";

/// The commands that start ranks.
#[derive(Debug, Subcommand)]
pub(crate) enum Start {
    /// Run a script on several processes, on one machine or many (takes torchrun's options)
    #[command(infer_long_args = true, args_override_self = true, disable_version_flag = true)]
    #[command(override_usage = "instep run [OPTIONS] SCRIPT [ARGUMENTS]...", after_help = AFTER_HELP)]
    Run(Box<RunArguments>),
    /// Like `run`, with the defaults of the old torch.distributed.launch
    #[command(infer_long_args = true, args_override_self = true, disable_version_flag = true)]
    Launch(Box<LaunchArguments>),
}

/// Those alone. Describing every command to the parser takes time that somebody who starts ranks need not spend, so a
/// command line of theirs is tried without the others first.
#[derive(Debug, Parser)]
#[command(name = "instep", version, max_term_width = 100)]
pub(crate) struct Launcher {
    #[command(subcommand)]
    pub(crate) command: Start,
}
