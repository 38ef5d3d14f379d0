//! Who may do what where: roles, given to users and to groups of users, in one workspace or in all.
//!
//! - [`Role`] and [`Permission`] are Determined's, with its names and numbers ([`table`] holds them).
//! - [`Grants`] is what one user has been given, be it through groups; [`Grants::decide`] is the one decision.
//!
//! Invariants, cited by the tests:
//!
//! 1. What is given in one workspace says nothing about another; what is given everywhere holds in each.
//! 2. Nothing that is given takes anything away.
//! 3. Who may change a thing may read it. Who may not read it is not told that it is there ([`Answer::Hidden`]).
//! 4. Things of others are changed only by whoever governs the workspace: its administrators and the cluster's.

pub mod table;

use std::collections::BTreeSet;

use instep_api::identifiers::WorkspaceId;

pub use table::{PERMISSIONS, Permission, ROLES, Role};

/// Where a role was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// In all workspaces, and beside them.
    Everywhere,
    /// In one.
    Workspace(WorkspaceId),
}

/// A role that somebody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Assignment {
    pub role: Role,
    pub scope: Scope,
}

/// A kind of thing that a workspace holds, and the workspace itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The workspace.
    Workspace,
    /// A project.
    Project,
    /// An experiment with its trials, metrics, logs, checkpoints and code.
    Experiment,
    /// A command or a TensorBoard.
    Task,
    /// A model of the registry with its versions.
    Model,
    /// A template.
    Template,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] =
        [Kind::Workspace, Kind::Project, Kind::Experiment, Kind::Task, Kind::Model, Kind::Template];

    /// What reading one takes.
    pub fn reading(self) -> Permission {
        match self {
            Kind::Workspace => Permission::ViewWorkspace,
            Kind::Project => Permission::ViewProject,
            // Every role has this and that of artifacts, or neither.
            Kind::Experiment => Permission::ViewExperimentMetadata,
            Kind::Task => Permission::ViewNsc,
            Kind::Model => Permission::ViewModelRegistry,
            Kind::Template => Permission::ViewTemplates,
        }
    }

    /// What making one takes.
    pub fn making(self) -> Permission {
        match self {
            Kind::Workspace => Permission::CreateWorkspace,
            Kind::Project => Permission::CreateProject,
            Kind::Experiment => Permission::CreateExperiment,
            Kind::Task => Permission::CreateNsc,
            Kind::Model => Permission::CreateModelRegistry,
            Kind::Template => Permission::CreateTemplates,
        }
    }

    /// What changing one takes, besides that it is one's own.
    pub fn changing(self) -> Permission {
        match self {
            Kind::Workspace => Permission::UpdateWorkspace,
            Kind::Project => Permission::UpdateProject,
            Kind::Experiment => Permission::UpdateExperiment,
            Kind::Task => Permission::UpdateNsc,
            Kind::Model => Permission::EditModelRegistry,
            Kind::Template => Permission::UpdateTemplates,
        }
    }
}

/// What somebody wants to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Look at it, or find it in a list.
    Read,
    /// Make one.
    Make,
    /// Change, end or delete it.
    Change {
        /// Whether it is theirs.
        own: bool,
    },
}

/// Whether they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// They may.
    Allowed,
    /// They may not, and may know that it is there.
    Refused,
    /// They may not even know that it is there.
    Hidden,
}

/// The workspaces in which somebody may read things of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// All, also those that are yet to be made.
    Everything,
    /// These.
    Workspaces(BTreeSet<WorkspaceId>),
}

impl Sight {
    /// Whether what lies in a workspace is seen.
    pub fn covers(&self, workspace: WorkspaceId) -> bool {
        match self {
            Sight::Everything => true,
            Sight::Workspaces(seen) => seen.contains(&workspace),
        }
    }
}

/// What one user has been given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grants {
    assignments: Vec<Assignment>,
}

impl Grants {
    /// Of a user with these roles, their own and their groups'; the users who administrate are administrators of the
    /// cluster whatever they were given.
    pub fn of(assignments: impl IntoIterator<Item = Assignment>, administrates: bool) -> Grants {
        let all = administrates.then_some(Assignment { role: Role::ClusterAdmin, scope: Scope::Everywhere });
        let mut assignments: Vec<Assignment> = assignments.into_iter().chain(all).collect();
        assignments.sort();
        assignments.dedup();
        Grants { assignments }
    }

    /// The roles, each once in each scope.
    pub fn assignments(&self) -> &[Assignment] {
        &self.assignments
    }

    /// Whether a permission holds in a scope.
    pub fn has(&self, permission: Permission, scope: Scope) -> bool {
        self.assignments.iter().any(|assignment| {
            let there = match (assignment.scope, scope) {
                (Scope::Everywhere, _) => true,
                (Scope::Workspace(given), Scope::Workspace(wanted)) => given == wanted,
                (Scope::Workspace(_), Scope::Everywhere) => false,
            };
            // What holds for the cluster alone cannot be given in a workspace.
            let counts = assignment.scope == Scope::Everywhere || !permission.is_global_only();
            there && counts && assignment.role.permissions().contains(&permission)
        })
    }

    /// Whether a permission holds anywhere.
    pub fn has_anywhere(&self, permission: Permission) -> bool {
        self.assignments.iter().any(|assignment| self.has(permission, assignment.scope))
    }

    /// Whether they are an administrator of the cluster.
    pub fn administrates(&self) -> bool {
        self.has(Permission::AdministrateUser, Scope::Everywhere)
    }

    /// Whether they may do something with a thing of a kind in a workspace.
    pub fn decide(&self, action: Action, kind: Kind, workspace: WorkspaceId) -> Answer {
        let has = |permission| self.has(permission, Scope::Workspace(workspace));
        let seen = has(kind.reading());
        let allowed = match action {
            Action::Read => seen,
            Action::Make => has(kind.making()),
            Action::Change { own } => seen && has(kind.changing()) && (own || has(Permission::UpdateWorkspace)),
        };
        match action {
            _ if allowed => Answer::Allowed,
            Action::Make if has(Permission::ViewWorkspace) => Answer::Refused,
            Action::Change { .. } if seen => Answer::Refused,
            Action::Read | Action::Make | Action::Change { .. } => Answer::Hidden,
        }
    }

    /// Where they may read things of a kind.
    pub fn sight(&self, kind: Kind) -> Sight {
        if self.has(kind.reading(), Scope::Everywhere) {
            return Sight::Everything;
        }
        let given = self.assignments.iter().filter_map(|assignment| match assignment.scope {
            Scope::Everywhere => None,
            Scope::Workspace(workspace) => Some(workspace),
        });
        Sight::Workspaces(given.filter(|workspace| self.has(kind.reading(), Scope::Workspace(*workspace))).collect())
    }
}

/// Why a role cannot be given in a scope, if that is so.
pub fn objection(assignment: Assignment) -> Option<String> {
    let Scope::Workspace(_) = assignment.scope else { return None };
    let name = assignment.role.name();
    (!assignment.role.fits_a_workspace())
        .then(|| format!("the role {name} says something about the whole cluster, and cannot be given in a workspace"))
}
