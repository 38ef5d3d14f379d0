//! Lists in pieces: which part of a list an answer holds.

use serde::{Deserialize, Serialize};

/// Which part of a list an answer holds. Readers go on at `end_index` until it reaches `total`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the names say it")]
pub struct Pagination {
    pub offset: i64,
    pub limit: i64,
    /// The first element that this answer holds.
    pub start_index: i64,
    /// One behind the last element that this answer holds.
    pub end_index: i64,
    /// Elements of the whole list.
    pub total: i64,
}

/// The part of a list that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Elements to skip; a negative number counts from the end.
    pub offset: i64,
    /// At most so many; 0 for all that the list gives by default, -1 for all, -2 for none.
    pub limit: i64,
    /// What a limit of 0 means for this list; `None` for all.
    pub default_limit: Option<i64>,
}

impl Slice {
    /// Everything.
    pub const ALL: Slice = Slice { offset: 0, limit: -1, default_limit: None };

    /// The range of a list of `total` elements, and how to describe it.
    pub fn of(self, total: usize) -> (std::ops::Range<usize>, Pagination) {
        let total = total as i64;
        let start = if self.offset < 0 { (total + self.offset).max(0) } else { self.offset.min(total) };
        let limit = match (self.limit, self.default_limit) {
            (-2, _) => 0,
            (0, Some(limit)) => limit,
            (limit, _) if limit <= 0 => total,
            (limit, _) => limit,
        };
        let end = start.saturating_add(limit).min(total);
        let page = Pagination { offset: self.offset, limit: self.limit, start_index: start, end_index: end, total };
        (start as usize..end as usize, page)
    }
}

/// Ascending or descending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Smallest first.
    #[default]
    Ascending,
    /// Largest first.
    Descending,
}

impl Order {
    /// Reads `ORDER_BY_ASC`, `ORDER_BY_DESC` or `ORDER_BY_UNSPECIFIED`, which is `None`.
    pub fn parse(text: &str) -> Result<Option<Order>, String> {
        match text {
            "" | "ORDER_BY_UNSPECIFIED" => Ok(None),
            "ORDER_BY_ASC" => Ok(Some(Order::Ascending)),
            "ORDER_BY_DESC" => Ok(Some(Order::Descending)),
            other => Err(format!("there is no order `{other}`: ORDER_BY_ASC or ORDER_BY_DESC")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_offsets_mean_what_they_mean_in_determined() {
        let cases = [
            ((0, 0, Some(100)), 0..100),
            ((0, 0, None), 0..250),
            ((0, -1, Some(100)), 0..250),
            ((0, -2, Some(100)), 0..0),
            ((200, 200, None), 200..250),
            ((-10, 3, None), 240..243),
            ((999, 10, None), 250..250),
        ];
        for ((offset, limit, default_limit), expected) in cases {
            let (range, page) = Slice { offset, limit, default_limit }.of(250);
            assert_eq!(range, expected);
            assert_eq!((page.start_index, page.end_index, page.total), (range.start as i64, range.end as i64, 250));
        }
    }
}
