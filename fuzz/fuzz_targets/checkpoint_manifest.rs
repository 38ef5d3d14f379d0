//! Any bytes in place of a checkpoint's manifest: one whose names stay inside the checkpoint, or an error.
#![no_main]

use std::path::{Component, Path};

use instep_checkpoint::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(manifest) = Manifest::read("id", bytes) {
        for file in manifest.files() {
            let mut parts = Path::new(&file.name).components();
            assert!(parts.all(|part| matches!(part, Component::Normal(_))), "{}", file.name);
        }
        assert_eq!(Manifest::read("id", &manifest.text().expect("ours")).expect("ours"), manifest);
    }
});
