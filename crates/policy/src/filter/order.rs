//! In which order rows are shown.

use std::cmp::Ordering;

use serde_json::Value;

use super::{Column, Row, Table, compare};

/// Columns that decide about an order.
const MOST_COLUMNS: usize = 16;

/// An order by several columns, the first one first; rows that are equal in all of them are ordered by their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sort {
    by: Vec<(Column, bool)>,
}

impl Sort {
    /// Reads `COLUMN=asc,COLUMN=desc`; nothing is the order of ids.
    pub fn parse(text: &str, table: Table) -> Result<Sort, String> {
        let mut by = Vec::new();
        for parameter in text.split(',').filter(|parameter| !parameter.is_empty()) {
            let (name, direction) =
                parameter.rsplit_once('=').ok_or_else(|| format!("invalid sort parameter: {parameter}"))?;
            let descending = match direction {
                "asc" => false,
                "desc" => true,
                other => return Err(format!("invalid sort direction: {other}")),
            };
            by.push((Column::of_sort(table, name)?, descending));
        }
        if by.len() > MOST_COLUMNS {
            return Err(format!("{} columns cannot decide about the order: at most {MOST_COLUMNS} can", by.len()));
        }
        by.push((Column::Plain("id"), false));
        Ok(Sort { by })
    }

    /// Whether a metric decides.
    pub fn asks_for_metrics(&self) -> bool {
        self.by.iter().any(|(column, _)| matches!(column, Column::Metric { .. }))
    }

    /// Whether what is known of an experiment's best trial decides.
    pub fn asks_for_best(&self) -> bool {
        self.by.iter().any(|(column, _)| column.is_of_best_trial())
    }

    /// Puts rows into this order. What is not there comes last in either direction.
    pub fn apply<T: Row>(&self, rows: &mut Vec<T>) {
        let mut keyed: Vec<(Vec<Option<Value>>, T)> =
            std::mem::take(rows).into_iter().map(|row| (self.keys(&row), row)).collect();
        keyed.sort_by(|(one, _), (other, _)| self.compare(one, other));
        rows.extend(keyed.into_iter().map(|(_, row)| row));
    }

    fn keys(&self, row: &impl Row) -> Vec<Option<Value>> {
        self.by.iter().map(|(column, _)| row.value(column).filter(|value| !value.is_null())).collect()
    }

    fn compare(&self, one: &[Option<Value>], other: &[Option<Value>]) -> Ordering {
        let columns = self.by.iter().zip(one.iter().zip(other));
        let orders = columns.map(|((_, descending), pair)| match pair {
            (Some(one), Some(other)) => {
                let order = compare::rank(one, other);
                if *descending { order.reverse() } else { order }
            }
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        });
        orders.fold(Ordering::Equal, Ordering::then)
    }
}
