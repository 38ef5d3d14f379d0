//! Words that a crate has retired, because the field has one for the same thing: they must not come back as identifiers.
//!
//! An identifier is split at underscores and capitals (`feel_pulse`, `FeelPulse`, `PULSE_BYTES`), and no part of it may be a
//! retired word. Comments and strings are free: wire formats, environment variables and error texts keep what users have.
//! A word that is retired in one crate may be right in another: `post` and `route` are axum's words in the master.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What a crate does not say any more, and what it says instead. Singular and plural are two words.
struct Glossary {
    /// The folder below `crates`.
    krate: &'static str,
    retired: &'static [(&'static str, &'static str)],
    /// Folders and files, from the crate's, that are not held to it.
    except: &'static [&'static str],
}

const GLOSSARIES: &[Glossary] = &[
    Glossary {
        krate: "agent",
        retired: &[
            ("bury", "reap"),
            ("farewell", "shutdown"),
            ("hear", "receive"),
            ("meeting", "rendezvous"),
            ("obey", "apply"),
            ("parted", "Disconnected"),
            ("surroundings", "Host"),
        ],
        except: &[],
    },
    Glossary {
        krate: "cli",
        retired: &[
            ("bury", "reap"),
            ("facts", "what they describe"),
            ("misunderstood", "invalid"),
            ("obey", "apply"),
            ("standing", "state"),
            ("stranger", "what is there"),
        ],
        except: &[],
    },
    Glossary {
        krate: "client",
        retired: &[("beat", "heartbeat"), ("patience", "timeout"), ("patiently", "with retries"), ("tell", "notify")],
        except: &[],
    },
    Glossary {
        krate: "collectives",
        retired: &[
            ("absent", "late"),
            ("alarm", "AbortFlag"),
            ("bury", "reap"),
            ("carrier", "ProgressThread"),
            ("condemn", "abort"),
            ("condemned", "aborted"),
            ("deaf", "accept_paused"),
            ("diary", "FlightRecorder"),
            ("door", "listener"),
            ("ear", "Decoder"),
            ("engine", "transport"),
            ("errand", "request"),
            ("errands", "requests"),
            ("farewell", "shutdown"),
            ("fate", "Abort"),
            ("flow", "Pipeline"),
            ("greet", "hello"),
            ("greeting", "hello"),
            ("hear", "advance, feed or receive"),
            ("heard", "received"),
            ("introduce", "handshake"),
            ("introduction", "handshake"),
            ("lane", "channel"),
            ("lanes", "channels"),
            ("mail", "p2p"),
            ("meet", "connect"),
            ("meeting", "bootstrap"),
            ("met", "connected"),
            ("mixed", "hierarchical"),
            ("overhear", "check_for_late_abort"),
            ("plan", "schedule or partition"),
            ("plans", "schedules"),
            ("post", "matching"),
            ("pulse", "heartbeat"),
            ("route", "schedule"),
            ("routes", "peers"),
            ("seat", "membership"),
            ("streams", "tcp"),
            ("tell", "broadcast_abort"),
            ("told", "sent"),
            ("trouble", "error"),
            ("truth", "Bool"),
            ("verdict", "AbortReason"),
            ("verdicts", "reasons"),
            ("watch", "context or monitor"),
            ("wishes", "preferences"),
        ],
        except: &["examples/versus_mpi"],
    },
    Glossary {
        krate: "database",
        retired: &[("bury", "reap"), ("stand", "update_state"), ("standing", "state")],
        except: &[],
    },
    Glossary { krate: "diagnosis", retired: &[("gather", "collect"), ("verdict", "analysis")], except: &[] },
    Glossary {
        krate: "launch",
        retired: &[
            ("bury", "reap"),
            ("contact", "query"),
            ("door", "listener"),
            ("fate", "outcome"),
            ("guest", "EncryptedConnection"),
            ("guests", "encrypted connections"),
            ("introduce", "handshake"),
            ("introduced", "HandshakeReply"),
            ("leaderless", "failover"),
            ("lineage", "epoch"),
            ("meeting", "rendezvous"),
            ("obey", "apply"),
            ("parted", "Disconnected"),
            ("patience", "timeout"),
            ("pledge", "vote"),
            ("post", "shared"),
            ("pulse", "heartbeat"),
            ("scout", "probe"),
            ("seat", "rank"),
            ("standing", "leadership"),
            ("stranger", "what is there"),
            ("verdict", "HangDetector"),
            ("verdicts", "HangDetector"),
        ],
        except: &[],
    },
    Glossary {
        krate: "master",
        retired: &[
            ("bury", "reap"),
            ("conformity", "what is checked"),
            ("dismiss", "remove"),
            ("door", "LeaderProxy"),
            ("happening", "event"),
            ("measures", "metrics"),
            ("obey", "apply"),
            ("placing", "scheduler"),
            ("singles", "commands"),
            ("wishes", "requests"),
        ],
        except: &[],
    },
    Glossary {
        krate: "policy",
        retired: &[
            ("guest", "JoinedNode"),
            ("lineage", "epoch"),
            ("places", "ranks"),
            ("pledge", "vote"),
            ("pledges", "votes"),
            ("singles", "commands"),
            ("standing", "state or leadership"),
            ("succession", "election"),
            ("verdict", "outcome"),
        ],
        except: &[],
    },
    Glossary {
        krate: "python",
        retired: &[
            ("diary", "flight recorder"),
            ("fate", "abort"),
            ("lanes", "channels"),
            ("streams", "tcp"),
            ("verdict", "abort reason"),
        ],
        except: &[],
    },
    Glossary { krate: "recorder", retired: &[("ask", "stack_request"), ("diary", "flight recorder")], except: &[] },
];

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

/// The identifiers of a line of Rust; comments and what stands in strings are left out.
fn identifiers(line: &str) -> Vec<&str> {
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
        if !in_string && line[index..].starts_with("//") {
            break;
        }
        previous = character;
    }
    found
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("a folder of the project can be listed").path()) {
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn retired_words_do_not_come_back() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut complaints = Vec::new();
    for Glossary { krate, retired, except } in GLOSSARIES {
        let (folder, retired) = (crates.join(krate), retired.iter().copied().collect::<BTreeMap<_, _>>());
        let mut files = Vec::new();
        ["src", "tests", "examples", "benches"].iter().for_each(|part| rust_files(&folder.join(part), &mut files));
        assert!(!files.is_empty(), "there is no crate {krate}");
        files.sort();
        for path in files {
            let name = path.strip_prefix(&folder).expect("it lies below").to_string_lossy().into_owned();
            if except.iter().any(|except| name.starts_with(except)) {
                continue;
            }
            // A file's name is an identifier, too: that of its module.
            let text = fs::read_to_string(&path).expect("a file of the project can be read");
            let module = name.trim_end_matches(".rs").replace('/', " ");
            for (number, line) in std::iter::once(module.as_str()).chain(text.lines()).enumerate() {
                for identifier in identifiers(line) {
                    for part in parts(identifier) {
                        if let Some(instead) = retired.get(part.as_str()) {
                            complaints.push(format!(
                                "crates/{krate}/{name}:{number}: `{identifier}`: `{part}` is retired, say {instead}"
                            ));
                        }
                    }
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
    assert_eq!(identifiers(r#"let a_b = Cd::new("mail {e}"); // post"#), ["let", "a_b", "Cd", "new"]);
}
