//! What the master reads of requests by itself, for the fuzzers: no promise to anybody else.
//!
//! Each function reads as a handler would, and asserts what must hold whatever was sent.

use crate::http::untrusted as http;
use crate::{config, model_definition, sites};

/// The bytes of a connection, whole and in pieces of a few bytes.
pub fn connection(bytes: &[u8], piece: u8) {
    http::connection(bytes, usize::from(piece) + 1);
}

/// The path and the parameters of an address, and the `Host` by which a browser came.
pub fn address(text: &str) {
    http::address(text);
    if sites::is_origin(text) {
        assert!(!sites::host_of_origin(text).contains(['/', ' ']), "{text}");
    }
    for own in [None, Some("https://tasks.example.org".to_owned())] {
        let sites = sites::Sites::new(false, 8080, 8081, own);
        let _ = (sites.tasks_origin(text), sites.master_origin(text));
    }
}

/// The header `Cookie` of a browser, and `Set-Cookie` of a task.
pub fn cookies(text: &str) {
    http::cookies(text);
}

/// A body with names in it; a configuration, as it stands in the body of an experiment.
pub fn body(text: &str) {
    http::body(text.as_bytes());
    let _ = config::read(text, &instep_api::config::Sources::default());
}

/// The list of files that an experiment comes with.
pub fn model_definition(text: &str) {
    if let Ok(files) = serde_json::from_str::<Vec<instep_api::experiments::ModelFile>>(text) {
        let _ = model_definition::pack(&files);
    }
}
