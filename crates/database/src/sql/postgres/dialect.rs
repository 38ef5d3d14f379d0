//! Statements as PostgreSQL spells them.

use std::fmt::Write;

/// A statement with `$1` where SQLite has `?` or `?1`. What stands in quotes stays.
pub(super) fn numbered(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len() + 16);
    let (mut quote, mut highest) = (None, 0);
    let mut rest = sql.chars().peekable();
    while let Some(letter) = rest.next() {
        match (quote, letter) {
            (Some(open), _) => {
                if letter == open {
                    quote = None;
                }
                text.push(letter);
            }
            (None, '\'' | '"') => {
                quote = Some(letter);
                text.push(letter);
            }
            (None, '?') => {
                let mut number = 0;
                while let Some(digit) = rest.peek().and_then(|next| next.to_digit(10)) {
                    number = number * 10 + digit;
                    rest.next();
                }
                // A place without a number is the one behind all before it.
                let number = if number == 0 { highest + 1 } else { number };
                highest = highest.max(number);
                // Writing to a string does not fail.
                let _ = write!(text, "${number}");
            }
            (None, _) => text.push(letter),
        }
    }
    text
}

/// A name in a statement.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_numbered_outside_of_quotes() {
        for (sqlite, postgres) in [
            ("SELECT 1", "SELECT 1"),
            ("a = ? AND b = ?", "a = $1 AND b = $2"),
            ("a = ?2 AND b = ?1 OR c = ?2", "a = $2 AND b = $1 OR c = $2"),
            ("a = ? AND ? IS NULL AND (?3 IS NULL OR b = ?3)", "a = $1 AND $2 IS NULL AND ($3 IS NULL OR b = $3)"),
            ("a = ?12", "a = $12"),
            ("'it''s ?' = ? AND \"why?\" = ?", "'it''s ?' = $1 AND \"why?\" = $2"),
            ("x LIKE ? ESCAPE '\\'", "x LIKE $1 ESCAPE '\\'"),
        ] {
            assert_eq!(numbered(sqlite), postgres);
        }
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
