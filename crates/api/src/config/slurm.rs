//! The section `slurm`: what Slurm is told of jobs besides what their pool says, and which of `sbatch`'s options can be given.

use serde::Serialize;

use super::reader::{Fields, Mistakes, text_at};

/// Options that only the master gives: with others, the job would not be the one that it waits for. Whatever is cut short
/// to the beginning of one of these is refused, too: `sbatch` would complete it.
const OF_THE_MASTER: &[&str] = &[
    "array",
    "batch",
    "chdir",
    "clusters",
    "comment",
    "error",
    "export",
    "export-file",
    "get-user-env",
    "gid",
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "help",
    "hold",
    "ignore-pbs",
    "input",
    "job-name",
    "no-kill",
    "no-requeue",
    "nodefile",
    "nodes",
    "ntasks",
    "ntasks-per-core",
    "ntasks-per-gpu",
    "ntasks-per-node",
    "ntasks-per-socket",
    "open-mode",
    "output",
    "overcommit",
    "parsable",
    "quiet",
    "requeue",
    "signal",
    "test-only",
    "uid",
    "usage",
    "verbose",
    "version",
    "wait",
    "wait-all-nodes",
    "wrap",
];

/// Options that everybody may give: what a job needs, and whom it is charged to.
const OF_USERS: &[&str] = &[
    "account",
    "begin",
    "constraint",
    "contiguous",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "cpus-per-gpu",
    "cpus-per-task",
    "deadline",
    "delay-boot",
    "dependency",
    "distribution",
    "exclude",
    "exclusive",
    "gres",
    "gres-flags",
    "hint",
    "licenses",
    "mail-type",
    "mem",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "nice",
    "nodelist",
    "oversubscribe",
    "power",
    "prefer",
    "profile",
    "qos",
    "reservation",
    "sockets-per-node",
    "spread-job",
    "switches",
    "thread-spec",
    "threads-per-core",
    "time",
    "time-min",
    "tmp",
    "use-min-nodes",
    "wckey",
];

/// Bytes of an option.
const LONGEST: usize = 4096;

/// Whose option it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Giver {
    /// Somebody who submits a job.
    User,
    /// Whoever runs the master, for a whole pool.
    Administrator,
}

/// What is wrong with an option of `sbatch`, if it cannot be given.
pub fn sbatch_objection(option: &str, giver: Giver) -> Option<String> {
    let Some(long) = option.strip_prefix("--") else {
        return Some(format!(
            "`{option}` must be an option in its long form, such as --account=physics or --exclusive"
        ));
    };
    let name = long.split('=').next().unwrap_or_default();
    if option.len() > LONGEST || option.chars().any(char::is_control) {
        return Some(format!("the value of --{name} is longer than {LONGEST} bytes, or has control characters"));
    }
    if name.contains(char::is_whitespace) {
        return Some(format!("`{option}` must be one option, with `=` before its value"));
    }
    let is_of_users = OF_USERS.contains(&name);
    if !is_of_users && (name.is_empty() || OF_THE_MASTER.iter().any(|known| known.starts_with(name))) {
        return Some(format!("--{name} is given by the master, which starts the job and looks for it"));
    }
    let value = option.split_once('=').map_or("", |(_, value)| value);
    match giver {
        Giver::User if matches!(name, "nodelist" | "exclude") && value.contains('/') => {
            Some(format!("--{name} takes names of nodes here, and no file"))
        }
        Giver::User if name == "dependency" && value.to_ascii_lowercase().contains("expand") => {
            Some("--dependency=expand:… is for jobs of one's own, and all jobs here are the master's".to_owned())
        }
        Giver::User if name == "gres" && value.split(',').any(is_of_gpus) => {
            Some("GPUs follow from the slots of the task; `gpu_type` chooses their kind".to_owned())
        }
        Giver::User if !is_of_users => Some(format!(
            "--{name} can be given by the administrator of the master alone; experiments may give --{}",
            OF_USERS.join(", --")
        )),
        Giver::User | Giver::Administrator => None,
    }
}

/// The section.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields are Determined's own")]
pub struct SlurmSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots_per_node: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sbatch_args: Vec<String>,
}

impl SlurmSection {
    pub(super) fn read(mut fields: Fields<'_>) -> SlurmSection {
        let section = SlurmSection {
            slots_per_node: fields.count("slots_per_node", 1),
            gpu_type: gpu_type(&mut fields),
            sbatch_args: fields
                .list("sbatch_args")
                .into_iter()
                .filter_map(|(path, value)| option(&path, &value, fields.mistakes()))
                .collect(),
        };
        fields.finish();
        section
    }

    /// Whether it says anything.
    pub fn is_empty(&self) -> bool {
        *self == SlurmSection::default()
    }
}

/// Whether Slurm may call a kind of GPU so.
pub fn is_gpu_type(name: &str) -> bool {
    let proper = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    (1..=100).contains(&name.len()) && name.chars().all(proper)
}

fn gpu_type(fields: &mut Fields<'_>) -> Option<String> {
    let name = fields.text("gpu_type")?;
    if is_gpu_type(&name) {
        return Some(name);
    }
    fields.wrong("gpu_type", format!("`{name}` is not the name of a kind of GPU, such as a100"));
    None
}

fn option(path: &str, value: &serde_json::Value, mistakes: &Mistakes) -> Option<String> {
    let option = text_at(path, value, mistakes)?;
    match sbatch_objection(&option, Giver::User) {
        None => Some(option),
        Some(why) => {
            mistakes.add(path, why);
            None
        }
    }
}

/// Whether a part of `--gres` asks for GPUs.
fn is_of_gpus(part: &str) -> bool {
    let part = part.trim().to_ascii_lowercase();
    part.trim_start_matches("gres:").trim_start_matches("gres/").starts_with("gpu")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn options_that_would_make_another_job_are_refused() {
        use Giver::{Administrator, User};
        for (option, giver, said) in [
            ("--account=physics", User, None),
            ("--exclusive", User, None),
            ("--time=1:00:00", User, None),
            ("--array=1-3", User, Some("given by the master")),
            ("--array=1-3", Administrator, Some("given by the master")),
            ("--arr=1-3", Administrator, Some("given by the master")),
            ("--output=/dev/null", Administrator, Some("given by the master")),
            ("--wrap=id", User, Some("given by the master")),
            ("--uid=0", Administrator, Some("given by the master")),
            ("--n=2", Administrator, Some("given by the master")),
            ("--", Administrator, Some("given by the master")),
            ("--propagate=ALL", User, Some("by the administrator of the master alone")),
            ("--propagate=ALL", Administrator, None),
            ("--partition=all", User, Some("by the administrator of the master alone")),
            ("-A physics", User, Some("long form")),
            ("physics", Administrator, Some("long form")),
            ("--account physics", User, Some("one option")),
            ("--comment", Administrator, Some("given by the master")),
            ("--account=a\nb", User, Some("control characters")),
            ("--nodelist=n[1-3],n7", User, None),
            ("--nodelist=/dev/zero", User, Some("no file")),
            ("--exclude=./hosts", User, Some("no file")),
            ("--dependency=afterok:12", User, None),
            ("--dependency=expand:12", User, Some("one's own")),
            ("--dependency=Expand:12", User, Some("one's own")),
            ("--gres=craynetwork:1", User, None),
            ("--gres=license:1,GPU:8", User, Some("slots of the task")),
            ("--gres=gpu:8", Administrator, None),
            ("--mail-user=a@example.org", User, Some("by the administrator")),
        ] {
            let found = sbatch_objection(option, giver);
            match said {
                None => assert_eq!(found, None, "{option}"),
                Some(said) => assert!(found.as_deref().is_some_and(|why| why.contains(said)), "{option}: {found:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn what_may_be_given_is_one_option_that_is_not_the_masters(text in "(-{0,2}[a-z-]{0,14}[= ]?.{0,8})") {
            if sbatch_objection(&text, Giver::Administrator).is_none() {
                let name = text.strip_prefix("--").unwrap().split('=').next().unwrap();
                prop_assert!(!OF_THE_MASTER.contains(&name) && !text.contains('\n') && !name.contains(' '));
            }
            if sbatch_objection(&text, Giver::User).is_none() {
                prop_assert!(sbatch_objection(&text, Giver::Administrator).is_none());
            }
        }
    }
}
