//! What the kernel says of a process.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;

/// From `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R` running, `S` asleep, `D` in the kernel and not to be interrupted, `T` stopped, `t` traced, `Z` dead, not yet
    /// taken leave of.
    pub state: char,
    /// Who started it, or took it over.
    pub parent: u32,
    /// The session it belongs to.
    pub session: u32,
    /// The time that its threads have run, in ticks.
    pub ran: u64,
    /// When it started, in ticks since boot.
    pub started: u64,
}

/// Of every Linux that programs see.
const TICKS_PER_SECOND: u64 = 100;

/// Looks a process up; none if there is no such.
pub fn stat(process: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// How a process ends that still has its number: what `wait` will tell of it, or nothing if it goes on, or ends with 0.
pub fn exit_under_way(process: u32) -> Option<i32> {
    exit_status(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// The 52nd field. Of a stopped process it is the signal that has stopped it, which ends none.
fn exit_status(text: &str) -> Option<i32> {
    let (_, rest) = text.rsplit_once(')')?;
    let status: i32 = rest.split_ascii_whitespace().nth(49)?.parse().ok()?;
    let stopping = [Signal::SIGSTOP, Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU];
    let stopped = stopping.iter().any(|signal| *signal as i32 == status);
    (status > 0 && !stopped).then_some(status)
}

/// Whether it is the process that had started then: numbers are used again.
pub fn is_alive(process: u32, started: u64) -> bool {
    stat(process).is_some_and(|stat| stat.started == started && !matches!(stat.state, 'Z' | 'X'))
}

/// How long the processes of its session have run, those that live now: a rank computes in those that it has started, too.
pub fn session_ran(process: u32) -> Duration {
    let session = stat(process).map(|own| own.session);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ticks: u64 = numbers.filter_map(stat).filter(|one| Some(one.session) == session).map(|one| one.ran).sum();
    Duration::from_millis(ticks.saturating_mul(1000 / TICKS_PER_SECOND))
}

/// In which function of the kernel its main thread waits, where the kernel says so.
pub fn waits_in(process: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{process}/wchan")).ok()?;
    let name = text.trim();
    let plain = name.len() <= 60 && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_.".contains(letter));
    (plain && !name.is_empty() && name != "0").then(|| name.to_owned())
}

/// The name of a program may hold spaces and brackets: what counts stands behind the last bracket.
fn parse(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    Some(Stat {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        session: fields.nth(1)?.parse().ok()?,
        ran: {
            let (user, system): (u64, u64) = (fields.nth(7)?.parse().ok()?, fields.next()?.parse().ok()?);
            user.saturating_add(system)
        },
        started: fields.nth(6)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::{Stat, exit_status, is_alive, parse, session_ran, stat};
    use proptest::prelude::{any, proptest};
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn how_a_process_ends_is_its_last_field() {
        let stat = |status: i32| format!("7 (a) b) R {}{status}", "1 ".repeat(48));
        for (status, expected) in [(0, None), (9, Some(9)), (139, Some(139)), (256, Some(256)), (19, None), (20, None)]
        {
            assert_eq!(exit_status(&stat(status)), expected);
        }
        assert_eq!(exit_status("7 (a) R 1 2"), None);
    }

    #[test]
    fn a_name_may_look_like_fields() {
        let text = "7 (a) R 1 (b) S 12 8 9 0 -1 4194560 1 0 0 0 31 11 5 6 20 0 1 0 83 2 3";
        assert_eq!(parse(text), Some(Stat { state: 'S', parent: 12, session: 9, ran: 42, started: 83 }));
        assert_eq!(parse("7 (cat"), None);
    }

    #[test]
    fn this_process_is_alive() {
        let own = stat(std::process::id()).unwrap();
        assert!(is_alive(std::process::id(), own.started));
        assert!(!is_alive(std::process::id(), own.started + 1) && !is_alive(u32::MAX, own.started));
    }

    #[test]
    fn what_a_rank_has_started_counts_as_the_rank() {
        let spin = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let script = format!("({spin}; echo; exec sleep 60) & echo $!; wait");
        // In a session of its own, as ranks are.
        let mut rank = Command::new("setsid").args(["sh", "-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(rank.stdout.take().unwrap()).lines();
        let child: u32 = lines.next().unwrap().unwrap().parse().unwrap();
        lines.next().unwrap().unwrap();
        let ran = Duration::from_millis(10 * stat(child).unwrap().ran);
        assert!(ran > Duration::ZERO && session_ran(rank.id()) >= ran, "{ran:?}");
        Command::new("kill").arg(child.to_string()).status().unwrap();
        rank.wait().unwrap();
        assert_eq!(session_ran(u32::MAX), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in any::<String>()) {
            let _ = parse(&text);
        }
    }
}
