//! Which agents a master works with: while a cluster is upgraded, the masters are replaced first, and then the agents.
//!
//! An agent of the same version or one minor version older is let in. A newer one may say what this master does not
//! understand, and one that is older still was never tested with it: both are refused, with what to do.

use std::fmt;

/// The oldest version of the messages that a master still understands.
const OLDEST_PROTOCOL: u32 = 1;

/// What decides whether two programs understand each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Speaker<'a> {
    /// Of the messages.
    pub protocol: u32,
    /// Of the program: `1.2.3`.
    pub version: &'a str,
}

/// The part of a version that says what a program understands. Corrections change nothing about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Minor {
    major: u32,
    minor: u32,
}

impl Minor {
    fn of(version: &str) -> Option<Minor> {
        let mut parts = version.split(['.', '-', '+']);
        let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Minor { major, minor })
    }

    /// What comes before it, as far as its number says.
    fn before(self) -> Option<Minor> {
        Some(Minor { minor: self.minor.checked_sub(1)?, ..self })
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// Why a master does not let an agent in, if it does not.
pub fn agent_objection(agent: Speaker<'_>, master: Speaker<'_>) -> Option<String> {
    let what = format!("the agent is version {}, the master version {}", agent.version, master.version);
    let refused = |why: &str, hint: &str| Some(format!("{what}: {why}\nhint: {hint}"));
    let (Some(theirs), Some(ours)) = (Minor::of(agent.version), Minor::of(master.version)) else {
        return refused("these cannot be compared", "run the same version of instep on both");
    };
    if theirs > ours || agent.protocol > master.protocol {
        let hint = "replace the masters first, and then the agents; or run the master's version of instep here";
        return refused("an agent must not be newer than its master", hint);
    }
    let oldest = ours.before().unwrap_or(ours);
    if theirs < oldest || agent.protocol < OLDEST_PROTOCOL {
        let why = if oldest == ours {
            format!("this master works with agents of version {ours}")
        } else {
            format!("this master works with agents of versions {oldest} and {ours}")
        };
        return refused(&why, "run the master's version of instep here");
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(version: &str) -> Speaker<'_> {
        Speaker { protocol: 1, version }
    }

    #[test]
    fn agents_of_this_minor_version_and_of_the_one_before_are_let_in() {
        for (agent, master, expected) in [
            ("0.4.0", "0.4.0", None),
            ("0.4.9", "0.4.0", None),
            ("0.3.7", "0.4.0", None),
            ("0.4.0-rc.1", "0.4.0", None),
            ("0.5.0", "0.4.9", Some("must not be newer")),
            ("1.0.0", "0.4.9", Some("must not be newer")),
            ("0.2.9", "0.4.0", Some("versions 0.3 and 0.4")),
            // What came before 1.0 its number does not say.
            ("0.9.0", "1.0.0", Some("agents of version 1.0\n")),
            ("0.9.0", "1.1.0", Some("versions 1.0 and 1.1")),
            ("", "0.4.0", Some("cannot be compared")),
            ("4", "0.4.0", Some("cannot be compared")),
        ] {
            let why = agent_objection(of(agent), of(master));
            match expected {
                None => assert_eq!(why, None, "{agent} at {master}"),
                Some(expected) => {
                    let why = why.unwrap_or_default();
                    assert!(why.contains(expected) && why.contains("\nhint: "), "{agent} at {master}: {why}");
                    assert!(why.contains(&format!("version {agent}, the master version {master}")), "{why}");
                }
            }
        }
    }

    #[test]
    fn messages_of_a_later_version_are_refused_whatever_the_program_says() {
        let of = |protocol| Speaker { protocol, version: "0.4.0" };
        assert_eq!(agent_objection(of(1), of(2)), None, "the one before is understood");
        assert!(agent_objection(of(3), of(2)).unwrap().contains("newer"));
        assert!(agent_objection(of(0), of(2)).unwrap().contains("works with"));
    }

    proptest! {
        #[test]
        fn no_agent_is_let_in_that_is_newer(agent in "[0-9.+-]{0,9}", minor in 0_u32..4, major in 0_u32..3) {
            let master = format!("{major}.{minor}.0");
            if agent_objection(of(&agent), of(&master)).is_none() {
                let theirs = Minor::of(&agent).unwrap();
                prop_assert!(theirs.major == major && theirs.minor <= minor && theirs.minor + 1 >= minor);
            }
        }
    }
}
