//! `instep config-policies`: what configurations must be, everywhere or in a workspace.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use instep_api::pools::{ConfigPoliciesRequest, ConfigPoliciesResponse};
use instep_client::Client;

use super::dialog::{confirm, say};
use super::options::Common;
use super::requests::{api, delete};
use super::{configuration, lookup, session, table};

#[derive(Debug, Args)]
pub(crate) struct ConfigPoliciesArguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    verb: Verb,
}

/// Whose configurations.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Workload {
    /// Experiments
    Experiment,
    /// Commands, notebooks, shells and TensorBoards
    #[value(alias = "ntsc")]
    Tasks,
}

impl Workload {
    /// As the API has it.
    fn part(self) -> &'static str {
        match self {
            Workload::Experiment => "EXPERIMENT",
            Workload::Tasks => "NTSC",
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Workload::Experiment => "experiments",
            Workload::Tasks => "tasks",
        }
    }
}

#[derive(Debug, Args)]
struct Place {
    /// Whose configurations
    workload: Workload,
    /// In this workspace [default: everywhere]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Set policies in place of those that are there
    Set {
        #[command(flatten)]
        place: Place,
        /// Policies, YAML or JSON: `invariant_config` and `constraints`
        file: PathBuf,
    },
    /// Print policies as JSON
    Describe(Place),
    /// Delete policies
    #[command(visible_alias = "rm")]
    Delete {
        #[command(flatten)]
        place: Place,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

pub(crate) fn run(arguments: ConfigPoliciesArguments) -> anyhow::Result<()> {
    let client = session::connect(&arguments.common)?;
    match arguments.verb {
        Verb::Set { place, file } => {
            let text = configuration::read(&file, &[])?;
            let request = ConfigPoliciesRequest { config_policies: Some(text) };
            let set: ConfigPoliciesResponse = client.put(&path(&client, &place)?, &request)?;
            say(&format!("set policies for {}", shown(&place)));
            if arguments.common.json { table::json(&set.config_policies) } else { Ok(()) }
        }
        Verb::Describe(place) => {
            let found: ConfigPoliciesResponse = client.get(&path(&client, &place)?)?;
            let is_empty = found.config_policies.as_object().is_none_or(serde_json::Map::is_empty);
            if is_empty && !arguments.common.json {
                say(&format!("no policies for {}", shown(&place)));
                say("hint: set some with `instep config-policies set`");
                return Ok(());
            }
            table::json(&found.config_policies)
        }
        Verb::Delete { place, yes } => {
            confirm(yes, &format!("deleting the policies for {}", shown(&place)))?;
            delete(&client, &path(&client, &place)?)?;
            say(&format!("deleted the policies for {}", shown(&place)));
            Ok(())
        }
    }
}

/// `experiments in workspace lab`
fn shown(place: &Place) -> String {
    let what = place.workload.noun();
    place.workspace.as_ref().map_or_else(|| format!("{what} everywhere"), |name| format!("{what} in workspace {name}"))
}

fn path(client: &Client, place: &Place) -> anyhow::Result<String> {
    let workload = place.workload.part();
    Ok(match lookup::named_workspace(client, place.workspace.as_deref())? {
        Some(id) => api(&["config-policies", "workspaces", &id.to_string(), workload]),
        None => api(&["config-policies", "global", workload]),
    })
}
