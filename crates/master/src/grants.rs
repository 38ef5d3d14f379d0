//! What a user has been given, looked up: their own roles and those of their groups.

use instep_api::identifiers::UserId;
use instep_database::Database;
pub(crate) use instep_policy::permissions::Grants;
use instep_policy::permissions::{Assignment, Role, Scope};

/// Of one user, as it is now.
pub(crate) async fn of(database: &Database, user: UserId, administrates: bool) -> instep_database::Result<Grants> {
    let held = database.roles_of(user).await?;
    // A role of a later version means nothing to this one.
    let assignments = held.into_iter().filter_map(|(role, workspace)| {
        Some(Assignment { role: Role::of_number(role)?, scope: workspace.map_or(Scope::Everywhere, Scope::Workspace) })
    });
    Ok(Grants::of(assignments, administrates))
}
