//! Groups of users: making, finding, changing.

use instep_api::identifiers::{GroupId, UserId};
use instep_api::pages::Slice;
use instep_api::roles::{
    AssignGroupsRequest, CreateGroupRequest, Group, GroupDetails, GroupResponse, GroupSearchResult, GroupsResponse,
    SearchGroupsRequest, UpdateGroupRequest,
};
use instep_database::GroupChange;
use instep_policy::permissions::Permission;

use super::call::Call;
use super::failure::Failure;
use super::reply::{Json, Nothing};
use super::roles::grants;
use crate::clock::now;

/// Bytes of a group's name at most.
const LONGEST_NAME: usize = 255;

/// A group as the API shows it.
pub(super) fn shown(group: instep_database::Group) -> GroupDetails {
    GroupDetails { group_id: group.id, name: group.name, users: group.members }
}

/// Whether the caller sees a group: those who give roles see all, the others their own.
pub(super) fn sees(call: &Call, group: &instep_database::Group) -> Result<bool, Failure> {
    let caller = call.user()?.id;
    call.note_asked();
    Ok(grants(call)?.has_anywhere(Permission::AssignRoles) || group.members.iter().any(|member| member.id == caller))
}

/// The group of the address, if the caller sees it.
pub(super) async fn found(call: &Call) -> Result<instep_database::Group, Failure> {
    let id: GroupId = call.id("group")?;
    let missing = || Failure::not_found(format!("group '{id}' not found"));
    grants(call)?;
    let group = call.application.database.group(id).await;
    match group {
        Ok(group) if sees(call, &group)? => Ok(group),
        Ok(_) | Err(instep_database::Error::NotFound { .. }) => Err(missing()),
        Err(error) => Err(error.into()),
    }
}

fn named(name: Option<String>) -> Result<String, Failure> {
    let name = name.unwrap_or_default();
    if name.trim().is_empty() || name.len() > LONGEST_NAME {
        return Err(Failure::invalid(format!("a group needs a name of 1 to {LONGEST_NAME} letters")));
    }
    Ok(name)
}

pub(crate) async fn search(call: Call) -> Result<Json<GroupsResponse>, Failure> {
    let request: SearchGroupsRequest = call.json()?;
    grants(&call)?;
    call.note_asked();
    let mut groups = Vec::new();
    for group in call.application.database.groups().await? {
        let has = |user: UserId| group.members.iter().any(|member| member.id == user);
        let wanted = request.name.as_ref().is_none_or(|name| name.is_empty() || *name == group.name)
            && request.user_id.is_none_or(|user| user.0 == 0 || has(user));
        if wanted && sees(&call, &group)? {
            groups.push(GroupSearchResult {
                num_members: i64::try_from(group.members.len()).unwrap_or(i64::MAX),
                group: Group { group_id: group.id, name: group.name },
            });
        }
    }
    let slice = slice(request.offset, request.limit)?;
    let (range, pagination) = slice.of(groups.len());
    Ok(Json(GroupsResponse { groups: groups.drain(range).collect(), pagination }))
}

/// The part of a list that a body asks for.
pub(super) fn slice(offset: Option<i64>, limit: Option<i64>) -> Result<Slice, Failure> {
    let limit = limit.unwrap_or(0);
    if limit < -2 {
        return Err(Failure::invalid(format!("limit {limit} is not valid: -1 for all, -2 for none")));
    }
    Ok(Slice { offset: offset.unwrap_or(0), limit, default_limit: None })
}

pub(crate) async fn get(call: Call) -> Result<Json<GroupResponse>, Failure> {
    Ok(Json(GroupResponse { group: shown(found(&call).await?) }))
}

/// Says in the audit log which group changes, and who comes or goes.
async fn note(call: &Call, group: &str, how: &str, users: &[UserId]) -> Result<(), Failure> {
    if users.is_empty() {
        call.noted.subject(format!("group {group}"));
    }
    for user in call.application.database.users().await?.iter().filter(|user| users.contains(&user.id)) {
        call.noted.subject(format!("group {group} {how} {}", user.username));
    }
    Ok(())
}

pub(crate) async fn create(call: Call) -> Result<Json<GroupResponse>, Failure> {
    let request: CreateGroupRequest = call.json()?;
    grants(&call)?;
    let members = request.add_users.unwrap_or_default();
    let name = named(request.name)?;
    note(&call, &name, "with", &members).await?;
    let group = call.application.database.create_group(name, members, now()).await?;
    call.application.forget_sessions();
    Ok(Json(GroupResponse { group: shown(group) }))
}

pub(crate) async fn change(call: Call) -> Result<Json<GroupResponse>, Failure> {
    let request: UpdateGroupRequest = call.json()?;
    grants(&call)?;
    let id: GroupId = call.id("group")?;
    let name = request.name.filter(|name| !name.is_empty()).map(|name| named(Some(name))).transpose()?;
    let (add, remove) = (request.add_users.unwrap_or_default(), request.remove_users.unwrap_or_default());
    let known = call.application.database.groups().await?.into_iter().find(|group| group.id == id);
    let known = known.map_or_else(|| id.to_string(), |group| group.name);
    note(&call, &known, "with", &add).await?;
    note(&call, &known, "without", &remove).await?;
    let changed = call.application.database.change_groups(vec![(id, GroupChange { name, add, remove })]).await?;
    call.application.forget_sessions();
    let group = changed.into_iter().next().ok_or_else(|| Failure::not_found(format!("group '{id}' not found")))?;
    Ok(Json(GroupResponse { group: shown(group) }))
}

pub(crate) async fn delete(call: Call) -> Result<Json<Nothing>, Failure> {
    grants(&call)?;
    call.application.database.delete_group(call.id("group")?).await?;
    call.application.forget_sessions();
    Ok(Json(Nothing {}))
}

pub(crate) async fn assign_users(call: Call) -> Result<Json<Nothing>, Failure> {
    let request: AssignGroupsRequest = call.json()?;
    grants(&call)?;
    let users = request.user_ids.unwrap_or_default();
    let add = request.add_groups.unwrap_or_default().into_iter();
    let add = add.map(|group| (group, GroupChange { add: users.clone(), ..GroupChange::default() }));
    let remove = request.remove_groups.unwrap_or_default().into_iter();
    let remove = remove.map(|group| (group, GroupChange { remove: users.clone(), ..GroupChange::default() }));
    call.application.database.change_groups(add.chain(remove).collect()).await?;
    call.application.forget_sessions();
    Ok(Json(Nothing {}))
}
