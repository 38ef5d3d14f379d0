//! Words that the project has retired, because the field has one for the same thing: they must not come back as identifiers.
//!
//! An identifier is split at underscores and capitals (`feel_pulse`, `FeelPulse`, `PULSE_BYTES`), and no part of it may be a
//! retired word or its plural. Comments and strings are free: wire formats, environment variables and error texts keep what
//! users have. A word that is right in one crate may be retired in another: `post` and `route` are axum's words in the master.

use std::collections::BTreeMap;

use instep_testkit::{Source, sources};

/// What Python's package is called in the lists below; crates are called by their folders.
const PYTHON: &str = "python/instep";

/// Words, what to say instead, and who still says them: a crate that is clean is taken off.
const RETIRED: &[(&str, &str, &[&str])] = &[
    ("bury", "reap", &[]),
    ("carrier", "ProgressThread", &[]),
    ("condemn", "abort", &[]),
    ("condemned", "aborted", &[]),
    ("conformity", "what is checked", &[]),
    ("deaf", "accept_paused", &[]),
    ("diary", "flight recorder", &[]),
    ("door", "listener or LeaderProxy", &["shell"]),
    ("ear", "Decoder", &[]),
    ("errand", "request", &[]),
    ("farewell", "shutdown", &["shell"]),
    ("fate", "abort or outcome", &["database", "import", "policy"]),
    ("greet", "hello", &["launch"]),
    ("greeting", "hello", &[]),
    ("guest", "JoinedNode or zero-slot task", &[]),
    ("happening", "event", &["policy"]),
    ("homeless", "unplaced", &[]),
    ("introduce", "handshake", &[]),
    ("introduced", "handshake", &[]),
    ("introduction", "handshake", &[]),
    ("lane", "channel", &[]),
    ("leaderless", "failover", &[]),
    ("lineage", "epoch", &[]),
    ("mail", "p2p", &[]),
    ("meeting", "rendezvous or bootstrap", &["policy"]),
    ("misunderstood", "invalid", &[]),
    ("obey", "apply", &[]),
    ("overhear", "check_for_late_abort", &[]),
    ("parted", "Disconnected", &[]),
    ("patiently", "with retries", &[]),
    ("placing", "scheduler", &[]),
    ("pledge", "vote", &[]),
    ("pulse", "heartbeat", &[]),
    ("scout", "probe", &[]),
    ("seat", "endpoint, rank or membership", &[]),
    ("singles", "commands", &["database"]),
    ("standing", "state or leadership", &[]),
    ("succession", "election", &[]),
    ("surroundings", "Host", &["shell"]),
    ("trouble", "error", &["client", "master", "policy"]),
    ("understudy", "hot spare", &[]),
    ("verdict", "outcome, decision or reason", &["cli", "database"]),
];

/// Words that only one crate has retired: elsewhere they are the field's, or plain English.
const RETIRED_IN: &[(&str, &[(&str, &str)])] = &[
    ("agent", &[("hear", "receive")]),
    ("cli", &[("facts", "what they describe"), ("stranger", "what is there")]),
    ("client", &[("beat", "heartbeat"), ("patience", "timeout"), ("tell", "notify")]),
    (
        "collectives",
        &[
            ("absent", "late"),
            ("alarm", "AbortFlag"),
            ("engine", "transport"),
            ("flow", "Pipeline"),
            ("hear", "advance, feed or receive"),
            ("heard", "received"),
            ("meet", "connect"),
            ("met", "connected"),
            ("mixed", "hierarchical"),
            ("plan", "schedule or partition"),
            ("post", "matching"),
            ("route", "schedule or peers"),
            ("streams", "tcp"),
            ("tell", "broadcast_abort"),
            ("told", "sent"),
            ("truth", "Bool"),
            ("watch", "context or monitor"),
            ("wishes", "preferences"),
        ],
    ),
    ("database", &[("contender", "Candidate"), ("stand", "update_state")]),
    ("diagnosis", &[("gather", "collect")]),
    ("launch", &[("contact", "query"), ("patience", "timeout"), ("post", "shared"), ("stranger", "what is there")]),
    ("master", &[("contender", "Candidate"), ("dismiss", "remove"), ("measures", "metrics"), ("wishes", "requests")]),
    ("policy", &[("places", "ranks")]),
    ("python", &[("streams", "tcp")]),
    (PYTHON, &[("keeper", "partner")]),
    ("recorder", &[("ask", "stack_request")]),
];

/// Files that are not held to it: what is compared with MPI, and this one.
const EXCEPT: &[&str] = &["crates/collectives/examples/versus_mpi", "crates/testkit/tests/glossary.rs"];

/// An identifier's parts in lower case: split at underscores, and before a capital that follows something else.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut previous = '_';
    for character in identifier.chars() {
        let begins = character.is_uppercase() && !previous.is_uppercase();
        if character == '_' || begins {
            parts.push(String::new());
        }
        if character != '_' {
            parts.last_mut().expect("there is one").extend(character.to_lowercase());
        }
        previous = character;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// The identifiers of a line; comments and what stands in strings are left out.
fn identifiers<'a>(line: &'a str, comment: &str) -> Vec<&'a str> {
    let (mut found, mut start, mut in_string, mut previous) = (Vec::new(), None, false, ' ');
    for (index, character) in line.char_indices().chain([(line.len(), ' ')]) {
        if character == '"' && previous != '\\' && previous != '\'' {
            in_string = !in_string;
        }
        let is_part = !in_string && (character.is_alphanumeric() || character == '_');
        match start {
            None if is_part => start = Some(index),
            Some(from) if !is_part => {
                found.push(&line[from..index]);
                start = None;
            }
            _ => {}
        }
        if !in_string && line[index..].starts_with(comment) {
            break;
        }
        previous = character;
    }
    found
}

/// The lines of a file that are code, with their numbers: in Python, without the texts between three quotes.
fn code(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    let is_python = source.has_extension("py");
    let mut in_text = false;
    source.lines().filter(move |(_, line)| {
        let quotes = if is_python { line.matches("\"\"\"").count() } else { 0 };
        let is_text = in_text || quotes > 0;
        in_text ^= quotes % 2 == 1;
        !is_text
    })
}

/// What a file belongs to: a crate, or Python's package.
fn owner(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("crates/").and_then(|below| below.split_once('/'));
    let is_code = |below: &str| ["src/", "tests/", "examples/", "benches/"].iter().any(|part| below.starts_with(part));
    match inside {
        Some((krate, below)) => is_code(below).then_some(krate),
        None => path.starts_with(PYTHON).then_some(PYTHON),
    }
}

/// What this part of an identifier should be instead, where it or its singular is retired.
fn instead<'a>(retired: &BTreeMap<&str, &'a str>, part: &str) -> Option<&'a str> {
    retired.get(part).or_else(|| retired.get(part.strip_suffix('s')?)).copied()
}

#[test]
fn retired_words_do_not_come_back() {
    let mut complaints = Vec::new();
    for source in
        sources(&["rs", "py"]).iter().filter(|source| !EXCEPT.iter().any(|except| source.path.starts_with(except)))
    {
        let Some(owner) = owner(&source.path) else { continue };
        let everywhere = RETIRED.iter().filter(|(_, _, except)| !except.contains(&owner));
        let here = RETIRED_IN.iter().filter(|(krate, _)| *krate == owner).flat_map(|(_, words)| words.iter().copied());
        let retired = everywhere.map(|(word, instead, _)| (*word, *instead)).chain(here).collect();
        // A file's name is an identifier, too: that of its module.
        let (module, _) = source.path.rsplit_once('.').expect("it has an extension");
        let module = module.replace('/', " ");
        let comment = if source.has_extension("py") { "#" } else { "//" };
        for (number, line) in std::iter::once((1, module.as_str())).chain(code(source)) {
            for identifier in identifiers(line, comment) {
                for (part, instead) in
                    parts(identifier).iter().filter_map(|part| Some((part.clone(), instead(&retired, part)?)))
                {
                    let what = format!("`{identifier}`: `{part}` is retired, say {instead}");
                    complaints.push(format!("{}:{number}: {what}", source.path));
                }
            }
        }
    }
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn identifiers_are_found_and_split() {
    assert_eq!(parts("feel_pulse"), ["feel", "pulse"]);
    assert_eq!(parts("FeelPulse2"), ["feel", "pulse2"]);
    assert_eq!(parts("PULSE_BYTES"), ["pulse", "bytes"]);
    assert_eq!(parts("TcpTransport"), ["tcp", "transport"]);
    assert_eq!(identifiers(r#"let a_b = Cd::new("mail {e}"); // post"#, "//"), ["let", "a_b", "Cd", "new"]);
    let retired = BTreeMap::from([("guest", "JoinedNode")]);
    assert_eq!(instead(&retired, "guests"), Some("JoinedNode"));
    assert_eq!(instead(&retired, "guess"), None);
}

#[test]
fn texts_of_python_are_left_out() {
    let text = "\"\"\"One meeting.\"\"\"\na = 1\n\"\"\"\nAnother meeting.\n\"\"\"\nb = 2  # meeting\n".to_owned();
    let source = Source { path: "python/instep/x.py".to_owned(), text };
    assert_eq!(code(&source).map(|(number, _)| number).collect::<Vec<_>>(), [2, 6]);
}
