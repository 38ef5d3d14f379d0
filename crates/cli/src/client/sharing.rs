//! Who has which role in a workspace: `instep workspace members`, `share` and `unshare`.
//!
//! Roles have short names here: viewer, editor, owner (Determined's WorkspaceAdmin) and creator (WorkspaceCreator).

use clap::{Args, ValueEnum};
use instep_api::cluster::MasterResponse;
use instep_api::identifiers::{GroupId, UserId, WorkspaceId};
use instep_api::roles::{
    AssignmentsRequest, GroupRoleAssignment, GroupsResponse, Role, RoleAssignment, RoleWithAssignments, RolesResponse,
    RolesWithAssignmentsResponse, SearchGroupsRequest, UserRoleAssignment, WorkspaceMembersResponse,
};
use instep_api::users::UsersResponse;
use instep_client::Client;
use serde::Serialize;
use serde_json::json;

use super::dialog::say;
use super::options::Common;
use super::{lookup, table};
use crate::report::Hinted;

/// A role that is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum GivenRole {
    /// Sees everything in the workspace
    Viewer,
    /// Also creates things there, and changes what is theirs
    Editor,
    /// Also changes everything there, and shares the workspace
    Owner,
    /// Creates workspaces; only with --everywhere
    Creator,
}

impl GivenRole {
    /// Determined's name.
    fn name(self) -> &'static str {
        match self {
            GivenRole::Viewer => "Viewer",
            GivenRole::Editor => "Editor",
            GivenRole::Owner => "WorkspaceAdmin",
            GivenRole::Creator => "WorkspaceCreator",
        }
    }

    /// The roles of which somebody has one, the least first.
    const LEVELS: [GivenRole; 3] = [GivenRole::Viewer, GivenRole::Editor, GivenRole::Owner];

    /// Whether giving this one replaces that one.
    fn replaces(self, name: &str) -> bool {
        Self::LEVELS.contains(&self) && name != self.name() && Self::LEVELS.iter().any(|level| level.name() == name)
    }

    /// Whether that one allows more than this one.
    fn is_below(self, name: &str) -> bool {
        let level = |name: &str| Self::LEVELS.iter().position(|level| level.name() == name);
        level(name) > level(self.name()) && level(self.name()).is_some()
    }
}

/// Determined's names in our words, where there is one.
fn shown(name: &str) -> String {
    let all = GivenRole::value_variants();
    let found = all.iter().find(|role| role.name() == name).and_then(|role| role.to_possible_value());
    found.map_or_else(|| name.to_owned(), |value| value.get_name().to_owned())
}

/// Where, and whose role.
#[derive(Debug, Clone, Args)]
pub(super) struct Target {
    /// Workspace, and a user or @GROUP
    #[arg(value_name = "WORKSPACE USER|@GROUP", num_args = 0..=2)]
    words: Vec<String>,
    /// In all workspaces; leave WORKSPACE out
    #[arg(long)]
    everywhere: bool,
    /// For every active user; leave USER out
    #[arg(long)]
    everyone: bool,
}

/// Whose role.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    Everyone,
    User(String),
    Group(String),
}

impl Target {
    /// What the words mean: the workspace, unless it is everywhere, and whose role.
    fn meaning(&self) -> Result<(Option<&str>, Who), Hinted> {
        let hint = "such as `WORKSPACE USER`, `WORKSPACE @GROUP`, `--everywhere USER`, `WORKSPACE --everyone` or `--everywhere --everyone`";
        let mut words = self.words.iter().map(String::as_str);
        let workspace = if self.everywhere { None } else { words.next() };
        if workspace.is_none() && !self.everywhere {
            return Err(Hinted::new("which workspace is not said", hint));
        }
        let who = match (self.everyone, words.next()) {
            (true, None) => Who::Everyone,
            (true, Some(word)) => {
                return Err(Hinted::new(format!("`{word}` contradicts --everyone"), hint));
            }
            (false, None | Some("" | "@")) => return Err(Hinted::new("whose role is not said", hint)),
            (false, Some(word)) => match word.strip_prefix('@') {
                Some(group) => Who::Group(group.to_owned()),
                None => Who::User(word.to_owned()),
            },
        };
        match words.next() {
            None => Ok((workspace, who)),
            Some(word) => Err(Hinted::new(format!("`{word}` is one name too many"), hint)),
        }
    }
}

/// Somebody who has a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    User(UserId),
    Group(GroupId),
}

/// Fails with what to do about it where roles are off.
pub(super) fn require_roles(client: &Client) -> anyhow::Result<()> {
    let master: MasterResponse = client.get("/api/v1/master")?;
    if master.rbac_enabled {
        return Ok(());
    }
    let what = "roles are off at this master: everybody sees every workspace, and owners change what is theirs";
    Err(Hinted::new(what, "start the master with --roles, or set `roles: true` in its settings").into())
}

/// Finds a group by its name.
pub(super) fn group(client: &Client, name: &str) -> anyhow::Result<GroupId> {
    let request = SearchGroupsRequest { name: Some(name.to_owned()), limit: Some(1), ..SearchGroupsRequest::default() };
    let found: GroupsResponse = client.post("/api/v1/groups/search", &request)?;
    let none = || Hinted::new(format!("group '{name}' not found"), "list all with `instep group list`");
    Ok(found.groups.into_iter().next().ok_or_else(none)?.group.group_id)
}

/// Finds users by their names.
pub(super) fn users(client: &Client, names: &[String]) -> anyhow::Result<Vec<UserId>> {
    let all: UsersResponse = client.get("/api/v1/users")?;
    let find = |name: &String| {
        let found = all.users.iter().find(|user| user.username == *name);
        let none = || {
            // Somebody who may not look for groups is not helped by hearing of one.
            let hint = match group(client, name) {
                Ok(_) => format!("there is a group of that name: write @{name}"),
                Err(_) => "list all with `instep user list -a`".to_owned(),
            };
            Hinted::new(format!("user '{name}' not found"), hint)
        };
        Ok(found.ok_or_else(none)?.id)
    };
    names.iter().map(find).collect()
}

fn holders(client: &Client, who: &Who) -> anyhow::Result<Vec<Holder>> {
    Ok(match who {
        Who::User(name) => users(client, std::slice::from_ref(name))?.into_iter().map(Holder::User).collect(),
        Who::Group(name) => vec![Holder::Group(group(client, name)?)],
        Who::Everyone => {
            let all: UsersResponse = client.get("/api/v1/users?active=true")?;
            // Administrators may do everything anyway.
            all.users.into_iter().filter(|user| !user.admin).map(|user| Holder::User(user.id)).collect()
        }
    })
}

fn roles(client: &Client) -> anyhow::Result<Vec<Role>> {
    let found: RolesResponse = client.post("/api/v1/roles/search", &json!({"limit": -1}))?;
    Ok(found.roles)
}

fn role_id(roles: &[Role], name: &str) -> anyhow::Result<i64> {
    let found = roles.iter().find(|role| role.name == name);
    Ok(found.ok_or_else(|| anyhow::anyhow!("this master knows no role {name}"))?.role_id)
}

/// The roles that somebody has in a scope of their own, not through groups: name and number.
fn held(roles: &[RoleWithAssignments], holder: Holder, scope: Option<WorkspaceId>) -> Vec<(String, i64)> {
    let has = |role: &&RoleWithAssignments| match holder {
        Holder::User(id) => role
            .user_role_assignments
            .iter()
            .any(|held| held.user_id == id && held.role_assignment.scope_workspace_id == scope),
        Holder::Group(id) => role
            .group_role_assignments
            .iter()
            .any(|held| held.group_id == id && held.role_assignment.scope_workspace_id == scope),
    };
    roles.iter().filter(has).map(|role| (role.role.name.clone(), role.role.role_id)).collect()
}

/// All roles with their holders, as far as the caller sees them.
fn with_holders(client: &Client, roles: &[Role]) -> anyhow::Result<Vec<RoleWithAssignments>> {
    let ids: Vec<i64> = roles.iter().map(|role| role.role_id).collect();
    let found: RolesWithAssignmentsResponse = client.post("/api/v1/roles/search/by-ids", &json!({"roleIds": ids}))?;
    Ok(found.roles)
}

fn request(changes: &[(Holder, i64)], scope: Option<WorkspaceId>) -> AssignmentsRequest {
    let assignment = |role_id: i64| RoleAssignment {
        role: Role { role_id, ..Role::default() },
        scope_workspace_id: scope,
        scope_cluster: scope.is_none(),
    };
    let mut request = AssignmentsRequest::default();
    for (holder, role) in changes {
        let role_assignment = assignment(*role);
        match *holder {
            Holder::User(user_id) => request
                .user_role_assignments
                .get_or_insert_default()
                .push(UserRoleAssignment { user_id, role_assignment }),
            Holder::Group(group_id) => request
                .group_role_assignments
                .get_or_insert_default()
                .push(GroupRoleAssignment { group_id, role_assignment }),
        }
    }
    request
}

fn send(client: &Client, verb: &str, changes: &[(Holder, i64)], scope: Option<WorkspaceId>) -> anyhow::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    let _: serde_json::Value = client.post(&format!("/api/v1/roles/{verb}-assignments"), &request(changes, scope))?;
    Ok(())
}

fn place(workspace: Option<&str>) -> String {
    workspace.map_or_else(|| "everywhere".to_owned(), |name| format!("in workspace {name}"))
}

fn count(holders: &[Holder], who: &Who) -> String {
    match who {
        Who::User(name) => name.clone(),
        Who::Group(name) => format!("@{name}"),
        Who::Everyone if holders.len() == 1 => "1 user".to_owned(),
        Who::Everyone => format!("{} users", holders.len()),
    }
}

/// Gives a role, in place of the one that they had.
pub(super) fn share(client: &Client, target: &Target, role: GivenRole) -> anyhow::Result<()> {
    let (workspace, who) = target.meaning()?;
    if role == GivenRole::Creator && workspace.is_some() {
        let hint = "give it with --everywhere and without a workspace";
        return Err(Hinted::new("the role creator is about workspaces that are yet to be created", hint).into());
    }
    require_roles(client)?;
    let (scope, holders, roles) = (lookup::named_workspace(client, workspace)?, holders(client, &who)?, roles(client)?);
    let (known, wanted) = (with_holders(client, &roles)?, role_id(&roles, role.name())?);
    let (mut add, mut remove) = (Vec::new(), Vec::new());
    let mut kept = 0;
    for holder in &holders {
        let has = held(&known, *holder, scope);
        // What is given to everybody takes nothing from anybody.
        if who == Who::Everyone && has.iter().any(|(name, _)| role.is_below(name)) {
            kept += 1;
            continue;
        }
        if !has.iter().any(|(_, id)| *id == wanted) {
            add.push((*holder, wanted));
        }
        remove.extend(has.into_iter().filter(|(name, _)| role.replaces(name)).map(|(_, id)| (*holder, id)));
    }
    // First the new, so that nobody is without a role in between.
    send(client, "add", &add, scope)?;
    send(client, "remove", &remove, scope)?;
    let keeping = if kept > 0 { format!("; {kept} of them keep a role that allows more") } else { String::new() };
    say(&format!("{}: {} {}{keeping}", count(&holders, &who), shown(role.name()), place(workspace)));
    if who == Who::Everyone {
        say("this covers everybody who has an account now; run it again for new users, or share with a @GROUP");
    }
    Ok(())
}

/// Takes all roles away; of everybody's, those of owners stay.
pub(super) fn unshare(client: &Client, target: &Target) -> anyhow::Result<()> {
    let (workspace, who) = target.meaning()?;
    require_roles(client)?;
    let (scope, holders) = (lookup::named_workspace(client, workspace)?, holders(client, &who)?);
    let known = with_holders(client, &roles(client)?)?;
    let stays = |name: &str| who == Who::Everyone && name == GivenRole::Owner.name();
    let remove: Vec<(Holder, i64)> = holders
        .iter()
        .flat_map(|holder| held(&known, *holder, scope).into_iter().map(|(name, id)| (*holder, name, id)))
        .filter(|(_, name, _)| !stays(name))
        .map(|(holder, _, id)| (holder, id))
        .collect();
    // What was given in all workspaces covers this one too.
    let everywhere = match (&who, holders.as_slice()) {
        (Who::User(_) | Who::Group(_), [holder]) if workspace.is_some() => held(&known, *holder, None),
        _ => Vec::new(),
    };
    let everywhere =
        everywhere.iter().find(|(name, _)| *name != GivenRole::Creator.name()).map(|(name, _)| shown(name));
    let named = count(&holders, &who);
    if remove.is_empty() {
        let hint = match &everywhere {
            Some(_) => format!("take that away with `instep workspace unshare --everywhere {named}`"),
            None => "`instep workspace members WORKSPACE` shows who has; roles may also come from a group".to_owned(),
        };
        let what = match everywhere {
            Some(role) => format!("{named} has no role {} alone, but is {role} everywhere", place(workspace)),
            None => format!("{named} has no role {}", place(workspace)),
        };
        return Err(Hinted::new(what, hint).into());
    }
    send(client, "remove", &remove, scope)?;
    if let Some(role) = everywhere {
        say(&format!("{named}: no role {} alone, but still {role} everywhere", place(workspace)));
        say(&format!("hint: take that away with `instep workspace unshare --everywhere {named}`"));
        return Ok(());
    }
    let rest = match &who {
        Who::User(_) => " of their own; groups may still give one",
        Who::Group(_) => "",
        Who::Everyone => "; owners keep theirs, and groups too",
    };
    say(&format!("{named}: no role {}{rest}", place(workspace)));
    Ok(())
}

/// Somebody in the list of a workspace's members.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Member {
    name: String,
    kind: &'static str,
    role: String,
    /// Whether the role was given in all workspaces, and not in this one alone.
    everywhere: bool,
    /// Who is in the group.
    users: Vec<String>,
}

fn listed(found: &WorkspaceMembersResponse) -> Vec<Member> {
    let mut members = Vec::new();
    for role in &found.assignments {
        let name = shown(&role.role.name);
        for held in &role.user_role_assignments {
            let user = found.users_assigned_directly.iter().find(|user| user.id == held.user_id);
            let username = user.map_or_else(|| held.user_id.to_string(), |user| user.username.clone());
            let everywhere = held.role_assignment.scope_workspace_id.is_none();
            members.push(Member { name: username, kind: "user", role: name.clone(), everywhere, users: Vec::new() });
        }
        for held in &role.group_role_assignments {
            let group = found.groups.iter().find(|group| group.group_id == held.group_id);
            let users = group.into_iter().flat_map(|group| &group.users).map(|user| user.username.clone()).collect();
            let title = group.map_or_else(|| held.group_id.to_string(), |group| format!("@{}", group.name));
            let everywhere = held.role_assignment.scope_workspace_id.is_none();
            members.push(Member { name: title, kind: "group", role: name.clone(), everywhere, users });
        }
    }
    members
}

/// Lists who has a role in a workspace, given there or everywhere.
pub(super) fn members(client: &Client, common: &Common, name: &str) -> anyhow::Result<()> {
    require_roles(client)?;
    let id = lookup::workspace(client, name)?.id;
    let found: WorkspaceMembersResponse = client.get(&format!("/api/v1/roles/workspace/{id}"))?;
    let members = listed(&found);
    if common.json {
        return table::json(&members);
    }
    let mut table = table::Table::new(&["MEMBER", "ROLE", "IN", "USERS"]);
    for member in members {
        let place = if member.everywhere { "everywhere" } else { "this workspace" };
        table.row(vec![member.name, member.role, place.to_owned(), member.users.join(", ")]);
    }
    table.print(
        &format!("nobody has a role in workspace {name}: only administrators see it"),
        &format!("share it with `instep workspace share {name} USER --role editor`"),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(words: &[&str], everywhere: bool, everyone: bool) -> Result<(Option<String>, Who), String> {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let target = Target { words, everywhere, everyone };
        let found = target.meaning().map_err(|error| error.to_string())?;
        Ok((found.0.map(str::to_owned), found.1))
    }

    #[test]
    fn a_workspace_and_somebody_are_meant_or_all_of_them() {
        let team = || Some("team".to_owned());
        assert_eq!(meaning(&["team", "ada"], false, false), Ok((team(), Who::User("ada".into()))));
        assert_eq!(meaning(&["team", "@lab"], false, false), Ok((team(), Who::Group("lab".into()))));
        assert_eq!(meaning(&["team"], false, true), Ok((team(), Who::Everyone)));
        assert_eq!(meaning(&["@lab"], true, false), Ok((None, Who::Group("lab".into()))));
        assert_eq!(meaning(&[], true, true), Ok((None, Who::Everyone)));
        for (words, everywhere, everyone, what) in [
            (&[][..], false, false, "which workspace"),
            (&["team"], false, false, "whose role"),
            (&["team", "@"], false, false, "whose role"),
            (&["team", "ada"], false, true, "`ada` contradicts --everyone"),
            (&["team", "ada"], true, false, "`ada` is one name too many"),
            (&["ada"], true, true, "`ada` contradicts --everyone"),
        ] {
            let error = meaning(words, everywhere, everyone).unwrap_err();
            assert!(error.contains(what) && error.contains("hint: such as"), "{words:?}: {error}");
        }
    }

    #[test]
    fn one_of_three_roles_replaces_another() {
        assert!(GivenRole::Viewer.replaces("Editor") && GivenRole::Editor.replaces("WorkspaceAdmin"));
        assert!(!GivenRole::Viewer.replaces("Viewer") && !GivenRole::Viewer.replaces("ModelRegistryViewer"));
        assert!(!GivenRole::Creator.replaces("Editor"));
        assert!(GivenRole::Viewer.is_below("WorkspaceAdmin") && GivenRole::Editor.is_below("WorkspaceAdmin"));
        assert!(!GivenRole::Editor.is_below("Editor") && !GivenRole::Editor.is_below("Viewer"));
        let users = |number| count(&vec![Holder::User(UserId(1)); number], &Who::Everyone);
        assert_eq!([users(1), users(2)], ["1 user", "2 users"]);
        assert!(!GivenRole::Creator.is_below("Editor") && !GivenRole::Viewer.is_below("ModelRegistryViewer"));
        assert_eq!([shown("WorkspaceAdmin"), shown("Editor"), shown("GenAIUser")], ["owner", "editor", "GenAIUser"]);
    }
}
