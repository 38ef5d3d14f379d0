//! `docs/reference/experiment-config.md` lists every field of a configuration, with the default that the code has, and every
//! field that Determined's schema has.

use std::collections::{BTreeMap, BTreeSet};

use instep_api::config::{ExperimentConfig, Sources};
use serde_json::Value;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/experiment-config.md");

/// Every field of Determined 0.38.1's schema, as `scripts/determined_fields.py` prints them.
const DETERMINED: &str = include_str!("determined-fields.txt");

/// Configurations that together have every field.
const EXAMPLES: &[&str] = &[
    "{searcher: {name: single, metric: m, max_length: 3}}",
    "{searcher: {name: random, metric: m, max_trials: 3}}",
    "{searcher: {name: grid, metric: m}, checkpoint_storage: {type: directory, container_path: /x}}",
    "{searcher: {name: async_halving, metric: m, num_rungs: 2, max_trials: 3, max_time: 9, time_metric: t}, \
     checkpoint_storage: {type: s3, bucket: b}}",
    "{searcher: {name: adaptive_asha, metric: m, max_trials: 3, max_time: 9, time_metric: t}, \
     checkpoint_storage: {type: gcs, bucket: b}}",
    "{searcher: {name: single, metric: m}, checkpoint_storage: {type: azure, container: c, account_url: u}, \
     bind_mounts: [{host_path: /x, container_path: /y}], resources: {devices: ['/x:/y']}}",
    "{searcher: {name: single, metric: m}, checkpoint_storage: {type: azure, container: c, connection_string: s}, \
     log_policies: [{name: p}], slurm: {slots_per_node: 4, gpu_type: a100, sbatch_args: [--time=60]}}",
    "{searcher: {name: single, metric: m}, checkpoint_storage: {type: shared_fs, host_path: /x, storage_path: z, \
     propagation: p, container_path: /c, checkpoint_path: c, tensorboard_path: t}}",
];

/// Every field of a value with its path, inner ones and those that hold them; elements of lists share a path.
fn fields(path: &str, value: &Value, found: &mut BTreeMap<String, Vec<Value>>) {
    if !path.is_empty() {
        found.entry(path.to_owned()).or_default().push(value.clone());
    }
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                fields(&path, value, found);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| fields(&format!("{path}[]"), element, found)),
        _ => {}
    }
}

/// The rows of the page: fields with what stands in the column of defaults.
fn rows(page: &str) -> BTreeMap<String, String> {
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.splitn(3, " | ");
        let path = cells.next()?.strip_suffix('`')?;
        let default = cells.next()?.trim().to_owned();
        let is_field = path.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.[]".contains(letter));
        (is_field && cells.next().is_some()).then(|| (path.to_owned(), default))
    };
    page.lines().filter_map(row).collect()
}

#[test]
fn the_page_lists_every_field_with_its_default() {
    let rows = rows(&std::fs::read_to_string(PAGE).expect("the page is there"));
    let mut found = BTreeMap::new();
    for text in EXAMPLES {
        let config = ExperimentConfig::parse(text, &Sources::default()).unwrap_or_else(|errors| panic!("{errors:?}"));
        fields("", &config.to_json(), &mut found);
    }
    // A row says it all for the fields below it: variables of each device, a length in batches, what an action is.
    let covered = |path: &str| {
        let holders = path.match_indices(['.', '[']).map(|(end, _)| &path[..end]);
        holders.chain([path]).any(|holder| rows.contains_key(holder)) || rows.keys().any(|row| row.starts_with(path))
    };
    let missing: Vec<&String> = found.keys().filter(|path| !covered(path)).collect();
    assert!(missing.is_empty(), "not on the page: {missing:?}");
    let unknown: BTreeSet<&String> = rows.keys().filter(|path| !found.contains_key(*path)).collect();
    assert!(unknown.is_empty(), "not in the code: {unknown:?}");
    for (path, default) in &rows {
        let Some(default) = default.strip_prefix('`').and_then(|default| default.strip_suffix('`')) else { continue };
        let default: Value = serde_json::from_str(default).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(found[path].contains(&default), "{path} is {:?}, the page says {default}", found[path]);
    }
}

#[test]
fn the_page_lists_every_field_of_determined_s_schema() {
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let (_, without_meaning) =
        page.split_once("## Fields of Determined's that have no meaning here").expect("its heading");
    let (without_meaning, _) = without_meaning.split_once("\n## ").expect("the next heading");
    let named: BTreeSet<&str> = without_meaning
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" | ").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    let rows = rows(&page);
    let holds =
        |holder: &str| rows.keys().any(|row| row.strip_prefix(holder).is_some_and(|rest| rest.starts_with(['.', '['])));
    let is_listed = |path: &str| {
        let mut holders = path.match_indices(['.', '[']).map(|(end, _)| &path[..end]);
        rows.contains_key(path) || holds(path) || holders.any(|holder| rows.contains_key(holder) && !holds(holder))
    };
    assert!(DETERMINED.lines().count() > 150);
    let missing: BTreeSet<&str> = DETERMINED.lines().filter(|path| !is_listed(path)).collect();
    assert_eq!(missing, named, "left: what no table has; right: what the page says has no meaning");
}
