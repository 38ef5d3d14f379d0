//! What Slurm's commands print.

use instep_policy::engine::{JobId, Phase, Seen};

/// What a comment of a job begins with that a master submitted.
const MARK: &str = "instep";
/// What `squeue` is asked for; the comment last, which may have any letters.
pub(super) const FORMAT: &str = "%i|%T|%r|%N|%k";
const FIELDS: usize = 5;
/// The reason of a job whose batch script ended with a code.
const EXIT_CODE: &str = "NonZeroExitCode";
/// Characters of a reason that are kept.
const LONGEST_REASON: usize = 500;

/// The comment by which a job is known again.
pub(super) fn comment(cluster: &str, allocation: &str) -> String {
    format!("{MARK}:{cluster}:{allocation}")
}

fn allocation_of<'a>(cluster: &str, comment: &'a str) -> Option<&'a str> {
    let rest = comment.trim_end().strip_prefix(MARK)?.strip_prefix(':')?;
    rest.strip_prefix(cluster)?.strip_prefix(':').filter(|allocation| !allocation.is_empty())
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The job that `sbatch --parsable` has submitted; sites may say something before.
pub(super) fn submitted(output: &str) -> Option<JobId> {
    let line = |line: &str| number(line.trim().split(';').next()?);
    output.lines().rev().find_map(line).map(|number| JobId(number.to_string()))
}

/// The jobs of a cluster that `squeue` has listed, the oldest first.
pub(super) fn listed(cluster: &str, output: &str) -> Vec<Seen> {
    let mut found: Vec<(u64, Seen)> = output.lines().filter_map(|line| job(cluster, line)).collect();
    found.sort_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, seen)| seen).collect()
}

fn job(cluster: &str, line: &str) -> Option<(u64, Seen)> {
    let mut fields = line.splitn(FIELDS, '|');
    let (id, state, reason, nodes) = (fields.next()?.trim(), fields.next()?, fields.next()?, fields.next()?);
    let allocation = allocation_of(cluster, fields.next()?)?.to_owned();
    let number = number(id)?;
    let phase = phase(state.trim(), readable(reason), readable(nodes));
    Some((number, Seen { job: JobId(number.to_string()), allocation, phase }))
}

fn readable(text: &str) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.trim().chars().take(LONGEST_REASON).map(plain).collect()
}

/// How far a job in one of Slurm's states is. A state that nobody knows here is none of an end.
fn phase(state: &str, reason: String, nodes: String) -> Phase {
    match state {
        "PENDING" | "CONFIGURING" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD" | "RESV_DEL_HOLD" | "SPECIAL_EXIT" => {
            Phase::Waiting { reason }
        }
        "COMPLETING" => Phase::Ending,
        "COMPLETED" => Phase::Ended { why: "COMPLETED".to_owned(), in_order: true },
        // An agent ends with the code of what it ran, which the master knows.
        "FAILED" if reason == EXIT_CODE => Phase::Ended { why: format!("FAILED ({reason})"), in_order: true },
        "BOOT_FAIL" | "CANCELLED" | "DEADLINE" | "FAILED" | "NODE_FAIL" | "OUT_OF_MEMORY" | "PREEMPTED" | "REVOKED"
        | "TIMEOUT" => {
            let more = if reason.is_empty() || reason == "None" { String::new() } else { format!(" ({reason})") };
            Phase::Ended { why: format!("{state}{more}"), in_order: false }
        }
        _ => Phase::Running { nodes },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_number_of_a_submitted_job_is_found() {
        for (output, expected) in [
            ("1234\n", Some("1234")),
            ("1234;cluster\n", Some("1234")),
            ("Welcome to the cluster!\n007\n", Some("7")),
            ("Submitted batch job\n", None),
            ("", None),
            ("99999999999999999999999\n", None),
        ] {
            assert_eq!(submitted(output), expected.map(|id| JobId(id.to_owned())), "{output:?}");
        }
    }

    #[test]
    fn jobs_of_this_cluster_are_told_from_others() {
        let output = "12|RUNNING|None|n[1-2]|instep:c:5.t.1\n\
                      9|PENDING|Resources||instep:c:6.t.1\n\
                      10|PENDING|Priority||instep:other:6.t.1\n\
                      11|PENDING|Priority||somebody's | own\n\
                      11_3|PENDING|Priority||instep:c:7.t.1\n\
                      13|TIMEOUT|TimeLimit|n1|instep:c:8.t.1\n\
                      14|SIGNALING|None|n1|instep:c:9.t.1\n\
                      15|COMPLETED|None|n1|instep:c:9.t.2\n\
                      16|FAILED|NonZeroExitCode|n1|instep:c:9.t.3\n\
                      17|FAILED|RaisedSignal:9(Killed)|n1|instep:c:9.t.4\n\
                      garbage\n";
        let seen = |job: &str, allocation: &str, phase| Seen {
            job: JobId(job.to_owned()),
            allocation: allocation.to_owned(),
            phase,
        };
        let running = |nodes: &str| Phase::Running { nodes: nodes.to_owned() };
        let ended = |why: &str, in_order| Phase::Ended { why: why.to_owned(), in_order };
        let expected = [
            seen("9", "6.t.1", Phase::Waiting { reason: "Resources".to_owned() }),
            seen("12", "5.t.1", running("n[1-2]")),
            seen("13", "8.t.1", ended("TIMEOUT (TimeLimit)", false)),
            seen("14", "9.t.1", running("n1")),
            seen("15", "9.t.2", ended("COMPLETED", true)),
            seen("16", "9.t.3", ended("FAILED (NonZeroExitCode)", true)),
            seen("17", "9.t.4", ended("FAILED (RaisedSignal:9(Killed))", false)),
        ];
        assert_eq!(listed("c", output), expected);
    }

    proptest! {
        #[test]
        fn any_output_is_read(text in "(\\PC|\n|\\||[0-9]){0,200}") {
            submitted(&text);
            for seen in listed("c", &text) {
                prop_assert!(seen.job.0.parse::<u64>().is_ok() && !seen.allocation.is_empty());
            }
        }

        #[test]
        fn what_a_comment_says_is_found_again(
            id: u64, reason in "[^|\n\r]{0,20}", cluster in "[a-z0-9-]{1,36}", allocation in "[A-Za-z0-9.-]{1,60}",
        ) {
            let line = format!("{id}|PENDING|{reason}|(null)|{}\n", comment(&cluster, &allocation));
            let found = listed(&cluster, &line);
            prop_assert_eq!(&found[0].allocation, &allocation);
            prop_assert_eq!(&found[0].job.0, &id.to_string());
            let other = format!("{cluster}x");
            prop_assert!(listed(&other, &line).is_empty());
        }
    }
}
