//! What was said: values gathered from defaults, a YAML file, the environment and the command line, each with its origin.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use instep_database::PostgresAddress;
use serde_json::Value;

use super::keys::{KEYS, Key, Kind, check, split};

/// The variable that names the file.
pub const FILE_VARIABLE: &str = "INSTEP_MASTER_CONFIG";

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// The file.
    File(PathBuf),
    /// This variable.
    Environment(&'static str),
    /// This option, without its dashes.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => formatter.write_str("default"),
            Origin::File(path) => write!(formatter, "{}", path.display()),
            Origin::Environment(variable) => write!(formatter, "{variable}"),
            Origin::Flag(flag) => write!(formatter, "--{flag}"),
        }
    }
}

/// A setting that cannot be used: what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct SettingsError {
    what: String,
    hint: String,
}

impl SettingsError {
    pub(super) fn new(what: impl Into<String>, hint: impl Into<String>) -> SettingsError {
        SettingsError { what: what.into(), hint: hint.into() }
    }

    /// What to do next.
    pub fn hint(&self) -> &str {
        &self.hint
    }
}

/// What was said, before it is asked whether it makes sense together.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<&'static str, (Vec<String>, Origin)>,
    /// Where the user's programs keep their data, if the user has a home.
    pub(super) data_folder: Option<PathBuf>,
    /// The password of the database, as PostgreSQL's own programs find it.
    pub(super) password: Option<String>,
}

impl fmt::Debug for Settings {
    /// Without the passwords.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.rows()).finish()
    }
}

/// What somebody said for keys, by name; a list of one for everything but lists.
pub type Assignments = Vec<(&'static str, Vec<String>)>;

impl Settings {
    /// Gathers all sources. `file` is its path and text, `environment` gives variables, `flags` what the command line
    /// says, `data_folder` where the database is made unless somebody says.
    pub fn gather(
        file: Option<(PathBuf, &str)>,
        environment: impl Fn(&str) -> Option<String>,
        flags: Assignments,
        data_folder: Option<PathBuf>,
    ) -> Result<Settings, SettingsError> {
        let password = environment("PGPASSWORD").filter(|text| !text.is_empty());
        let mut settings = Settings { values: BTreeMap::new(), data_folder: data_folder.clone(), password };
        for key in KEYS {
            settings.values.insert(key.name, (split(key, key.default), Origin::Default));
        }
        if let Some(folder) = data_folder {
            let path = folder.join("instep/master.db").to_string_lossy().into_owned();
            settings.values.insert("db", (vec![path], Origin::Default));
        }
        if let Some((path, text)) = file {
            for (key, values) in read_file(&path, text)? {
                settings.set(key, values, Origin::File(path.clone()))?;
            }
        }
        for key in KEYS {
            if let Some(text) = environment(key.variable).filter(|text| !text.is_empty()) {
                settings.set(key, split(key, &text), Origin::Environment(key.variable))?;
            }
        }
        for (name, values) in flags {
            let key = KEYS.iter().find(|key| key.name == name).expect("the command line names keys of the table");
            if name == "db" && values.iter().any(|value| PostgresAddress::has_password(value)) {
                return Err(SettingsError::new(
                    format!(
                        "--{}: it says a password, which everybody on this machine sees in the list of processes",
                        key.flag
                    ),
                    "leave it out, and name a file that holds it with --db-password-file",
                ));
            }
            settings.set(key, values, Origin::Flag(key.flag))?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &'static Key, values: Vec<String>, origin: Origin) -> Result<(), SettingsError> {
        let spelled = match &origin {
            Origin::File(path) => format!("`{}` in {}", key.name, path.display()),
            other => other.to_string(),
        };
        for value in &values {
            check(key, value).map_err(|why| {
                SettingsError::new(
                    format!("{spelled}: {why}"),
                    "`instep master --help` lists the settings and what each may be",
                )
            })?;
        }
        self.values.insert(key.name, (values, origin));
        Ok(())
    }

    /// All keys with their values and where these came from, in the order of the table. Passwords are masked.
    pub fn rows(&self) -> Vec<(&'static str, String, Origin)> {
        let row = |key: &Key| {
            let (values, origin) = &self.values[key.name];
            let shown: Vec<String> = values.iter().map(|value| PostgresAddress::masked(value)).collect();
            (key.name, shown.join(", "), origin.clone())
        };
        KEYS.iter().map(row).collect()
    }

    /// Where a value came from.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.values.get(name).map(|(_, origin)| origin)
    }

    /// A value that is no list; empty if there is none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.values[name].0.first().map_or("", String::as_str)
    }

    /// The words of a list.
    pub(super) fn list(&self, name: &str) -> &[String] {
        &self.values[name].0
    }

    /// The same settings but for these values, whatever was said about them.
    pub(super) fn with<const N: usize>(&self, values: [(&'static str, String); N]) -> Settings {
        let mut other = self.clone();
        other.values.extend(values.map(|(name, value)| (name, (vec![value], Origin::Default))));
        other
    }
}

/// The keys that a file sets.
fn read_file(path: &Path, text: &str) -> Result<Vec<(&'static Key, Vec<String>)>, SettingsError> {
    let shown = path.display();
    let hint = "it is YAML, such as `port: 8081`; `instep master config show` lists the keys";
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|error| SettingsError::new(format!("cannot read {shown}: {error}"), hint))?;
    let mut found = Vec::new();
    match value {
        // A file of comments.
        Value::Null => {}
        Value::Object(fields) => collect("", &fields, &mut found, path)?,
        _ => return Err(SettingsError::new(format!("cannot read {shown}: it is not a map of keys"), hint)),
    }
    Ok(found)
}

fn collect(
    above: &str,
    fields: &serde_json::Map<String, Value>,
    found: &mut Vec<(&'static Key, Vec<String>)>,
    path: &Path,
) -> Result<(), SettingsError> {
    for (field, value) in fields {
        let name = if above.is_empty() { field.clone() } else { format!("{above}.{field}") };
        let is_level = KEYS.iter().any(|key| key.name.strip_prefix(&name).is_some_and(|rest| rest.starts_with('.')));
        let key = KEYS.iter().find(|key| key.name == name);
        match (key, value) {
            (_, Value::Null) if key.is_some() || is_level => {}
            (Some(key), Value::Array(words)) if key.kind == Kind::List => {
                let words = words.iter().map(scalar).collect::<Option<Vec<_>>>();
                found.push((key, words.ok_or_else(|| wrong_kind(&name, "a list of words", path))?));
            }
            (Some(key), value @ Value::Array(_)) if key.kind == Kind::Pools => {
                found.push((key, vec![value.to_string()]));
            }
            (Some(key), value) => {
                let text = scalar(value).ok_or_else(|| wrong_kind(&name, "a single value", path))?;
                found.push((key, split(key, &text)));
            }
            (None, Value::Object(fields)) if is_level => collect(&name, fields, found, path)?,
            (None, _) if is_level => return Err(wrong_kind(&name, "a map of keys", path)),
            (None, _) => return Err(unknown(&name, path)),
        }
    }
    Ok(())
}

fn wrong_kind(name: &str, wanted: &str, path: &Path) -> SettingsError {
    let what = format!("`{name}` in {} must be {wanted}", path.display());
    SettingsError::new(what, "`instep master config show` lists the keys with their values")
}

fn unknown(name: &str, path: &Path) -> SettingsError {
    let near = KEYS
        .iter()
        .map(|key| (strsim::jaro_winkler(name, key.name), key.name))
        .filter(|(likeness, _)| *likeness > 0.7)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    let hint = match near {
        Some((_, near)) => format!("did you mean `{near}`?"),
        None => format!("the keys are {}", KEYS.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")),
    };
    SettingsError::new(format!("unknown key `{name}` in {}", path.display()), hint)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
