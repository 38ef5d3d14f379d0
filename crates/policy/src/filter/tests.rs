//! Filters and orders, on rows of JSON.

use std::cmp::Ordering;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

struct Shown(Value);

impl Row for Shown {
    fn value(&self, column: &Column) -> Option<Value> {
        let pointer = match column {
            Column::Plain(name) => format!("/{name}"),
            Column::Hyperparameter(path) => format!("/hp/{}", path.join("/")),
            Column::Metadata(path) => format!("/metadata/{}", path.join("/")),
            Column::Metric { group, name, qualifier } => format!("/{group}/{name}/{qualifier}"),
        };
        self.0.pointer(&pointer).cloned()
    }
}

fn row() -> Shown {
    Shown(json!({
        "id": 7, "name": "Big Net", "tags": ["vision"], "state": "STATE_RUNNING", "startTime": "2026-01-02T03:04:05.000000Z",
        "forkedFrom": null, "description": "",
        "hp": {
            "lr": {"type": "log", "minval": -4, "maxval": -1}, "size": {"type": "const", "val": 32},
            "kind": {"type": "categorical", "vals": ["a", "b"]},
        },
        "validation_metrics": {"top.1": {"min": 0.25}},
    }))
}

fn matches(field: Value) -> bool {
    let mut field = field;
    field["kind"] = json!("field");
    let root = json!({"filterGroup": {"kind": "group", "conjunction": "and", "children": [field]}});
    Filter::parse(&root.to_string(), Table::Experiments).unwrap().matches(&row())
}

#[test]
fn questions_that_only_keep_the_master_busy_are_refused() {
    let field = |name: &str| json!({"kind": "field", "columnName": name, "location": "LOCATION_TYPE_HYPERPARAMETERS", "operator": "=", "value": 1});
    let parse = |fields: Vec<Value>| {
        let root = json!({"filterGroup": {"kind": "group", "conjunction": "or", "children": fields}});
        Filter::parse(&root.to_string(), Table::Experiments).map(drop)
    };
    assert_eq!(parse(vec![field("hp.a"); 500]), Ok(()));
    assert!(parse(vec![field("hp.a"); 501]).unwrap_err().contains("501 fields, and may have 500"));
    let path = |parts: usize| format!("hp.{}", vec!["a"; parts].join("."));
    assert_eq!(parse(vec![field(&path(32))]), Ok(()));
    assert!(parse(vec![field(&path(33))]).unwrap_err().contains("more than 32 parts"));
    let sort = |column: String, count: usize| {
        Sort::parse(&vec![format!("{column}=asc"); count].join(","), Table::Runs).map(drop)
    };
    assert_eq!(sort("id".to_owned(), 16), Ok(()));
    assert!(sort("id".to_owned(), 17).unwrap_err().contains("at most 16"));
    for column in [path(400_000), path(33).replace("hp.", "metadata.")] {
        let error = sort(column, 1).unwrap_err();
        assert!(error.contains("more than 32 parts") && error.len() < 200, "{error}");
    }
}

#[test]
fn fields_compare_as_determined_s_do() {
    let hp = |name: &str, operator: &str, value: Value| json!({"location": "LOCATION_TYPE_HYPERPARAMETERS", "columnName": name, "operator": operator, "value": value});
    let metric = |operator: &str, value: Value| json!({"location": "LOCATION_TYPE_VALIDATIONS", "columnName": "validation.top.1.min", "operator": operator, "value": value});
    let plain =
        |name: &str, operator: &str, value: Value| json!({"columnName": name, "operator": operator, "value": value});
    let cases = [
        (plain("id", "=", json!(7)), true),
        (plain("id", "=", json!("7")), true),
        (plain("id", ">", json!(7)), false),
        (plain("id", ">=", json!(7)), true),
        (plain("name", "contains", json!("big")), true),
        (plain("name", "notContains", json!("big")), false),
        (plain("tags", "contains", json!("vis")), true),
        (plain("state", "=", json!("ACTIVE")), true),
        (plain("state", "!=", json!("STATE_COMPLETED")), true),
        (plain("startTime", ">", json!("2026-01-02")), true),
        (plain("startTime", "<", json!("2026-01-02T03:04:05Z")), false),
        (plain("forkedFrom", "isEmpty", json!(null)), true),
        (plain("forkedFrom", "!=", json!(3)), false),
        (plain("description", "notEmpty", json!(null)), false),
        // Not filled in yet.
        (plain("id", "=", json!(null)), true),
        (hp("hp.size", "=", json!(32)), true),
        (hp("hp.lr", "contains", json!(-2)), true),
        (hp("hp.lr", "contains", json!(3)), false),
        (hp("hp.kind", "contains", json!("b")), true),
        (hp("hp.none", "isEmpty", json!(null)), true),
        (metric("<", json!(0.5)), true),
        (metric(">", json!(0.5)), false),
    ];
    for (field, expected) in cases {
        assert_eq!(matches(field.clone()), expected, "{field}");
    }
}

#[test]
fn groups_join_and_nest() {
    let field = |id: i64| json!({"kind": "field", "columnName": "id", "operator": "=", "value": id});
    let group = |word: &str, children: Value| json!({"kind": "group", "conjunction": word, "children": children});
    for (root, expected) in [
        (group("and", json!([field(7), field(8)])), false),
        (group("or", json!([field(7), field(8)])), true),
        (group("and", json!([field(7), group("or", json!([field(1), field(7)]))])), true),
        (group("or", json!([])), true),
    ] {
        let text = json!({"filterGroup": root, "showArchived": true}).to_string();
        let filter = Filter::parse(&text, Table::Runs).unwrap();
        assert!(filter.show_archived);
        assert_eq!(filter.matches(&row()), expected, "{text}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut deep = json!({"kind": "group", "conjunction": "and", "children": []});
    for _ in 0..40 {
        deep = json!({"kind": "group", "conjunction": "and", "children": [deep]});
    }
    for (root, why) in [
        (json!({"kind": "group", "children": []}), "no conjunction"),
        (json!({"kind": "group", "conjunction": "xor"}), "xor"),
        (json!({"kind": "field", "columnName": "id"}), "no operator"),
        (json!({"kind": "field", "columnName": "id", "operator": "like", "value": 1}), "like"),
        (json!({"kind": "field", "columnName": "e.config", "operator": "=", "value": 1}), "invalid experiment column"),
        (
            json!({"kind": "field", "columnName": "loss", "operator": "=", "value": 1, "location": "LOCATION_TYPE_TRAINING"}),
            "not a valid metrics id",
        ),
        (deep, "inside each other"),
    ] {
        let text = json!({"filterGroup": root}).to_string();
        let error = Filter::parse(&text, Table::Experiments).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    assert!(Filter::parse("{", Table::Experiments).is_err());
}

#[test]
fn rows_are_sorted_by_several_columns_with_nothing_last() {
    let rows = || {
        [(1, json!(2.5)), (2, Value::Null), (3, json!(10)), (4, json!(2.5))]
            .map(|(id, value)| Shown(json!({"id": id, "progress": value})))
            .into_iter()
            .collect::<Vec<_>>()
    };
    for (text, expected) in [
        ("", [1, 2, 3, 4]),
        ("progress=asc", [1, 4, 3, 2]),
        ("progress=desc", [3, 1, 4, 2]),
        ("progress=desc,id=desc", [3, 4, 1, 2]),
    ] {
        let mut sorted = rows();
        Sort::parse(text, Table::Experiments).unwrap().apply(&mut sorted);
        let ids: Vec<i64> = sorted.iter().map(|row| row.0["id"].as_i64().unwrap()).collect();
        assert_eq!(ids, expected, "{text}");
    }
    for text in ["id", "id=up", "nothing=asc", "group.metric=asc"] {
        assert!(Sort::parse(text, Table::Experiments).is_err(), "{text}");
    }
}

/// Values that look like others of another kind.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..12).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "(1|9|10|1x|9a|NaN|inf|true|2026-01-02|STATE_RUNNING|[a-z]{0,2})".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(Value::from))
}

/// Filters that are nearly right.
fn any_node() -> impl Strategy<Value = Value> {
    let text = |choices: &'static str| choices.prop_map(Value::from);
    let operator = text("(=|!=|<|<=|>|>=|contains|notContains|isEmpty|notEmpty|like)");
    let column = text("(id|name|tags|state|startTime|lr|kind|size|validation.top.1.min|hp.|[a-z.]{0,6})");
    let location = text("(|LOCATION_TYPE_HYPERPARAMETERS|LOCATION_TYPE_VALIDATIONS|LOCATION_TYPE_RUN_METADATA|x)");
    let field = (operator, column, location, any_value()).prop_map(|(operator, column, location, value)| {
        json!({"kind": "field", "operator": operator, "columnName": column, "location": location, "value": value})
    });
    field.prop_recursive(4, 16, 4, |inner| {
        (prop::collection::vec(inner, 0..4), "(and|or|xor)")
            .prop_map(|(children, word)| json!({"kind": "group", "conjunction": word, "children": children}))
    })
}

proptest! {
    #[test]
    fn no_filter_or_order_is_too_strange(text in "\\PC{0,60}", root in any_node()) {
        for table in [Table::Experiments, Table::Runs] {
            let _ = (Filter::parse(&text, table), Sort::parse(&text, table));
            if let Ok(filter) = Filter::parse(&json!({"filterGroup": root}).to_string(), table) {
                filter.matches(&row());
            }
        }
    }

    /// A sort that contradicts itself would panic.
    #[test]
    fn values_have_one_order(values in prop::collection::vec(any_value(), 3)) {
        let rank = |one: usize, other: usize| compare::rank(&values[one], &values[other]);
        prop_assert_eq!(rank(0, 1), rank(1, 0).reverse());
        if rank(0, 1) != Ordering::Greater && rank(1, 2) != Ordering::Greater {
            prop_assert_ne!(rank(0, 2), Ordering::Greater);
        }
    }
}
