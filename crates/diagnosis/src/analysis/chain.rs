//! Where chains of waiting begin: the order of findings, and deadlocks.

use super::{Class, Finding};

/// Puts findings where a chain begins before those that follow from them; where none begins, the ranks in the circle are in
/// a deadlock.
pub(super) fn resolve(findings: &mut [Finding]) {
    for index in 0..findings.len() {
        if let Some(circle) = circle_from(findings, index) {
            for at in circle {
                for cause in findings[at].causes.iter_mut().filter(|cause| cause.class == Class::InAnotherCollective) {
                    cause.class = Class::Deadlock;
                }
            }
        }
    }
    findings.sort_by_key(|finding| {
        let follows = |class: Class| matches!(class, Class::InAnotherCollective | Class::Elsewhere | Class::NetworkCut);
        let circle = finding.causes.iter().any(|cause| cause.class == Class::Deadlock);
        // In a circle everybody waits for somebody: the odd one out is the one that most wait for.
        (finding.causes.iter().all(|cause| follows(cause.class)), if circle { finding.causes.len() } else { 0 })
    });
}

/// The findings that wait for each other, beginning with this one; none if some chain from here ends.
fn circle_from(findings: &[Finding], first: usize) -> Option<Vec<usize>> {
    let (mut seen, mut next) = (Vec::new(), vec![first]);
    let mut closes = false;
    while let Some(at) = next.pop() {
        if seen.contains(&at) {
            closes = true;
            continue;
        }
        seen.push(at);
        let others = followed(findings, at)?;
        next.extend(others);
    }
    // A chain that ends in a circle without this one is not this one's.
    (closes && reaches(findings, first)).then_some(seen)
}

/// The findings in which those wait for whom this one waits; none if one of them does not wait in a finding.
fn followed(findings: &[Finding], at: usize) -> Option<Vec<usize>> {
    let waits = |class: Class| matches!(class, Class::InAnotherCollective | Class::Deadlock);
    let causes = &findings[at].causes;
    if causes.is_empty() || causes.iter().any(|cause| !waits(cause.class)) {
        return None;
    }
    let inside = |rank: u32| {
        let others = findings.iter().enumerate();
        others
            .filter(move |(index, other)| *index != at && other.arrived.contains(&rank))
            .map(|(index, _)| index)
            .next()
    };
    causes.iter().map(|cause| inside(cause.rank)).collect()
}

fn reaches(findings: &[Finding], first: usize) -> bool {
    let (mut seen, mut next) = (Vec::new(), followed(findings, first).unwrap_or_default());
    while let Some(at) = next.pop() {
        if at == first {
            return true;
        }
        if !seen.contains(&at) {
            seen.push(at);
            next.extend(followed(findings, at).unwrap_or_default());
        }
    }
    false
}
