//! Which values of a configuration are secrets, and what is shown in their place.
//!
//! This is the only place that decides it, by where a value stands ([`transform`]); values themselves are looked at only
//! for passwords in addresses and private keys. [`Configuration`] is a whole configuration that masks its secrets
//! whenever it is written out, so that no answer has to remember it; [`restored`] puts secrets back where a mask comes
//! in again. What is not found here: secrets in entrypoints, hyperparameters, names, and comments of configurations
//! without other secrets.

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use super::parse_text;

/// What is shown in place of a secret, as Determined does.
pub const MASK: &str = "********";

/// Keys of a storage whose values are secrets, whatever they look like.
const STORAGE: &[&str] = &["access_key", "secret_key", "connection_string", "credential"];
/// What `environment.registry_auth` shows: all else there is a secret.
const REGISTRY: &[&str] = &["username", "serveraddress", "server_address", "email"];
/// A name with one of these in it is a secret's.
const STRONG: &[&str] = &["SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CONNECTION_STRING"];
/// A name with one of these in it is a secret's if its value is text.
const PARTS: &[&str] = &["APIKEY", "ACCESSKEY", "ACCESS_KEY", "PRIVATEKEY", "PRIVATE_KEY", "APITOKEN", "AUTHTOKEN"];
/// A name with one of these words in it is a secret's if its value is text.
const WORDS: &[&str] = &["TOKEN", "PASS", "PAT", "DSN", "JWT", "BEARER", "CREDS", "COOKIE", "SAS"];
/// A name that ends in one of these words, and has others before it, is a secret's if its value is text.
const LAST_WORDS: &[&str] = &["KEY", "KEYS", "AUTH", "PWD", "TOKENS"];

/// How deep values are looked at; what lies deeper is a secret.
const DEEPEST: usize = 64;

/// How a part of a configuration is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    /// The whole configuration.
    Whole,
    /// `environment`.
    Environment,
    /// `environment.environment_variables`: a list, or one for each kind of device.
    Variables,
    /// `environment.registry_auth`.
    Registry,
    /// `checkpoint_storage` and `tensorboard_storage`.
    Storage,
    /// `data`.
    Data,
    /// Names say what is secret.
    ByName,
    /// Every value is a secret.
    Secret,
    /// No value is.
    Shown,
}

/// A step on the way to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Key(String),
    Element(usize),
    /// The variable of this name, the so-manyth of that name in its list.
    Variable(String, usize),
}

/// What is done with a secret at its place.
type Change<'c> = dyn FnMut(&[Step], Value) -> Value + 'c;

/// A configuration, or a part of one such as a template, with its secrets masked.
pub fn masked(config: Value) -> Value {
    transform(config, Section::Whole, &mut |_, value| mask(value))
}

/// The text of a configuration with its secrets masked: as it was written if it has none. One that cannot be read cannot
/// be shown.
pub fn masked_text(text: &str) -> String {
    let Ok(config) = parse_text(text) else { return MASK.to_owned() };
    let shown = masked(config.clone());
    if shown == config {
        return text.to_owned();
    }
    serde_saphyr::to_string(&shown).unwrap_or_else(|_| shown.to_string())
}

/// A configuration whose masks have become what `source` has at the same places; a mask stays where it has nothing.
pub fn restored(config: Value, source: &Value) -> Value {
    transform(config, Section::Whole, &mut |path, value| match value {
        Value::String(text) if text == MASK => {
            let found = find(source, path).filter(|found| !found.is_null());
            found.unwrap_or(Value::String(text))
        }
        value => value,
    })
}

/// The places of a configuration where there is a mask, such as `checkpoint_storage.secret_key`.
pub fn masks(config: &Value) -> Vec<String> {
    let mut found = Vec::new();
    transform(config.clone(), Section::Whole, &mut |path, value| {
        if value.as_str() == Some(MASK) {
            found.push(spelled(path));
        }
        value
    });
    found.sort();
    found.dedup();
    found
}

/// Whether a name is one of a secret, such as `HF_TOKEN`, `wandb-api-key` or `dbPassword`, if its value is text.
pub fn is_secret_name(name: &str) -> bool {
    likeness(name) != Likeness::None
}

fn mask(value: Value) -> Value {
    match value {
        Value::String(text) if text.is_empty() => Value::String(text),
        Value::Null | Value::Bool(_) => value,
        _ => Value::String(MASK.to_owned()),
    }
}

/// How much a name says that its value is secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Likeness {
    None,
    /// If the value is text: `max_tokens` is a number.
    Text,
    Any,
}

fn likeness(name: &str) -> Likeness {
    let words = words(name);
    let upper = words.join("_");
    let has = |parts: &[&str]| parts.iter().any(|part| upper.contains(part));
    if has(STRONG) {
        return Likeness::Any;
    }
    let is_word = words.iter().any(|word| WORDS.contains(&word.as_str()) || word.ends_with("TOKEN"));
    let ends = words.len() > 1 && words.last().is_some_and(|last| LAST_WORDS.contains(&last.as_str()));
    if is_word || ends || has(PARTS) { Likeness::Text } else { Likeness::None }
}

/// The words of a name, in capitals: parted by what is no letter or digit, and where a capital follows a small letter.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for letter in name.chars() {
        if !letter.is_alphanumeric() || letter.is_uppercase() && was_small {
            words.push(String::new());
        }
        if letter.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(letter.to_uppercase());
        }
        was_small = letter.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a text is secret by itself: an address with a password or a signature, a private key, or a mask.
fn is_secret_text(text: &str) -> bool {
    let has_password = text.match_indices("://").any(|(at, _)| {
        let authority = text[at + 3..].split(['/', '?', '#', ' ']).next().unwrap_or_default();
        authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
    });
    let lower = || text.to_ascii_lowercase();
    let is_signed =
        text.contains("://") && ["?sig=", "&sig=", "x-amz-signature="].iter().any(|key| lower().contains(key));
    text == MASK || has_password || is_signed || text.contains("PRIVATE KEY-----")
}

/// Applies a change to every secret of a part of a configuration.
fn transform(value: Value, section: Section, change: &mut Change<'_>) -> Value {
    at(value, section, &mut Vec::new(), change)
}

fn at(value: Value, section: Section, path: &mut Vec<Step>, change: &mut Change<'_>) -> Value {
    let section = if path.len() > DEEPEST { Section::Secret } else { section };
    match (section, value) {
        (Section::Shown, value) => value,
        (Section::Secret, value) if !value.is_object() && !value.is_array() || path.len() > DEEPEST => {
            change(path, value)
        }
        (Section::Variables, Value::Array(entries)) => variables(entries, path, change),
        (_, Value::Array(elements)) => {
            let each = |(index, element): (usize, Value)| below(element, section, Step::Element(index), path, change);
            Value::Array(elements.into_iter().enumerate().map(each).collect())
        }
        (_, Value::Object(fields)) => fields_of(fields, section, path, change),
        (_, Value::String(text)) if is_secret_text(&text) => change(path, Value::String(text)),
        (_, value) => value,
    }
}

fn below(value: Value, section: Section, step: Step, path: &mut Vec<Step>, change: &mut Change<'_>) -> Value {
    path.push(step);
    let changed = at(value, section, path, change);
    path.pop();
    changed
}

fn fields_of(fields: Map<String, Value>, section: Section, path: &mut Vec<Step>, change: &mut Change<'_>) -> Value {
    // As Kubernetes writes variables.
    let is_named = fields.get("name").and_then(Value::as_str).is_some_and(is_secret_name);
    let each = |(key, value): (String, Value)| {
        let inner = match (key.as_str(), &value) {
            ("value", Value::String(_)) if is_named && section == Section::ByName => Section::Secret,
            _ => inner(section, &key, &value),
        };
        let changed = below(value, inner, Step::Key(key.clone()), path, change);
        (key, changed)
    };
    Value::Object(fields.into_iter().map(each).collect())
}

/// How the value of a key is looked at.
fn inner(section: Section, key: &str, value: &Value) -> Section {
    let by_name = || match (likeness(key), value) {
        // Names of Kubernetes' secrets, in the pod of a task.
        _ if key == "imagePullSecrets" => Section::Shown,
        (Likeness::None, _) | (Likeness::Text, Value::Number(_)) => Section::ByName,
        (Likeness::Text | Likeness::Any, _) => Section::Secret,
    };
    match section {
        Section::Whole => match key {
            "environment" => Section::Environment,
            "checkpoint_storage" | "tensorboard_storage" => Section::Storage,
            "data" => Section::Data,
            // They are what a search varies, and shown with every trial.
            "hyperparameters" => Section::Shown,
            _ => by_name(),
        },
        Section::Environment => match key {
            "environment_variables" => Section::Variables,
            "registry_auth" => Section::Registry,
            // Names of secrets, which are no secrets.
            "secrets" | "secret_files" => Section::Shown,
            _ => by_name(),
        },
        Section::Storage if STORAGE.contains(&key) => Section::Secret,
        Section::Registry if REGISTRY.contains(&key) => Section::ByName,
        Section::Registry => Section::Secret,
        Section::Data if key == "secrets" => Section::Secret,
        Section::Storage | Section::Data | Section::ByName => by_name(),
        Section::Variables | Section::Secret | Section::Shown => section,
    }
}

/// Variables as `NAME=VALUE`; what is no text is not one yet.
fn variables(entries: Vec<Value>, path: &mut Vec<Step>, change: &mut Change<'_>) -> Value {
    let mut names: Vec<String> = Vec::new();
    let mut each = |entry: Value| {
        let Some((name, value)) = entry.as_str().and_then(|text| text.split_once('=')) else { return entry };
        let earlier = names.iter().filter(|known| *known == name).count();
        names.push(name.to_owned());
        if value.is_empty() || !is_secret_name(name) && !is_secret_text(value) {
            return entry;
        }
        path.push(Step::Variable(name.to_owned(), earlier));
        let changed = change(path, Value::String(value.to_owned()));
        path.pop();
        match changed {
            Value::String(value) => Value::String(format!("{name}={value}")),
            other => Value::String(format!("{name}={other}")),
        }
    };
    Value::Array(entries.into_iter().map(&mut each).collect())
}

/// What a configuration has at a place.
fn find(config: &Value, path: &[Step]) -> Option<Value> {
    let mut place = config;
    for (number, step) in path.iter().enumerate() {
        let of_devices = matches!(path[..number].last(), Some(Step::Key(key)) if key == "environment_variables");
        place = match step {
            // A list for all devices, and one for each, mean the same variables.
            Step::Key(device) if of_devices => place.get(device).unwrap_or(place),
            Step::Key(key) => place.get(key)?,
            Step::Element(index) => place.get(index)?,
            Step::Variable(name, earlier) => return variable(place, name, *earlier).map(Value::String),
        };
    }
    Some(place.clone())
}

fn variable(lists: &Value, name: &str, earlier: usize) -> Option<String> {
    let lists = match lists {
        Value::Object(devices) => devices.values().filter_map(Value::as_array).collect(),
        Value::Array(entries) => vec![entries],
        _ => return None,
    };
    lists.into_iter().find_map(|entries| {
        let texts = entries.iter().filter_map(|entry| entry.as_str()?.split_once('='));
        let values: Vec<&str> = texts.filter(|(known, _)| *known == name).map(|(_, value)| value).collect();
        values.get(earlier).or(values.last()).map(|value| (*value).to_owned())
    })
}

fn spelled(path: &[Step]) -> String {
    path.iter().fold(String::new(), |text, step| match step {
        Step::Element(index) => format!("{text}[{index}]"),
        Step::Key(name) | Step::Variable(name, _) if text.is_empty() => name.clone(),
        Step::Key(name) | Step::Variable(name, _) => format!("{text}.{name}"),
    })
}

/// A configuration, or a part of one, that masks its secrets whenever it is written out. In memory it is whole.
#[derive(Clone, PartialEq, Default, Deserialize)]
#[serde(transparent)]
pub struct Configuration(Value);

impl Configuration {
    /// With its secrets.
    pub fn into_value(self) -> Value {
        self.0
    }
}

impl From<Value> for Configuration {
    fn from(config: Value) -> Configuration {
        Configuration(config)
    }
}

impl Deref for Configuration {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.0
    }
}

impl Serialize for Configuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        masked(self.0.clone()).serialize(serializer)
    }
}

impl fmt::Debug for Configuration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        masked(self.0.clone()).fmt(formatter)
    }
}

/// The `checkpoint_storage` section alone, which masks its secrets whenever it is written out.
#[derive(Clone, PartialEq, Default, Deserialize)]
#[serde(transparent)]
pub struct StorageConfiguration(Value);

impl StorageConfiguration {
    /// With its secrets.
    pub fn into_value(self) -> Value {
        self.0
    }

    fn masked(&self) -> Value {
        transform(self.0.clone(), Section::Storage, &mut |_, value| mask(value))
    }
}

impl From<Value> for StorageConfiguration {
    fn from(config: Value) -> StorageConfiguration {
        StorageConfiguration(config)
    }
}

impl Serialize for StorageConfiguration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.masked().serialize(serializer)
    }
}

impl fmt::Debug for StorageConfiguration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.masked().fmt(formatter)
    }
}

/// The text of a configuration as it was sent, which masks its secrets whenever it is written out.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub struct ConfigurationText(String);

impl ConfigurationText {
    /// With its secrets.
    pub fn into_text(self) -> String {
        self.0
    }
}

impl From<String> for ConfigurationText {
    fn from(text: String) -> ConfigurationText {
        ConfigurationText(text)
    }
}

impl Serialize for ConfigurationText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        masked_text(&self.0).serialize(serializer)
    }
}

impl fmt::Debug for ConfigurationText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        masked_text(&self.0).fmt(formatter)
    }
}
