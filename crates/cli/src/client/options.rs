//! The options that all verbs take.

use clap::Args;

/// Which master, and how answers are printed.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Common {
    /// Address of the master, or several, separated by commas, of which any answers [default: $INSTEP_MASTER, else
    /// $DET_MASTER, else http://127.0.0.1:8080]
    #[arg(short, long, value_name = "ADDRESS", global = true)]
    pub(super) master: Option<String>,
    /// Print JSON instead of a table
    #[arg(long, global = true)]
    pub(super) json: bool,
}
