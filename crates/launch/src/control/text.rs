//! Text of other nodes, made fit to be shown: whoever is at the other end must not move the cursor, hide what was said
//! before, or invent lines.

use serde_json::Value;

/// What may have several lines: what workers wrote.
const MULTI_LINE: [&str; 3] = ["last_lines", "message", "traceback"];

/// The text on one line, without control characters and what turns the direction of writing.
pub fn one_line(text: &str) -> String {
    text.chars().map(|letter| if is_hidden(letter) { ' ' } else { letter }).collect()
}

fn lines(text: &str) -> String {
    text.chars().map(|letter| if is_hidden(letter) && !matches!(letter, '\n' | '\t') { ' ' } else { letter }).collect()
}

/// Controls (C0, C1, DEL), line and paragraph separators, and marks of bidirectional text.
pub(crate) fn is_hidden(letter: char) -> bool {
    let invisible = ['\u{61c}'..='\u{61c}', '\u{200e}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2066}'..='\u{2069}'];
    letter.is_control() || invisible.iter().any(|range| range.contains(&letter))
}

/// Makes every text in a message fit to be shown.
pub(super) fn clean(message: &mut Value) {
    clean_field("", message);
}

fn clean_field(name: &str, value: &mut Value) {
    match value {
        Value::String(text) => *text = if MULTI_LINE.contains(&name) { lines(text) } else { one_line(text) },
        Value::Array(items) => items.iter_mut().for_each(|item| clean_field(name, item)),
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| clean_field(name, value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{clean, one_line};
    use serde_json::json;

    #[test]
    fn text_of_others_cannot_move_the_cursor_or_invent_lines() {
        assert_eq!(one_line("a\u{1b}[2Jb\r\nc\u{9b}d\u{202e}e\u{2028}f\u{7f}ü 火"), "a [2Jb  c d e f ü 火");
        let mut message = json!({"hello": {"address": "n\nerror: x", "list": ["\u{7}"], "pid": 7},
            "message": "one\n\ttwo\u{1b}", "last_lines": ["a\nb\u{1b}"]});
        clean(&mut message);
        let expected = json!({"hello": {"address": "n error: x", "list": [" "], "pid": 7},
            "message": "one\n\ttwo ", "last_lines": ["a\nb "]});
        assert_eq!(message, expected);
    }
}
