//! What may not be in the names that people give: of experiments, models, users, labels and others.
//!
//! Control characters cannot be typed, are not seen where they are, end texts in C (NUL), and rewrite what a terminal shows.

/// Why a text cannot be a name, if it cannot.
pub(crate) fn objection(name: &str) -> Option<String> {
    let control = name.chars().find(|letter| letter.is_control())?;
    Some(format!("has the control character U+{:04X}, which names must not have", u32::from(control)))
}

/// Letters of a name that is shown in lists.
const LONGEST: usize = 255;

/// The same for what is shown in lists, and may not be long either; the error says what `what` has.
pub(crate) fn check_label(what: &str, name: &str) -> Result<(), String> {
    let letters = name.chars().count();
    let too_long = (letters > LONGEST).then(|| format!("has {letters} letters, the limit is {LONGEST}"));
    too_long.or_else(|| objection(name)).map_or(Ok(()), |objection| Err(format!("{what} {objection}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_can_be_seen() {
        for name in ["", "a", "a b/c", "größer", "实验 1", "👩‍🔬", "a\u{a0}b"] {
            assert_eq!(objection(name), None, "{name:?}");
        }
        for (name, code) in [("a\0", "U+0000"), ("a\nb", "U+000A"), ("\u{1b}[31mred", "U+001B"), ("a\u{9b}", "U+009B")]
        {
            assert!(objection(name).unwrap().contains(code), "{name:?}");
            assert!(
                check_label("the name of a note", name).unwrap_err().starts_with("the name of a note has the control")
            );
        }
        assert_eq!(check_label("it", &"é".repeat(255)), Ok(()));
        assert_eq!(check_label("it", &"é".repeat(256)), Err("it has 256 letters, the limit is 255".to_owned()));
    }
}
