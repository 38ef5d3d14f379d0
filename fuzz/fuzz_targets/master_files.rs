//! Any text in the files that the master reads: settings, and lists of files that come with experiments.
#![no_main]

use std::path::PathBuf;

use instep_master::settings::Settings;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(settings) = Settings::gather(Some((PathBuf::from("master.yaml"), text)), |_| None, Vec::new(), None) {
        let _ = settings.options();
        assert!(!settings.rows().is_empty());
    }
    instep_master::untrusted::model_definition(text);
});
