//! The columns by which can be searched.

/// What is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Experiments, with the metrics of their best trials.
    Experiments,
    /// Runs, which are trials.
    Runs,
}

/// What the values of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Words.
    Text,
    /// Numbers.
    Number,
    /// Moments.
    Date,
    /// Truth values, or of several kinds.
    Other,
}

/// Columns that every row of a table has: name, title, and what they hold.
type Known = (&'static str, &'static str, Kind);

const EXPERIMENT: &[Known] = &[
    ("id", "ID", Kind::Number),
    ("name", "Name", Kind::Text),
    ("description", "Description", Kind::Text),
    ("tags", "Tags", Kind::Text),
    ("forkedFrom", "Forked", Kind::Number),
    ("startTime", "Start time", Kind::Date),
    ("endTime", "End time", Kind::Date),
    ("duration", "Duration", Kind::Number),
    ("numTrials", "Trial count", Kind::Number),
    ("state", "State", Kind::Text),
    ("searcherType", "Searcher", Kind::Text),
    ("resourcePool", "Resource pool", Kind::Text),
    ("progress", "Progress", Kind::Number),
    ("checkpointSize", "Checkpoint size", Kind::Number),
    ("checkpointCount", "Checkpoints", Kind::Number),
    ("user", "User", Kind::Text),
    ("searcherMetric", "Searcher Metric", Kind::Text),
    ("searcherMetricsVal", "Searcher Metric Value", Kind::Number),
    ("projectId", "Project ID", Kind::Number),
    ("externalExperimentId", "External Experiment ID", Kind::Text),
    ("externalTrialId", "External Trial ID", Kind::Text),
    ("archived", "Archived", Kind::Other),
];

const RUN: &[Known] = &[
    ("id", "Global Run ID", Kind::Number),
    ("experimentDescription", "Search Description", Kind::Text),
    ("tags", "Tags", Kind::Text),
    ("forkedFrom", "Forked", Kind::Number),
    ("startTime", "Start Time", Kind::Date),
    ("endTime", "End Time", Kind::Date),
    ("duration", "Duration", Kind::Number),
    ("state", "State", Kind::Text),
    ("searcherType", "Searcher", Kind::Text),
    ("resourcePool", "Resource Pool", Kind::Text),
    ("checkpointSize", "Checkpoint Size", Kind::Number),
    ("checkpointCount", "Checkpoints", Kind::Number),
    ("user", "User", Kind::Text),
    ("searcherMetric", "Searcher Metric", Kind::Text),
    ("searcherMetricsVal", "Searcher Metric Value", Kind::Number),
    ("externalExperimentId", "External Experiment ID", Kind::Text),
    ("projectId", "Project ID", Kind::Number),
    ("externalRunId", "External Run ID", Kind::Text),
    ("experimentProgress", "Search Progress", Kind::Number),
    ("experimentId", "Search ID", Kind::Number),
    ("experimentName", "Search Name", Kind::Text),
    ("isExpMultitrial", "Part of Search", Kind::Other),
    ("parentArchived", "Parent Archived", Kind::Other),
    ("localId", "Run ID", Kind::Text),
    ("archived", "Archived", Kind::Other),
];

impl Table {
    /// The columns that every row has: name, title, and what they hold.
    pub fn columns(self) -> &'static [Known] {
        match self {
            Table::Experiments => EXPERIMENT,
            Table::Runs => RUN,
        }
    }
}

/// Parts of a path to a hyperparameter or a value of metadata.
const MOST_PARTS: usize = 32;

/// By which rows are sorted when they are to be sorted by user.
const USERNAME: &str = "username";

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// By the name that tables show it with.
    Plain(&'static str),
    /// A hyperparameter, as the path that leads to it. Of an experiment it is what the search chooses from, of a run
    /// what it has.
    Hyperparameter(Vec<String>),
    /// A value of a run's metadata, as the path that leads to it.
    Metadata(Vec<String>),
    /// A summary of a metric.
    Metric {
        /// As summaries call it: `avg_metrics` for training, `validation_metrics` for validation.
        group: String,
        /// The metric.
        name: String,
        /// `min`, `max`, `mean` or `last`.
        qualifier: String,
    },
}

impl Column {
    /// The column of a table that has this name at a location; `location` may be left out for the table's own.
    pub fn parse(table: Table, location: &str, name: &str) -> Result<Column, String> {
        match location.strip_prefix("LOCATION_TYPE_").unwrap_or(location) {
            "" | "UNSPECIFIED" | "EXPERIMENT" | "RUN" => Column::plain(table, name),
            "HYPERPARAMETERS" | "RUN_HYPERPARAMETERS" => path_after("hp.", name).map(Column::Hyperparameter),
            "RUN_METADATA" if table == Table::Runs => path_after("metadata.", name).map(Column::Metadata),
            "VALIDATIONS" | "TRAINING" | "CUSTOM_METRIC" => Column::metric(name),
            other => Err(format!("invalid location `{other}`")),
        }
    }

    /// The column that a sort parameter names, which says no location.
    pub(super) fn of_sort(table: Table, name: &str) -> Result<Column, String> {
        if name.starts_with("hp.") {
            return path_after("hp.", name).map(Column::Hyperparameter);
        }
        if table == Table::Runs && name.starts_with("metadata.") {
            return path_after("metadata.", name).map(Column::Metadata);
        }
        match name {
            // Filters name users by their numbers, but nobody reads a list in that order.
            "user" => Ok(Column::Plain(USERNAME)),
            _ if name.contains('.') => Column::metric(name),
            _ => Column::plain(table, name),
        }
    }

    /// Whether an experiment has it of its best trial.
    pub(super) fn is_of_best_trial(&self) -> bool {
        matches!(self, Column::Metric { .. } | Column::Plain("externalTrialId"))
    }

    fn plain(table: Table, name: &str) -> Result<Column, String> {
        let what = match table {
            Table::Experiments => "experiment",
            Table::Runs => "run",
        };
        let found = table.columns().iter().find(|(known, ..)| *known == name);
        found.map(|(name, ..)| Column::Plain(name)).ok_or_else(|| format!("invalid {what} column {name}"))
    }

    /// `GROUP.METRIC.QUALIFIER`, where the metric may have dots.
    fn metric(text: &str) -> Result<Column, String> {
        let parts = text.split_once('.').and_then(|(group, rest)| Some((group, rest.rsplit_once('.')?)));
        let qualified = parts.filter(|(_, (_, qualifier))| ["min", "max", "mean", "last"].contains(qualifier));
        let (group, (name, qualifier)) = qualified.ok_or_else(|| format!("{text} is not a valid metrics id"))?;
        let group = match group {
            "training" => "avg_metrics",
            "validation" => "validation_metrics",
            other => other,
        };
        Ok(Column::Metric { group: group.to_owned(), name: name.to_owned(), qualifier: qualifier.to_owned() })
    }
}

/// The parts of a path with dots; the error says that there are too many.
pub fn path(text: &str) -> Result<Vec<String>, String> {
    let parts: Vec<String> = text.split('.').take(MOST_PARTS + 1).map(str::to_owned).collect();
    if parts.len() > MOST_PARTS {
        let beginning: String = text.chars().take(40).collect();
        return Err(format!("`{beginning}…` has more than {MOST_PARTS} parts with dots between them"));
    }
    Ok(parts)
}

/// The same behind a prefix that may be there.
fn path_after(prefix: &str, name: &str) -> Result<Vec<String>, String> {
    path(name.strip_prefix(prefix).unwrap_or(name))
}
