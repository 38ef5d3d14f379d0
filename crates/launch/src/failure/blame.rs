//! What a worker's last output says about other ranks: text in, [`Blame`] out.
//!
//! A rank that dies of `PeerLost`, of gloo's "Connection closed by peer" or of a time-out did not fail by itself: another
//! rank ended or did not come. Some of these texts name it, some do not. The texts are those of the backend instep, of
//! gloo, of NCCL and of torch's store as torch 2.1 to 2.15 print them; one that is not known here counts as the worker's
//! own failure.

use serde::{Deserialize, Serialize};

/// What a worker's end says of others, if it was a consequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blame {
    /// What had happened to them.
    pub kind: BlameKind,
    /// Which ranks of the job; empty where the text does not say.
    pub ranks: Vec<usize>,
    /// What the worker was in, "all_reduce" say.
    pub operation: Option<String>,
}

/// What one rank can find out about another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlameKind {
    /// Its connection broke, its process ended, it left or aborted the group.
    Lost,
    /// It did not come in time.
    Late,
    /// It called something else, or the same with another size.
    Disagreement,
}

/// An exception as Python prints it: its type and the first lines of its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exception {
    /// `ValueError: no such file`.
    pub(crate) line: String,
    /// The line and those that follow it, with a space between them.
    text: String,
}

impl Exception {
    /// One of which nothing but its text is known.
    pub(crate) fn bare(message: &str) -> Exception {
        let line = message.lines().next().unwrap_or_default().to_owned();
        Exception { line, text: message.lines().collect::<Vec<_>>().join(" ") }
    }

    pub(crate) fn blames_others(&self, own_rank: usize) -> bool {
        of_text(&self.text, own_rank).is_some()
    }
}

/// How many lines of an exception's text are looked at.
const LINES_OF_AN_EXCEPTION: usize = 6;
const CHAINED: [&str; 2] = [
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
];

/// The exceptions of the last traceback in these lines, the one that came first first; several if they are chained.
pub(crate) fn exceptions<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<Exception> {
    let mut chain: Vec<Exception> = Vec::new();
    let mut in_frames = false;
    let mut room = 0;
    let mut chained = false;
    for line in lines {
        let line = without_rank(line).trim_end();
        // A progress bar may stand before it on the line.
        if line.ends_with("Traceback (most recent call last):") {
            if !std::mem::take(&mut chained) {
                chain.clear();
            }
            (in_frames, room) = (true, 0);
        } else if CHAINED.contains(&line) {
            (chained, room) = (true, 0);
        } else if in_frames {
            // Threads of torch may log in the middle of it.
            if !line.is_empty() && !line.starts_with(' ') && !is_log(line) {
                chain.push(Exception { line: line.to_owned(), text: line.to_owned() });
                (in_frames, room) = (false, LINES_OF_AN_EXCEPTION - 1);
            }
        } else if room > 0 && !is_log(line) && !line.starts_with("Exception raised from") {
            if let Some(last) = chain.last_mut() {
                last.text.push(' ');
                last.text.push_str(line.trim());
            }
            room -= 1;
        } else {
            room = 0;
        }
    }
    chain
}

/// torch begins every line of a traceback with the rank.
fn without_rank(line: &str) -> &str {
    let inner = line.strip_prefix("[rank").and_then(|rest| rest.split_once("]: "));
    match inner {
        Some((digits, rest)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => rest,
        _ => line,
    }
}

/// `[W1116 21:58:28.1 socket.cpp:...]`, `[rank0]:[E...`: what torch logs while the process ends.
fn is_log(line: &str) -> bool {
    let rest = line.strip_prefix("[rank").and_then(|rest| rest.split_once("]:")).map_or(line, |(_, rest)| rest);
    let mut letters = rest.bytes();
    letters.next() == Some(b'[')
        && matches!(letters.next(), Some(b'W' | b'E' | b'I' | b'F'))
        && letters.next().is_some_and(|letter| letter.is_ascii_digit())
}

/// Whether a chain of exceptions on `own_rank` is a consequence. What came first counts: a rank whose own error is
/// followed by a broken connection while it cleans up has failed by itself.
pub(crate) fn of_exceptions(chain: &[Exception], own_rank: usize) -> Option<Blame> {
    let first = of_text(&chain.first()?.text, own_rank)?;
    // A later one may know more: which ranks the store was waited for, say.
    let named = chain.iter().filter_map(|exception| of_text(&exception.text, own_rank)).find(|it| !it.ranks.is_empty());
    Some(named.unwrap_or(first))
}

/// What the last lines say of a process that aborted itself, as NCCL's watchdog does.
pub(crate) fn of_abort(lines: &[String], own_rank: usize) -> Option<Blame> {
    let words = ["Watchdog", "gloo::", "gloo/", "NCCL", "c10::Dist"];
    let telling =
        lines.iter().map(|line| without_rank(line)).filter(|line| words.iter().any(|word| line.contains(word)));
    telling.filter_map(|line| of_text(line, own_rank)).next()
}

/// What one text says.
fn of_text(text: &str, own_rank: usize) -> Option<Blame> {
    let named = instep(text).or_else(|| torch_names(text, own_rank));
    let mut blame = named.or_else(|| gloo(text)).or_else(|| nccl(text)).or_else(|| store(text))?;
    if !blame.ranks.is_empty() && blame.kind != BlameKind::Disagreement {
        // The rank itself is no other rank; if nobody is left, it is its own failure.
        blame.ranks.retain(|rank| *rank != own_rank);
        if blame.ranks.is_empty() {
            return None;
        }
    }
    Some(blame)
}

fn instep(text: &str) -> Option<Blame> {
    let blame = |kind: BlameKind, ranks: Vec<usize>, operation: Option<&str>| {
        let operation = operation.map(name_of_operation).filter(|name| !name.is_empty()).map(str::to_owned);
        Some(Blame { kind, ranks: of_the_job(text, ranks), operation })
    };
    if let Some((_, rest)) = text.split_once("lost rank ")
        && let Some((_, during)) = rest.split_once(" during ").filter(|(rank, _)| rank.contains(" on "))
    {
        return blame(BlameKind::Lost, numbers(rest), Some(during));
    }
    if let Some((before, rest)) = text.split_once(" timed out after ")
        && let Some((_, who)) = rest.split_once(" on rank ").and_then(|(_, rest)| rest.split_once(": "))
        && (who.contains(" had not ") || who.contains("every rank had started it"))
    {
        let operation = before.rsplit_once(": ").map_or(before, |(_, operation)| operation);
        return blame(BlameKind::Late, ranks_of(who), Some(operation));
    }
    if let Some((before, after)) = text.split_once(" but rank ")
        && let Some((_, one)) = before.rsplit_once("rank ").filter(|(_, one)| one.contains(" called "))
        && after.contains(" called ")
    {
        return blame(BlameKind::Disagreement, [numbers(one), numbers(after)].concat(), None);
    }
    if let Some((_, rest)) = text.split_once("the group was aborted by rank ") {
        return blame(BlameKind::Lost, numbers(rest), None);
    }
    if let Some((_, rest)) = text.split_once(" s for rank")
        && let Some((who, _)) = rest.split_once(" to join the group")
    {
        return blame(BlameKind::Late, numbers(who.trim_start_matches(['s', ' '])), None);
    }
    if let Some((_, rest)) = text.split_once("could not connect the group within ")
        && let Some((who, _)) = rest.split_once(" did not arrive")
    {
        return blame(BlameKind::Late, who.split_once("rank ").map_or_else(Vec::new, |(_, who)| numbers(who)), None);
    }
    None
}

/// What torch itself says with names.
fn torch_names(text: &str, own_rank: usize) -> Option<Blame> {
    let blame = |kind: BlameKind, ranks: Vec<usize>, operation: &str| {
        Some(Blame { kind, ranks, operation: (!operation.is_empty()).then(|| operation.to_owned()) })
    };
    if let Some((before, _)) = text.split_once(" failed to pass monitoredBarrier") {
        let who = before.rfind("Rank").map_or("", |start| &before[start..]);
        return blame(BlameKind::Late, ranks_of(who), "monitored_barrier");
    }
    if let Some((_, from)) = text.split_once("but received errors while waiting for send/recv from rank ") {
        return blame(BlameKind::Lost, numbers(from), "monitored_barrier");
    }
    if let Some((_, rest)) = text.split_once("Detected mismatch between collectives on ranks. Rank ") {
        let other = rest.split_once("but Rank ").map(|(_, other)| numbers(other)).unwrap_or_default();
        return blame(BlameKind::Disagreement, [numbers(rest), other].concat(), "");
    }
    if let Some((_, rest)) = text.split_once("DDP expects same model across all ranks, but Rank ") {
        let other = rest.split_once("while rank ").map(|(_, other)| numbers(other)).unwrap_or_default();
        return blame(BlameKind::Disagreement, [numbers(rest), other].concat(), "");
    }
    if text.contains("appears not to match") && text.contains("of the same param in process 0") {
        return blame(BlameKind::Disagreement, vec![0, own_rank], "");
    }
    None
}

fn gloo(text: &str) -> Option<Blame> {
    let gloo = ["gloo/", "gloo::", "Gloo connectFullMesh"];
    if !gloo.iter().any(|word| text.contains(word)) {
        return None;
    }
    let kinds: [(&[&str], BlameKind); 3] = [
        (&["enforce fail", "EnforceNotMet"], BlameKind::Disagreement),
        (&["Timed out", "timed out", "timeout"], BlameKind::Late),
        (
            &[
                "closed by peer",
                "reset by peer",
                "Broken pipe",
                "refused",
                "No route to host",
                "Socket closed",
                "Read error",
            ],
            BlameKind::Lost,
        ),
    ];
    unnamed(text, &kinds)
}

fn nccl(text: &str) -> Option<Blame> {
    let kinds: [(&[&str], BlameKind); 2] = [
        (&["Watchdog caught collective operation timeout", "Timeout at NCCL work"], BlameKind::Late),
        (
            &[
                "ncclRemoteError",
                "NCCL communicator was aborted",
                "Some NCCL operations have failed or timed out",
                "remote process exiting prematurely",
                "remote process exited or there was a network error",
            ],
            BlameKind::Lost,
        ),
    ];
    unnamed(text, &kinds)
}

/// torch's store: where ranks meet before they are connected.
fn store(text: &str) -> Option<Blame> {
    let of_the_store = ["DistStoreError", "DistNetworkError", "TCPStore", "SocketImpl"];
    let bare = ["RuntimeError: Connection reset by peer", "RuntimeError: Broken pipe", "RuntimeError: Socket Timeout"];
    if !of_the_store.iter().any(|word| text.contains(word)) && !bare.iter().any(|start| text.starts_with(start)) {
        return None;
    }
    let kinds: [(&[&str], BlameKind); 2] = [
        (&["imed out", "timeout", "Timeout"], BlameKind::Late),
        (
            &["reset by peer", "Broken pipe", "likely closed", "ailed to recv", "recvValue failed", "sendBytes failed"],
            BlameKind::Lost,
        ),
    ];
    unnamed(text, &kinds)
}

fn unnamed(text: &str, kinds: &[(&[&str], BlameKind)]) -> Option<Blame> {
    let (_, kind) = kinds.iter().find(|(words, _)| words.iter().any(|word| text.contains(word)))?;
    Some(Blame { kind: *kind, ranks: Vec::new(), operation: None })
}

/// Ranks of a group as ranks of the job; the backend instep adds "ranks 4, 6 of the job" for groups of some ranks.
fn of_the_job(text: &str, ranks: Vec<usize>) -> Vec<usize> {
    let listed = text.split_once(" of the job)").and_then(|(before, _)| before.rsplit_once("ranks "));
    let Some(listed) = listed.map(|(_, list)| numbers(list)) else { return ranks };
    ranks.into_iter().filter_map(|rank| listed.get(rank).copied()).collect()
}

/// `rank 1`, `ranks 1, 2`, `Rank 3`: the numbers behind the word.
fn ranks_of(text: &str) -> Vec<usize> {
    let rest = text.strip_prefix("rank").or_else(|| text.strip_prefix("Rank"));
    rest.map(|rest| numbers(rest.trim_start_matches(['s', ' ']))).unwrap_or_default()
}

/// The numbers at the beginning of a text, with commas between them.
fn numbers(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(number) = rest[..digits].parse() else { return found };
        found.push(number);
        let Some(next) = rest[digits..].strip_prefix(", ") else { return found };
        rest = next;
    }
}

/// `all_reduce(4 × float32, sum) (operation 5)` is an all_reduce.
fn name_of_operation(text: &str) -> &str {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
