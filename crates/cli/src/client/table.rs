//! How things look: tables, fields about one thing, JSON, and what is said when there is nothing.

use std::io::IsTerminal;

use serde::Serialize;

use super::dialog::say;
use crate::console;

/// Rows under headings, in columns as wide as they need to be.
pub(super) struct Table {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(headings: &[&'static str]) -> Table {
        Table { headings: headings.to_vec(), rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.into_iter().map(|cell| on_one_line(&cell)).collect());
    }

    /// Prints the table; without rows it says `nothing` and `hint` instead.
    pub(super) fn print(&self, nothing: &str, hint: &str) {
        if self.rows.is_empty() {
            say(nothing);
            if !hint.is_empty() {
                say(&format!("{} {hint}", console::paint("36", "hint:")));
            }
            return;
        }
        console::print(self.text(std::io::stdout().is_terminal() && console::colours()).as_bytes());
    }

    fn text(&self, colours: bool) -> String {
        let headings: Vec<String> = self.headings.iter().map(|heading| (*heading).to_owned()).collect();
        let all = || std::iter::once(&headings).chain(&self.rows);
        let width = |column: usize| all().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..headings.len()).map(width).collect();
        let line = |row: &[String]| {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            cells.join("  ").trim_end().to_owned()
        };
        let heading = line(&headings);
        let mut text = if colours { format!("\x1b[1m{heading}\x1b[0m\n") } else { heading + "\n" };
        for row in &self.rows {
            text.push_str(&line(row));
            text.push('\n');
        }
        text
    }
}

/// What somebody else wrote must not move the cursor or start a line: names and labels are anybody's.
pub(super) fn on_one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// Prints what is known of one thing, a line for each fact that is known.
pub(super) fn fields(fields: &[(&str, String)]) {
    let fields: Vec<&(&str, String)> = fields.iter().filter(|(_, value)| !value.is_empty()).collect();
    let width = fields.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) + 1;
    let lines = fields.iter().map(|(name, value)| {
        let value = on_one_line(value);
        format!("{:width$} {value}", format!("{name}:")).trim_end().to_owned() + "\n"
    });
    console::print(lines.collect::<String>().as_bytes());
}

/// Prints JSON.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    console::print(text.as_bytes());
    Ok(())
}

/// Prints JSON on one line.
pub(super) fn json_line(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    console::print(text.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let mut table = Table::new(&["ID", "NAME", "STATE"]);
        table.row(vec!["1".into(), "größer".into(), "running".into()]);
        table.row(vec!["23".into(), "a\nb\x1b[2J".into(), String::new()]);
        assert_eq!(table.text(false), "ID  NAME     STATE\n1   größer   running\n23  a b [2J\n");
    }
}
