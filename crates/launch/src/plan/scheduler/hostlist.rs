//! Slurm's lists of hosts, `n[1-3,7],login`, and its counts for each of them, `2(x3),1`.
//!
//! A list of ten characters can name more hosts than there is memory for: lists are limited before they are spelled out.

use std::fmt::Write as _;

/// The largest list that is spelled out: more nodes than the largest machines have.
const MOST_HOSTS: usize = 65_536;
/// The largest number in brackets, as digits.
const MOST_DIGITS: usize = 18;

/// Why a list cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HostlistError {
    /// Nothing, or nothing between two commas.
    #[error("a host has no name")]
    Empty,
    /// A bracket without its other half, or one inside another.
    #[error("its brackets do not match")]
    Brackets,
    /// What stands in brackets is neither a number nor two with a dash between them.
    #[error("\"{0}\" is not a number or a range of numbers")]
    Range(String),
    /// Not part of any host's name.
    #[error("{0:?} is not part of a host name")]
    Letter(char),
    /// More than this could spell out.
    #[error("it names more than {MOST_HOSTS} hosts")]
    TooMany,
}

/// A part of an item: `n`, or the numbers of `[08-10,12]`.
enum Part<'a> {
    Text(&'a str),
    Numbers(Vec<Numbers>),
}

/// Numbers in a row, written with at least so many digits.
struct Numbers {
    first: u64,
    last: u64,
    width: usize,
}

impl Numbers {
    /// `7` or `08-10`.
    fn parse(text: &str) -> Result<Numbers, HostlistError> {
        let invalid = || HostlistError::Range(text.to_owned());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |digits: &str| {
            let plain = digits.len() <= MOST_DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit());
            digits.parse().ok().filter(|_| plain).ok_or_else(invalid)
        };
        let numbers = Numbers { first: number(first)?, last: number(last)?, width: first.len() };
        if numbers.first <= numbers.last { Ok(numbers) } else { Err(invalid()) }
    }

    fn count(&self) -> usize {
        usize::try_from(self.last - self.first).map_or(usize::MAX, |distance| distance.saturating_add(1))
    }
}

/// The hosts of a list, in its order.
pub(super) fn hosts(list: &str) -> Result<Vec<String>, HostlistError> {
    let mut found = Vec::new();
    for item in items(list.trim())? {
        spell_out(&parts(item)?, &mut found)?;
    }
    Ok(found)
}

/// What stands between commas that are not in brackets.
fn items(list: &str) -> Result<Vec<&str>, HostlistError> {
    let mut found = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' if inside => return Err(HostlistError::Brackets),
            '[' => inside = true,
            ']' if !inside => return Err(HostlistError::Brackets),
            ']' => inside = false,
            ',' if !inside => {
                found.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&list[start..]);
    if inside { Err(HostlistError::Brackets) } else { Ok(found) }
}

/// The texts and brackets of an item, whose brackets are known to match.
fn parts(item: &str) -> Result<Vec<Part<'_>>, HostlistError> {
    if item.is_empty() {
        return Err(HostlistError::Empty);
    }
    let mut found = Vec::new();
    let mut rest = item;
    while !rest.is_empty() {
        let (text, after) = rest.split_once('[').unwrap_or((rest, ""));
        let legal = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
        if let Some(letter) = text.chars().find(|letter| !legal(*letter)) {
            return Err(HostlistError::Letter(letter));
        }
        found.push(Part::Text(text));
        rest = match after.split_once(']') {
            Some((numbers, after)) => {
                found.push(Part::Numbers(numbers.split(',').map(Numbers::parse).collect::<Result<_, _>>()?));
                after
            }
            None => "",
        };
    }
    Ok(found)
}

/// Adds every combination of an item's numbers; the last bracket counts fastest.
fn spell_out(parts: &[Part<'_>], found: &mut Vec<String>) -> Result<(), HostlistError> {
    let mut names = vec![String::new()];
    for part in parts {
        match part {
            Part::Text(text) => names.iter_mut().for_each(|name| name.push_str(text)),
            Part::Numbers(rows) => {
                let count = rows.iter().fold(0_usize, |sum, numbers| sum.saturating_add(numbers.count()));
                if names.len().saturating_mul(count).saturating_add(found.len()) > MOST_HOSTS {
                    return Err(HostlistError::TooMany);
                }
                names = names.iter().flat_map(|name| rows.iter().flat_map(|numbers| numbered(name, numbers))).collect();
            }
        }
    }
    found.append(&mut names);
    if found.len() > MOST_HOSTS { Err(HostlistError::TooMany) } else { Ok(()) }
}

fn numbered(name: &str, numbers: &Numbers) -> impl Iterator<Item = String> {
    let width = numbers.width;
    (numbers.first..=numbers.last).map(move |number| {
        let mut numbered = name.to_owned();
        // Writing to a string cannot fail.
        let _ = write!(numbered, "{number:0width$}");
        numbered
    })
}

/// The largest in a list of counts, one for each node: 2 in `1(x3),2`. None for what is no such list.
pub(super) fn largest_count(counts: &str) -> Option<usize> {
    let mut largest = None;
    for part in counts.trim().split(',') {
        let (count, nodes) = match part.split_once("(x") {
            Some((count, nodes)) => (count, nodes.strip_suffix(')')?),
            None => (part, "1"),
        };
        let (count, nodes) = (count.parse().ok()?, nodes.parse::<u64>().ok()?);
        if nodes > 0 {
            largest = largest.max(Some(count));
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::{HostlistError, MOST_HOSTS, hosts, largest_count};
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn lists_are_spelled_out_as_slurm_does() {
        for (list, expected) in [
            ("n1", "n1"),
            ("n[1-4,7]", "n1 n2 n3 n4 n7"),
            ("a,b[2],c", "a b2 c"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("n[8-11]", "n8 n9 n10 n11"),
            ("a[01-02]b[1-2]", "a01b1 a01b2 a02b1 a02b2"),
            ("r[1,3]n[1-2]-ib,login", "r1n1-ib r1n2-ib r3n1-ib r3n2-ib login"),
            ("[1-2].example.org", "1.example.org 2.example.org"),
            (" n[1-1]\n", "n1"),
        ] {
            assert_eq!(hosts(list).map(|found| found.join(" ")), Ok(expected.to_owned()), "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_reason() {
        let range = |text: &str| HostlistError::Range(text.to_owned());
        for (list, reason) in [
            ("", HostlistError::Empty),
            ("n1,,n2", HostlistError::Empty),
            ("n1,", HostlistError::Empty),
            ("n[1-2", HostlistError::Brackets),
            ("n1]", HostlistError::Brackets),
            ("n[1-[2]]", HostlistError::Brackets),
            ("n[]", range("")),
            ("n[1,]", range("")),
            ("n[4-1]", range("4-1")),
            ("n[a-b]", range("a-b")),
            ("n[+1]", range("+1")),
            ("n[1-2-3]", range("1-2-3")),
            ("n[1-9999999999999999999]", range("1-9999999999999999999")),
            ("n 1", HostlistError::Letter(' ')),
            ("$(id)", HostlistError::Letter('$')),
            ("(null)", HostlistError::Letter('(')),
            ("n[1-999999999]", HostlistError::TooMany),
            ("n[1-999][1-999]", HostlistError::TooMany),
            ("n[1-60000],m[1-60000]", HostlistError::TooMany),
            ("n[1-999999999999999999][1-999999999999999999]", HostlistError::TooMany),
        ] {
            assert_eq!(hosts(list), Err(reason), "{list}");
        }
    }

    #[test]
    fn the_largest_count_is_that_of_any_node() {
        for (counts, expected) in [
            ("1", Some(1)),
            ("2(x3),1", Some(2)),
            ("1(x2),2", Some(2)),
            ("4,2(x2)", Some(4)),
            ("1(x99999999999)", Some(1)),
            ("2(x3", None),
            ("1,x", None),
            ("", None),
            ("7(x0),5", Some(5)),
        ] {
            assert_eq!(largest_count(counts), expected, "{counts}");
        }
    }

    /// A row of numbers as Slurm writes it, and what it stands for.
    fn row() -> impl Strategy<Value = (String, Vec<String>)> {
        (0_u64..1200, 0_u64..12, 1_usize..5).prop_map(|(first, more, width)| {
            let last = first + more;
            let spelled = (first..=last).map(|number| format!("{number:0width$}")).collect();
            let text = if more == 0 { format!("{first:0width$}") } else { format!("{first:0width$}-{last}") };
            (text, spelled)
        })
    }

    /// An item with up to two brackets, and the hosts that it stands for.
    fn item() -> impl Strategy<Value = (String, Vec<String>)> {
        ("[a-z][a-z0-9.-]{0,5}", vec(vec(row(), 1..4), 0..3), "[a-z-]{0,3}").prop_map(|(start, brackets, end)| {
            let mut text = start.clone();
            let mut spelled = vec![start];
            for rows in brackets {
                let inside: Vec<String> = rows.iter().map(|(text, _)| text.clone()).collect();
                text = format!("{text}[{}]", inside.join(","));
                let numbers: Vec<&String> = rows.iter().flat_map(|(_, spelled)| spelled).collect();
                spelled = spelled
                    .iter()
                    .flat_map(|name| numbers.iter().map(move |number| format!("{name}{number}")))
                    .collect();
            }
            (format!("{text}{end}"), spelled.into_iter().map(|name| format!("{name}{end}")).collect())
        })
    }

    proptest! {
        #[test]
        fn every_list_stands_for_its_hosts(items in vec(item(), 1..4)) {
            let list: Vec<String> = items.iter().map(|(text, _)| text.clone()).collect();
            let expected: Vec<String> = items.into_iter().flat_map(|(_, spelled)| spelled).collect();
            prop_assert_eq!(hosts(&list.join(",")), Ok(expected));
        }

        #[test]
        fn whatever_a_variable_holds_is_understood_or_refused(text in "[n0-9,\\[\\]()x -]{0,40}|.{0,40}") {
            if let Ok(found) = hosts(&text) {
                prop_assert!(!found.is_empty() && found.len() <= MOST_HOSTS);
                prop_assert!(found.iter().all(|name| !name.is_empty() && !name.contains(['[', ']', ','])));
            }
            let _ = largest_count(&text);
        }
    }
}
