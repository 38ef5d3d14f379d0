//! Secrets in a task's output: exact occurrences of their values are masked before a line leaves the machine.
//!
//! What it cannot see: values of fewer than eight letters, values that are printed in parts, encoded or over several
//! lines, and what a task writes elsewhere than to its output.

use instep_api::config::{MASK, is_secret_name};
use instep_api::secrets::SHORTEST_MASKED;

use crate::order::TaskOrder;

/// The values of a task that are masked, the longest first.
#[derive(Clone, Default)]
pub struct Hidden(Vec<String>);

impl Hidden {
    /// The task's tokens, the secrets that it is given, and variables of its configuration whose names are those of secrets.
    pub fn of(order: &TaskOrder) -> Hidden {
        let given = &order.start.secrets;
        let given = given.variables.values().chain(given.files.values()).flat_map(|value| value.lines());
        let variables = order.start.user_environment.iter().filter_map(|entry| entry.split_once('='));
        let variables = variables.filter(|(name, _)| is_secret_name(name)).map(|(_, value)| value);
        let own = order.start.environment.iter().filter(|(name, _)| is_secret_name(name));
        let tokens = own.map(|(_, value)| value.as_str()).chain([order.start.token.as_str()]);
        let tokens = tokens.chain(order.start.job_token.as_deref());
        let mut values: Vec<String> = given
            .chain(variables)
            .chain(tokens)
            .map(str::trim)
            .filter(|value| value.chars().count() >= SHORTEST_MASKED)
            .map(str::to_owned)
            .collect();
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Hidden(values)
    }

    /// A text without them.
    pub fn mask(&self, text: String) -> String {
        self.0.iter().fold(text, |text, value| if text.contains(value) { text.replace(value, MASK) } else { text })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::task::testing::order;

    #[test]
    fn values_are_masked_and_short_ones_are_not() {
        let mut order = order();
        order.start.secrets.variables =
            [("A".to_owned(), "hunter2hunter2".to_owned()), ("B".to_owned(), "short".to_owned())].into();
        order.start.secrets.files =
            [("key".to_owned(), "-----BEGIN-----\nabcdefghij\n-----END-----\n".to_owned())].into();
        order.start.token = "0123456789abcdef".to_owned();
        order.start.job_token = Some("89abcdef01234567".to_owned());
        order.start.environment.insert("DET_USER_TOKEN".to_owned(), "fedcba9876543210".to_owned());
        order.start.user_environment = vec!["HF_TOKEN=in-the-configuration".into(), "SHOWN=also-long-enough".into()];
        let hidden = Hidden::of(&order);
        let line = "hunter2hunter2, short, abcdefghij, in-the-configuration, also-long-enough".to_owned();
        assert_eq!(hidden.mask(line), format!("{MASK}, short, {MASK}, {MASK}, also-long-enough"));
        let tokens = "DET_SESSION_TOKEN=0123456789abcdef DET_USER_TOKEN=fedcba9876543210 89abcdef01234567".to_owned();
        assert_eq!(hidden.mask(tokens), format!("DET_SESSION_TOKEN={MASK} DET_USER_TOKEN={MASK} {MASK}"));
    }

    proptest! {
        #[test]
        fn no_value_is_left_in_any_line(before in "\\PC{0,20}", value in "[a-z]{8,20}", after in "\\PC{0,20}") {
            let mut order = order();
            order.start.secrets.variables = [("A".to_owned(), value.clone())].into();
            let shown = Hidden::of(&order).mask(format!("{before}{value}{after}"));
            prop_assert!(!shown.contains(&value));
        }
    }
}
