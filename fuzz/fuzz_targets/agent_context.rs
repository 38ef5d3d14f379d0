//! Any bytes as an experiment's files, packed or not: nothing is written outside the folder.
#![no_main]

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use instep_agent::task::context::unpack;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let outer = tempfile::tempdir().expect("there is a folder for temporary files");
    let folder = outer.path().join("in/side");
    fs::create_dir_all(&folder).expect("it is new");
    let mut packed = GzEncoder::new(Vec::new(), Compression::none());
    packed.write_all(bytes).expect("it is in memory");
    let _ = unpack(&packed.finish().expect("it is in memory"), &folder);
    let _ = unpack(bytes, &folder);
    for (above, below) in [(outer.path().to_owned(), "in"), (outer.path().join("in"), "side")] {
        let found: Vec<_> = fs::read_dir(above).expect("it is there").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(found, [below]);
    }
});
