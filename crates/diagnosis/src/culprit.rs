//! Which rank keeps all others waiting, for those who act on it: a single one, or none.

use crate::analysis::{Cause, Class, Diagnosis, Finding};

/// The one rank that holds up what is under way without waiting for anybody itself; none if there are several, or if it
/// cannot be told from here.
pub fn culprit(diagnosis: &Diagnosis) -> Option<&Cause> {
    let under_way = |finding: &&Finding| finding.operation.as_ref().is_some_and(|operation| !operation.failed);
    let causes: Vec<&Cause> =
        diagnosis.findings.iter().filter(under_way).flat_map(|finding| finding.causes.iter()).collect();
    let alone = |cause: &&&Cause| match cause.class {
        Class::Stopped | Class::InUserCode | Class::WaitingForData | Class::Unknown => true,
        // The launcher sees that by itself.
        Class::Dead | Class::Finished => false,
        // They wait for others, or nobody here knows.
        Class::InAnotherCollective | Class::Deadlock | Class::NetworkCut | Class::Elsewhere => false,
    };
    let first = causes.iter().find(alone)?;
    let unclear = |cause: &&Cause| matches!(cause.class, Class::Deadlock | Class::NetworkCut);
    let others = causes.iter().filter(alone).any(|cause| cause.rank != first.rank);
    (!others && !causes.iter().any(unclear)).then_some(*first)
}

#[cfg(test)]
mod tests {
    use super::culprit;
    use crate::analysis::{Cause, Class, Diagnosis, Finding, Stuck};

    fn finding(failed: bool, causes: &[(u32, Class)]) -> Finding {
        let operation = Stuck {
            group: "default".to_owned(),
            sequence: 7,
            name: "all_reduce".to_owned(),
            dtype: "f32".to_owned(),
            bytes: 4,
            failed,
            waited: 61.0,
            message: None,
        };
        let cause = |(rank, class): &(u32, Class)| Cause { rank: *rank, class: *class, why: "it sleeps".to_owned() };
        Finding {
            operation: Some(operation),
            arrived: Vec::new(),
            missing: Vec::new(),
            unseen: Vec::new(),
            causes: causes.iter().map(cause).collect(),
            sentence: String::new(),
        }
    }

    #[test]
    fn only_a_single_rank_that_waits_for_nobody_is_the_culprit() {
        use Class::{Dead, Deadlock, Elsewhere, InAnotherCollective, InUserCode, NetworkCut, Stopped, WaitingForData};
        type Causes<'a> = &'a [(u32, Class)];
        let cases: [(&[Causes<'_>], Option<u32>); 10] = [
            (&[&[(1, Stopped)]], Some(1)),
            (&[&[(1, InUserCode)]], Some(1)),
            (&[&[(1, Class::Unknown)]], Some(1)),
            // Rank 2 waits for rank 1, in another group.
            (&[&[(1, WaitingForData)], &[(2, InAnotherCollective)], &[(1, WaitingForData)]], Some(1)),
            (&[&[(1, InUserCode), (2, InUserCode)]], None),
            (&[&[(1, InUserCode)], &[(2, Stopped)]], None),
            (&[&[(1, Deadlock)], &[(2, InUserCode)]], None),
            (&[&[(0, NetworkCut), (1, NetworkCut)]], None),
            (&[&[(3, Elsewhere)]], None),
            (&[&[(1, Dead)]], None),
        ];
        for (causes, expected) in cases {
            let findings = causes.iter().map(|causes| finding(false, causes)).collect();
            let diagnosis = Diagnosis { findings, remarks: Vec::new() };
            assert_eq!(culprit(&diagnosis).map(|cause| cause.rank), expected, "{causes:?}");
        }
    }

    #[test]
    fn what_has_failed_or_is_no_operation_has_no_culprit() {
        let lone = Finding { operation: None, ..finding(false, &[(1, Class::Stopped)]) };
        let findings = vec![finding(true, &[(1, Class::Stopped)]), lone];
        assert_eq!(culprit(&Diagnosis { findings, remarks: Vec::new() }), None);
    }
}
