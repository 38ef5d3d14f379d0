//! What may not be in the names that people give: of experiments, models, users, labels and others.
//!
//! Control characters cannot be typed, are not seen where they are, end texts in C (NUL), and rewrite what a terminal shows.

/// Why a text cannot be a name, if it cannot.
pub(crate) fn objection(name: &str) -> Option<String> {
    let control = name.chars().find(|letter| letter.is_control())?;
    Some(format!("has the control character U+{:04X}, which names must not have", u32::from(control)))
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
        }
    }
}
