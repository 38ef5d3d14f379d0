//! Any text as a configuration: one that reads back as it was understood, or sentences for its author.
#![no_main]

use instep_api::config::{ExperimentConfig, Sources};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let sources = Sources { name: "nameless".to_owned(), ..Sources::default() };
    if let Ok(config) = ExperimentConfig::parse(text, &sources) {
        let json = config.to_json();
        let again = ExperimentConfig::parse(&json.to_string(), &sources).expect("what was understood can be said again");
        assert_eq!(again.to_json(), json);
    }
});
