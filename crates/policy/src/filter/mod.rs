//! The filter language of searches: which experiments or runs are meant, and in which order.
//!
//! A filter is a tree in JSON, as Determined's pages write it: groups join their children by `and` or `or`, fields
//! compare one column with a value. [`Filter::parse`] checks everything, so that [`Filter::matches`] cannot fail. As in
//! SQL, a comparison with what is not there does not hold, whichever it is; only `isEmpty` finds it.

mod columns;
mod compare;
mod order;

pub use columns::{Column, Kind, Table, path};
pub use order::Sort;

use serde_json::Value;

/// Groups in groups at most: more is nobody's question.
const DEEPEST: usize = 32;
/// Fields that each row is compared with.
const MOST_FIELDS: usize = 500;

/// A row that can be searched for.
pub trait Row {
    /// What the row has in a column; `None` for nothing.
    fn value(&self, column: &Column) -> Option<Value>;
}

/// Which rows are meant.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    root: Node,
    /// Whether archived ones are meant, too.
    pub show_archived: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Node {
    All(Vec<Node>),
    Any(Vec<Node>),
    Field { column: Column, operator: Operator, value: Value },
}

/// How a field is compared with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Contains,
    NotContains,
    Empty,
    NotEmpty,
}

impl Operator {
    fn parse(text: &str) -> Result<Operator, String> {
        Ok(match text {
            "=" => Operator::Equal,
            "!=" => Operator::NotEqual,
            "<" => Operator::Less,
            "<=" => Operator::LessOrEqual,
            ">" => Operator::Greater,
            ">=" => Operator::GreaterOrEqual,
            "contains" => Operator::Contains,
            "notContains" => Operator::NotContains,
            "isEmpty" => Operator::Empty,
            "notEmpty" => Operator::NotEmpty,
            other => return Err(format!("invalid operator `{other}`")),
        })
    }
}

impl Filter {
    /// Reads a filter for a table; the error says what is wrong with it.
    pub fn parse(text: &str, table: Table) -> Result<Filter, String> {
        let root: Value = serde_json::from_str(text).map_err(|error| format!("the filter is not JSON: {error}"))?;
        let group = member(&root, "filterGroup").ok_or("the filter has no `filterGroup`")?;
        let show_archived = member(&root, "showArchived").and_then(Value::as_bool).unwrap_or(false);
        let root = node(group, table, 0)?;
        let fields = root.fields();
        if fields > MOST_FIELDS {
            return Err(format!("the filter has {fields} fields, and may have {MOST_FIELDS}"));
        }
        Ok(Filter { root, show_archived })
    }

    /// Whether a row is meant.
    pub fn matches(&self, row: &impl Row) -> bool {
        self.root.matches(row)
    }

    /// Whether any field asks for a metric, which is dearer to find out than the rest.
    pub fn asks_for_metrics(&self) -> bool {
        self.root.any_column(&|column| matches!(column, Column::Metric { .. }))
    }

    /// Whether any field of an experiment asks for what is known of its best trial.
    pub fn asks_for_best(&self) -> bool {
        self.root.any_column(&Column::is_of_best_trial)
    }
}

impl Node {
    fn matches(&self, row: &impl Row) -> bool {
        match self {
            Node::All(children) => children.iter().all(|child| child.matches(row)),
            Node::Any(children) => children.is_empty() || children.iter().any(|child| child.matches(row)),
            Node::Field { column, operator, value } => compare::holds(column, row.value(column), *operator, value),
        }
    }

    fn fields(&self) -> usize {
        match self {
            Node::All(children) | Node::Any(children) => children.iter().map(Node::fields).sum(),
            Node::Field { .. } => 1,
        }
    }

    fn any_column(&self, wanted: &dyn Fn(&Column) -> bool) -> bool {
        match self {
            Node::All(children) | Node::Any(children) => children.iter().any(|child| child.any_column(wanted)),
            Node::Field { column, .. } => wanted(column),
        }
    }
}

/// A field of an object by its name, whatever its case: Go writes and reads them so.
fn member<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = value.as_object()?;
    let found = fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name))?.1;
    Some(found).filter(|found| !found.is_null())
}

fn node(value: &Value, table: Table, depth: usize) -> Result<Node, String> {
    if depth > DEEPEST {
        return Err(format!("the filter has more than {DEEPEST} groups inside each other"));
    }
    match member(value, "kind").and_then(Value::as_str).unwrap_or_default() {
        "field" => field(value, table),
        "group" => {
            let children = member(value, "children").and_then(Value::as_array).map_or(&[] as &[Value], Vec::as_slice);
            let children =
                children.iter().map(|child| node(child, table, depth + 1)).collect::<Result<Vec<Node>, String>>()?;
            match member(value, "conjunction").and_then(Value::as_str) {
                Some("and") => Ok(Node::All(children)),
                Some("or") => Ok(Node::Any(children)),
                Some(other) => Err(format!("invalid conjunction value {other}")),
                None => Err("group specified with no conjunction".to_owned()),
            }
        }
        other => Err(format!("a part of the filter is neither a group nor a field: `{other}`")),
    }
}

fn field(value: &Value, table: Table) -> Result<Node, String> {
    let operator = member(value, "operator").and_then(Value::as_str);
    let operator = Operator::parse(operator.ok_or("field specified with value but no operator")?)?;
    let name = member(value, "columnName").and_then(Value::as_str).unwrap_or_default();
    let location = member(value, "location").and_then(Value::as_str).unwrap_or_default();
    let column = Column::parse(table, location, name)?;
    match member(value, "value") {
        Some(value) => Ok(Node::Field { column, operator, value: value.clone() }),
        None if matches!(operator, Operator::Empty | Operator::NotEmpty) => {
            Ok(Node::Field { column, operator, value: Value::Null })
        }
        // A field that somebody has not filled in yet asks for nothing.
        None => Ok(Node::All(Vec::new())),
    }
}

#[cfg(test)]
mod tests;
