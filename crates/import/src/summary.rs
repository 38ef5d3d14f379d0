//! What an import did: every row of the source is counted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::{Fate, Fates, Plan};
use crate::survey::Survey;
use crate::tables;

/// What became of the rows of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Added now.
    pub taken_over: u64,
    /// Taken over before, or the same thing under the same name.
    pub there_already: u64,
    /// Left behind: why, and how many.
    pub not_taken_over: BTreeMap<String, u64>,
}

impl Tally {
    /// Counts one that is left behind.
    pub fn lose(&mut self, why: impl Into<String>) {
        *self.not_taken_over.entry(why.into()).or_insert(0) += 1;
    }

    fn count(&mut self, fate: &Fate) {
        match fate {
            Fate::New(_) | Fate::Replaces(_) => self.taken_over += 1,
            Fate::There(_) => self.there_already += 1,
            Fate::Refused(why) => self.lose(why),
        }
    }
}

/// Everything that is said when an import ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Where the rows came from.
    pub source: String,
    /// The id of the Determined cluster.
    pub cluster: String,
    /// The master's database.
    pub target: PathBuf,
    /// Whether anything was written.
    pub changed: bool,
    /// The database as it was before, if there was one.
    pub kept: Option<PathBuf>,
    /// By the name of the table in Determined.
    pub tables: BTreeMap<String, Tally>,
    /// What has another id here, by kind: the id in Determined and the id here.
    pub renumbered: BTreeMap<&'static str, Vec<(i64, i64)>>,
    /// Before an import: how many rows the tables have of which those are taken over that belong to what is.
    pub below: BTreeMap<String, u64>,
    /// Users who keep their passwords.
    pub passwords: u64,
    /// Users and workspaces whose tasks ran as root in containers, or as a Unix user that no machine can have.
    pub unix_users_left: u64,
}

impl Summary {
    pub(crate) fn new(source: &str, cluster: &str, target: &Path, plan: &Plan) -> Summary {
        let renumbered = plan.kinds().into_iter().map(|(kind, fates)| (kind, fates.renumbered().collect()));
        Summary {
            source: source.to_owned(),
            cluster: cluster.to_owned(),
            target: target.to_owned(),
            renumbered: renumbered.filter(|(_, list): &(_, Vec<_>)| !list.is_empty()).collect(),
            ..Summary::default()
        }
    }

    /// Adds the tables that are left behind as a whole.
    pub(crate) fn add_left(&mut self, counts: &BTreeMap<String, u64>) {
        for (table, rows) in counts.iter().filter(|(_, rows)| **rows > 0) {
            let name = table.as_str();
            let why = match tables::LEFT.iter().find(|(left, _)| *left == name) {
                Some((_, why)) => *why,
                None if tables::READ.contains(&name) || tables::NEEDLESS.contains(&name) => continue,
                None => "a table that this version does not know",
            };
            self.tables.entry(table.clone()).or_default().not_taken_over.insert(why.to_owned(), *rows);
        }
    }

    /// Says what an import would do. Which rows of tables below experiments would be taken over is not looked at.
    pub(crate) fn expect(&mut self, plan: &Plan, survey: &Survey, counts: &BTreeMap<String, u64>) {
        let mut add = |table: &str, fates: &Fates| {
            let tally = self.tables.entry(table.to_owned()).or_default();
            fates.0.values().for_each(|fate| tally.count(fate));
        };
        add("users", &plan.users);
        add("groups", &plan.groups);
        add("workspaces", &plan.workspaces);
        add("projects", &plan.projects);
        add("experiments", &plan.experiments);
        add("runs", &plan.trials);
        add("models", &plan.models);
        let templates = self.tables.entry("templates".to_owned()).or_default();
        templates.taken_over = plan.templates.len() as u64;
        templates.there_already = (survey.templates.len() - plan.templates.len()) as u64;
        if plan.is_anything_new() {
            let rows =
                |table: &&str| Some(((*table).to_owned(), counts.get(*table).copied().filter(|rows| *rows > 0)?));
            let reports = tables::REPORTS.iter().map(|(table, _)| table.name);
            let below = [
                "allocations",
                "checkpoints_v2",
                "model_versions",
                "role_assignments",
                "task_logs",
                "trial_logs",
                "user_group_membership",
            ];
            self.below = below.into_iter().chain(reports).filter_map(|table| rows(&table)).collect();
        }
        self.add_left(counts);
    }

    /// How many rows were added.
    pub fn taken_over(&self) -> u64 {
        self.tables.values().map(|tally| tally.taken_over).sum()
    }
}
