//! What an entrypoint means: which program runs, and whether it is our launcher's.
//!
//! | entrypoint | runs as |
//! |---|---|
//! | `instep run …` | as it stands, with the nodes and slots of the trial as its defaults |
//! | `train.py …`, a file of the context | `instep run train.py …`: one process for each slot |
//! | `module:Class` | Determined's launcher of Trial classes |
//! | a part of instep, such as a shell's server | the agent's own program |
//! | anything else | as it stands, once on every machine, as Determined does it |

use std::path::Path;

use instep_api::link::Entrypoint;

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Whether the launcher's defaults are to be set: our launcher starts the ranks.
    pub launcher: bool,
}

/// Decides what runs; `programs` is the folder with the agent's own, `is_file` tells whether the context has a file.
pub fn program(entrypoint: &Entrypoint, programs: &Path, is_file: impl Fn(&Path) -> bool) -> Program {
    let is_script = |word: &str| word.ends_with(".py") && is_file(Path::new(word));
    match entrypoint {
        Entrypoint::Shell(text) if is_trial_class(text.trim()) => Program {
            words: ["python3", "-m", "determined.launch.torch_distributed", "--", "--trial", text.trim()]
                .map(str::to_owned)
                .to_vec(),
            launcher: false,
        },
        Entrypoint::Shell(text) => {
            let first = first_word(text);
            let script = is_script(first);
            let text = if script { format!("instep run {}", text.trim_start()) } else { text.clone() };
            Program { launcher: script || is_ours(first), words: vec!["sh".to_owned(), "-c".to_owned(), text] }
        }
        Entrypoint::Arguments(words) => {
            let first = words.first().map(String::as_str).unwrap_or_default();
            let script = is_script(first);
            let before = if script { vec!["instep".to_owned(), "run".to_owned()] } else { Vec::new() };
            Program { launcher: script || is_ours(first), words: [before, words.clone()].concat() }
        }
        Entrypoint::Own { instep } => {
            let own = programs.join("instep").to_string_lossy().into_owned();
            Program { launcher: false, words: [vec![own], instep.clone()].concat() }
        }
    }
}

/// `module.submodule:Class`
fn is_trial_class(text: &str) -> bool {
    let word = |part: &str, also: &str| {
        !part.is_empty() && part.chars().all(|sign| sign.is_ascii_alphanumeric() || sign == '_' || also.contains(sign))
    };
    text.split_once(':').is_some_and(|(module, class)| word(module, ".") && word(class, ""))
}

fn is_ours(first: &str) -> bool {
    first == "instep" || first.ends_with("/instep")
}

/// The program that a line for a shell starts, behind `exec` and settings of variables.
fn first_word(text: &str) -> &str {
    let is_setting = |word: &str| {
        word.split_once('=').is_some_and(|(name, _)| {
            !name.is_empty() && name.chars().all(|sign| sign.is_ascii_alphanumeric() || sign == '_')
        })
    };
    text.split_whitespace().find(|word| *word != "exec" && !is_setting(word)).unwrap_or_default()
}

/// The launcher's defaults for this machine's part of a trial.
pub fn launcher_defaults(nodes: &Nodes<'_>) -> Vec<(&'static str, String)> {
    let mut defaults = vec![
        ("PET_NNODES", nodes.addresses.len().max(1).to_string()),
        ("PET_NPROC_PER_NODE", nodes.slots.max(1).to_string()),
        // So that the log of the task knows whose line it is.
        ("PET_TEE", "3".to_owned()),
        ("PET_LOG_LINE_PREFIX_TEMPLATE", "[rank=${rank}] ".to_owned()),
        ("PET_LOG_DIR", nodes.logs.to_string_lossy().into_owned()),
    ];
    if nodes.addresses.len() > 1 {
        // Ranks follow the machines' ranks, as those of Determined's launchers do.
        defaults.extend([
            ("PET_NODE_RANK", nodes.rank.to_string()),
            ("PET_RDZV_BACKEND", "static".to_owned()),
            ("PET_RDZV_ID", nodes.allocation.to_owned()),
            ("PET_MASTER_ADDR", nodes.addresses[0].clone()),
            ("PET_MASTER_PORT", nodes.port.to_owned()),
            ("PET_LOCAL_ADDR", nodes.addresses.get(nodes.rank).cloned().unwrap_or_default()),
        ]);
        defaults.extend(nodes.job_token.map(|token| ("INSTEP_JOB_TOKEN", token.to_owned())));
    }
    defaults
}

/// Who takes part in a trial.
#[derive(Debug)]
pub struct Nodes<'a> {
    /// Of all machines, by rank.
    pub addresses: &'a [String],
    /// Of this one.
    pub rank: usize,
    /// Of this one.
    pub slots: usize,
    /// Where the launchers meet, on the first machine.
    pub port: &'a str,
    /// The name of the meeting.
    pub allocation: &'a str,
    /// By which the launchers know each other, if the master gave them one.
    pub job_token: Option<&'a str>,
    /// Where the launcher keeps what ranks write.
    pub logs: &'a Path,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[&str]) -> Vec<String> {
        text.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn entrypoints_mean_what_the_table_says() {
        let shell = |text: &str| Entrypoint::Shell(text.to_owned());
        let list = |text: &[&str]| Entrypoint::Arguments(words(text));
        let trial = ["python3", "-m", "determined.launch.torch_distributed", "--", "--trial", "model_def:T"];
        let own = Entrypoint::Own { instep: words(&["sshd"]) };
        let cases: [(Entrypoint, &[&str], bool); 10] = [
            (own, &["/programs/instep", "sshd"], false),
            (shell("python3 x.py"), &["sh", "-c", "python3 x.py"], false),
            (shell("model_def:T"), &trial, false),
            (shell("instep run x.py -a"), &["sh", "-c", "instep run x.py -a"], true),
            (shell("A=1 exec instep run x.py"), &["sh", "-c", "A=1 exec instep run x.py"], true),
            (shell("train.py --lr 1"), &["sh", "-c", "instep run train.py --lr 1"], true),
            (shell("gone.py --lr 1"), &["sh", "-c", "gone.py --lr 1"], false),
            (shell("cd x && instep run y"), &["sh", "-c", "cd x && instep run y"], false),
            (list(&["train.py", "--lr", "1 2"]), &["instep", "run", "train.py", "--lr", "1 2"], true),
            (list(&["/opt/instep", "run", "x"]), &["/opt/instep", "run", "x"], true),
        ];
        for (entrypoint, expected, launcher) in cases {
            let found = program(&entrypoint, Path::new("/programs"), |path| path == Path::new("train.py"));
            let expected = Program { words: words(expected), launcher };
            assert_eq!(found, expected, "{entrypoint:?}");
        }
    }

    #[test]
    fn several_machines_meet_at_the_first() {
        let addresses = words(&["10.0.0.1", "fd00::2"]);
        let nodes = Nodes {
            addresses: &addresses,
            rank: 1,
            slots: 4,
            port: "29400",
            allocation: "7.u.1",
            job_token: Some("secret"),
            logs: Path::new("/l"),
        };
        let defaults = launcher_defaults(&nodes);
        assert!(defaults.contains(&("PET_MASTER_ADDR", "10.0.0.1".to_owned())), "{defaults:?}");
        assert!(defaults.contains(&("PET_LOCAL_ADDR", "fd00::2".to_owned())), "{defaults:?}");
        assert!(defaults.contains(&("PET_NODE_RANK", "1".to_owned())), "{defaults:?}");
        assert!(defaults.contains(&("INSTEP_JOB_TOKEN", "secret".to_owned())), "{defaults:?}");
        let alone = launcher_defaults(&Nodes { addresses: &addresses[..1], rank: 0, slots: 0, ..nodes });
        assert_eq!(alone[..2], [("PET_NNODES", "1".to_owned()), ("PET_NPROC_PER_NODE", "1".to_owned())]);
        assert!(!alone.iter().any(|(name, _)| ["PET_MASTER_ADDR", "INSTEP_JOB_TOKEN"].contains(name)), "{alone:?}");
    }
}
