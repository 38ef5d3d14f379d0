//! The command lines that start ranks.

use clap::{Parser, Subcommand};

use super::options::{LaunchArguments, RunArguments};

/// Below the options of `instep run --help`.
const AFTER_HELP: &str = "\
Options can also be written with underscores, shortened, or set by variables: PET_NNODES for --nnodes.
Everything behind SCRIPT is passed on to it; ${local_rank} is filled in for each worker.";

/// The commands that start ranks.
#[derive(Debug, Subcommand)]
pub(crate) enum Start {
    /// Start a script on several processes, on one machine or many (takes torchrun's options)
    #[command(infer_long_args = true, args_override_self = true, disable_version_flag = true)]
    #[command(override_usage = "instep run [OPTIONS] SCRIPT [ARGUMENTS]...", after_help = AFTER_HELP)]
    Run(Box<RunArguments>),
    /// The same with the defaults of the old torch.distributed.launch
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
