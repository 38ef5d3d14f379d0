//! The statements that are prepared on a connection.

use std::collections::HashMap;

use super::super::STATEMENTS;

/// Statements that were prepared on a connection, of which those that were not used for longest give way.
#[derive(Default)]
pub(super) struct Cache {
    known: HashMap<String, (postgres::Statement, u64)>,
    uses: u64,
}

impl Cache {
    pub(super) fn get(&mut self, sql: &str) -> Option<postgres::Statement> {
        self.uses += 1;
        let (statement, used) = self.known.get_mut(sql)?;
        *used = self.uses;
        Some(statement.clone())
    }

    pub(super) fn put(&mut self, sql: &str, statement: postgres::Statement) {
        if self.known.len() >= STATEMENTS {
            let oldest = self.known.iter().min_by_key(|(_, (_, used))| *used).map(|(sql, _)| sql.clone());
            oldest.and_then(|sql| self.known.remove(&sql));
        }
        self.known.insert(sql.to_owned(), (statement, self.uses));
    }

    pub(super) fn clear(&mut self) {
        self.known.clear();
    }
}
