//! What a trial is given: the `resources` and `bind_mounts` sections.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::reader::{Fields, Mistakes, kind};

/// Slots and where they come from.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Resources {
    pub slots_per_trial: u32,
    pub resource_pool: String,
    pub priority: Option<u32>,
    pub weight: f64,
    pub max_slots: Option<u32>,
    pub is_single_node: Option<bool>,
    /// In bytes.
    pub shm_size: Option<u64>,
    pub devices: Vec<Device>,
    pub native_parallel: bool,
}

/// A device of the machine that tasks see.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct Device {
    pub host_path: String,
    pub container_path: String,
    pub mode: String,
}

/// A folder of the machine that tasks see.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct BindMount {
    pub host_path: String,
    pub container_path: String,
    pub read_only: bool,
    pub propagation: String,
}

impl Resources {
    pub(super) fn read(mut fields: Fields<'_>) -> Resources {
        if fields.take("slots").is_some() {
            fields.wrong("slots", "additionalProperties \"slots\" not allowed: experiments use slots_per_trial");
        }
        fields.text("agent_label");
        let priority = fields.whole("priority", 1..=99).and_then(|number| u32::try_from(number).ok());
        let weight = match fields.number("weight") {
            Some(weight) if weight > 0.0 => weight,
            Some(weight) => {
                fields.wrong("weight", format!("must be more than 0, not {weight}"));
                1.0
            }
            None => 1.0,
        };
        let resources = Resources {
            slots_per_trial: fields.count("slots_per_trial", 0).unwrap_or(1),
            resource_pool: fields.text("resource_pool").unwrap_or_default(),
            priority,
            weight,
            max_slots: fields.count("max_slots", 0),
            is_single_node: fields.flag("is_single_node"),
            shm_size: shm_size(&mut fields),
            devices: devices(&mut fields),
            native_parallel: fields.flag("native_parallel").unwrap_or(false),
        };
        fields.finish();
        resources
    }
}

fn shm_size(fields: &mut Fields<'_>) -> Option<u64> {
    let value = fields.take("shm_size")?;
    let size = match &value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => memory_size(text),
        _ => None,
    };
    if size.is_none() {
        fields.wrong("shm_size", format!("must be a number of bytes or a size such as 4g, not {}", kind(&value)));
    }
    size
}

/// Reads `4g`, `1.5 GiB`, `512`; units are powers of 1024.
pub fn memory_size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: f64 = Some(number).filter(|number| !number.ends_with('.'))?.parse().ok()?;
    let unit = unit.trim_start();
    let power = match unit {
        "" | "b" => 0,
        _ => {
            let (letter, rest) = unit.split_at_checked(1)?;
            let power = "kmgtp".find(letter)? as i32 + 1;
            matches!(rest, "" | "b" | "ib").then_some(power)?
        }
    };
    let size = number * 1024f64.powi(power);
    (size.is_finite() && size < u64::MAX as f64).then_some(size as u64)
}

fn devices(fields: &mut Fields<'_>) -> Vec<Device> {
    let mistakes = fields.mistakes();
    fields.list("devices").into_iter().map(|(path, value)| device(&path, value, mistakes)).collect()
}

fn device(path: &str, value: Value, mistakes: &Mistakes) -> Device {
    let mut fields = Fields::of(path, spelled_out(value), mistakes);
    let device = Device {
        host_path: absolute(&mut fields, "host_path"),
        container_path: absolute(&mut fields, "container_path"),
        mode: fields.text("mode").unwrap_or_else(|| "mrw".to_owned()),
    };
    fields.finish();
    device
}

/// A device as a map, also where it was written `host:container:mode`.
pub(super) fn spelled_out(value: Value) -> Value {
    let Value::String(text) = &value else { return value };
    let mut parts = text.splitn(3, ':');
    let mut map = Map::new();
    for name in ["host_path", "container_path", "mode"] {
        if let Some(part) = parts.next() {
            map.insert(name.to_owned(), json!(part));
        }
    }
    Value::Object(map)
}

impl BindMount {
    pub(super) fn read(path: &str, value: Value, mistakes: &Mistakes) -> BindMount {
        let mut fields = Fields::of(path, value, mistakes);
        let host_path = absolute(&mut fields, "host_path");
        let container_path = fields.text("container_path").unwrap_or_default();
        if container_path.is_empty() {
            fields.wrong("container_path", "is needed: where the task sees it");
        } else if container_path == "." {
            fields.wrong("container_path", "must not be the working directory itself");
        }
        let mount = BindMount {
            host_path,
            container_path,
            read_only: fields.flag("read_only").unwrap_or(false),
            propagation: fields.text("propagation").unwrap_or_else(|| "rprivate".to_owned()),
        };
        fields.finish();
        mount
    }
}

fn absolute(fields: &mut Fields<'_>, name: &'static str) -> String {
    let path = fields.text(name).unwrap_or_default();
    if !path.starts_with('/') {
        fields.wrong(name, format!("must be an absolute path, not `{path}`"));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_memory_are_read_as_people_write_them() {
        let cases = [
            ("4g", Some(4 << 30)),
            ("4G", Some(4 << 30)),
            ("1.5 GiB", Some(3 << 29)),
            ("512", Some(512)),
            ("64mb", Some(64 << 20)),
            ("7 b", Some(7)),
            ("g", None),
            ("1.gb", None),
            (".5g", Some(1 << 29)),
            ("4x", None),
            ("4gg", None),
            ("-1", None),
            ("1e9", None),
            ("9999999p", None),
            ("4é", None),
            ("", None),
        ];
        for (text, size) in cases {
            assert_eq!(memory_size(text), size, "{text}");
        }
    }
}
