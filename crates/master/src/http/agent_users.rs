//! The Unix user and group that an account or a workspace names for its tasks.

use serde_json::{Map, Value, json};

use super::failure::Failure;
use crate::names;

/// Checks what a request names for an account: all of it or nothing, which is `None`.
pub(super) fn checked(given: Option<Value>) -> Result<Option<Value>, Failure> {
    match read(given)? {
        (None, None) => Ok(None),
        (Some(user), Some(group)) => Ok(Some(merged(user, group))),
        _ => Err(Failure::invalid(
            "agentUid, agentGid, agentUser and agentGroup belong together: a part of them is missing",
        )),
    }
}

/// Checks what a request names for a workspace: a user, a group, both, or nothing, which is `None`.
pub(super) fn checked_pairs(given: Option<Value>) -> Result<Option<Value>, Failure> {
    Ok(match read(given)? {
        (None, None) => None,
        (user, group) => Some(merged(user.unwrap_or_default(), group.unwrap_or_default())),
    })
}

type Named = Map<String, Value>;

fn merged(user: Named, group: Named) -> Value {
    Value::Object(user.into_iter().chain(group).collect())
}

/// The user and the group, each with its number and its name.
fn read(given: Option<Value>) -> Result<(Option<Named>, Option<Named>), Failure> {
    let fields = match given {
        None | Some(Value::Null) => return Ok((None, None)),
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err(Failure::invalid("agentUserGroup must be an object")),
    };
    Ok((pair(&fields, "agentUid", "agentUser")?, pair(&fields, "agentGid", "agentGroup")?))
}

fn pair(fields: &Named, id: &str, called: &str) -> Result<Option<Named>, Failure> {
    match (field(fields, id), field(fields, called)) {
        (None, None) => Ok(None),
        (Some(number_of), Some(name_of)) => {
            let pair = [(id, json!(number(id, number_of)?)), (called, json!(name(called, name_of)?))];
            Ok(Some(pair.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()))
        }
        _ => Err(Failure::invalid(format!("{id} and {called} belong together: one of them is missing"))),
    }
}

fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let snake = name.replace("Uid", "_uid").replace("User", "_user").replace("Gid", "_gid").replace("Group", "_group");
    fields.get(name).or_else(|| fields.get(&snake)).filter(|value| !value.is_null())
}

fn number(field: &str, value: &Value) -> Result<u32, Failure> {
    let found = value.as_i64().or_else(|| value.as_str()?.parse().ok());
    found
        .and_then(|number| u32::try_from(number).ok())
        .filter(|number| *number <= i32::MAX as u32)
        .ok_or_else(|| Failure::invalid(format!("{field} must be a number from 0 to {}, not {value}", i32::MAX)))
}

/// A name as `/etc/passwd` can hold it.
fn name<'a>(field: &str, value: &'a Value) -> Result<&'a str, Failure> {
    let name = value.as_str().unwrap_or_default();
    let is_plain = !name.is_empty() && !name.contains([':', '/', '\\']) && names::objection(name).is_none();
    if is_plain { Ok(name) } else { Err(Failure::invalid(format!("{field} must be the name of one, not {value}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_user_is_named_whole_or_not_at_all() {
        let whole = json!({"agentUid": 1000, "agentUser": "ann", "agentGid": "100", "agent_group": "users"});
        let wanted = json!({"agentUid": 1000, "agentUser": "ann", "agentGid": 100, "agentGroup": "users"});
        assert_eq!(checked(Some(whole)).unwrap(), Some(wanted));
        let nothing = json!({"agentUid": null, "agentUser": null});
        for none in [None, Some(Value::Null), Some(json!({})), Some(nothing)] {
            assert_eq!(checked(none).unwrap(), None);
        }
        let group = json!({"agentGid": 100, "agentGroup": "users", "agentUid": null});
        assert!(checked(Some(group.clone())).is_err());
        assert_eq!(checked_pairs(Some(group)).unwrap(), Some(json!({"agentGid": 100, "agentGroup": "users"})));
        for wrong in [
            json!({"agentUid": 1}),
            json!({"agentUid": 1, "agentUser": "", "agentGid": 1, "agentGroup": "g"}),
            json!({"agentUid": 1, "agentUser": "a:b", "agentGid": 1, "agentGroup": "g"}),
            json!({"agentUid": -1, "agentUser": "a", "agentGid": 1, "agentGroup": "g"}),
            json!(7),
        ] {
            assert!(checked(Some(wrong.clone())).is_err(), "{wrong}");
        }
    }
}
