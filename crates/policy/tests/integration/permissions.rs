//! Roles: the invariants of `instep_policy::permissions`, for every set of roles.

use instep_api::identifiers::WorkspaceId;
use instep_policy::permissions::{
    Action, Answer, Assignment, Grants, Kind, PERMISSIONS, Permission, ROLES, Role, Scope, Sight, objection,
};
use proptest::prelude::*;

const ACTIONS: [Action; 4] = [Action::Read, Action::Make, Action::Change { own: true }, Action::Change { own: false }];

fn workspaces() -> impl Iterator<Item = WorkspaceId> {
    (1..=4).map(WorkspaceId)
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::Everywhere), (1..=4_i64).prop_map(|id| Scope::Workspace(WorkspaceId(id)))]
}

fn assignment() -> impl Strategy<Value = Assignment> {
    (proptest::sample::select(ROLES), scope()).prop_map(|(role, scope)| Assignment { role, scope })
}

fn assignments() -> impl Strategy<Value = Vec<Assignment>> {
    proptest::collection::vec(assignment(), 0..6)
}

fn answers(grants: &Grants) -> Vec<Answer> {
    let mut found = Vec::new();
    for workspace in workspaces() {
        for kind in Kind::ALL {
            found.extend(ACTIONS.map(|action| grants.decide(action, kind, workspace)));
        }
    }
    found
}

/// How much an answer tells or lets do.
fn rank(answer: Answer) -> u8 {
    match answer {
        Answer::Hidden => 0,
        Answer::Refused => 1,
        Answer::Allowed => 2,
    }
}

proptest! {
    // Invariant 1.
    #[test]
    fn what_is_given_in_one_workspace_says_nothing_about_another(given in assignments()) {
        let here = WorkspaceId(9);
        let elsewhere: Vec<Assignment> =
            given.into_iter().filter(|assignment| assignment.scope != Scope::Everywhere).collect();
        let grants = Grants::of(elsewhere, false);
        for kind in Kind::ALL {
            for action in ACTIONS {
                prop_assert_eq!(grants.decide(action, kind, here), Answer::Hidden);
            }
        }
        // Nothing about the cluster follows from a workspace either.
        for permission in PERMISSIONS {
            prop_assert!(!grants.has(*permission, Scope::Everywhere));
        }
    }

    // Invariant 1.
    #[test]
    fn what_is_given_everywhere_holds_in_each_workspace(role in proptest::sample::select(ROLES)) {
        let everywhere = Grants::of([Assignment { role, scope: Scope::Everywhere }], false);
        for workspace in workspaces() {
            for permission in role.permissions() {
                prop_assert!(everywhere.has(*permission, Scope::Workspace(workspace)));
                let scope = Scope::Workspace(workspace);
                let local = Grants::of([Assignment { role, scope }], false);
                prop_assert_eq!(local.has(*permission, scope), !permission.is_global_only());
            }
        }
    }

    // Invariant 2.
    #[test]
    fn nothing_that_is_given_takes_anything_away(given in assignments(), more in assignment()) {
        let before = Grants::of(given.clone(), false);
        let after = Grants::of(given.into_iter().chain([more]), false);
        for (before, after) in answers(&before).into_iter().zip(answers(&after)) {
            prop_assert!(rank(before) <= rank(after), "{before:?} became {after:?}");
        }
    }

    // Invariants 3 and 4.
    #[test]
    fn who_may_change_may_read_and_things_of_others_belong_to_who_governs(given in assignments()) {
        let grants = Grants::of(given, false);
        for workspace in workspaces() {
            for kind in Kind::ALL {
                let decide = |action| grants.decide(action, kind, workspace);
                let (own, others) = (decide(Action::Change { own: true }), decide(Action::Change { own: false }));
                if own == Answer::Allowed || others != Answer::Hidden {
                    prop_assert_eq!(decide(Action::Read), Answer::Allowed);
                }
                prop_assert!(rank(others) <= rank(own));
                if others == Answer::Allowed {
                    prop_assert!(grants.has(Permission::UpdateWorkspace, Scope::Workspace(workspace)));
                }
                prop_assert_ne!(decide(Action::Read), Answer::Refused);
            }
        }
    }

    #[test]
    fn lists_hold_what_can_be_read(given in assignments(), administrates: bool) {
        let grants = Grants::of(given, administrates);
        for kind in Kind::ALL {
            let sight = grants.sight(kind);
            for workspace in workspaces().chain([WorkspaceId(9)]) {
                let read = grants.decide(Action::Read, kind, workspace) == Answer::Allowed;
                prop_assert_eq!(sight.covers(workspace), read);
            }
            prop_assert!(!administrates || sight == Sight::Everything);
        }
    }

    #[test]
    fn no_workspace_gives_rights_over_the_cluster(given in assignments()) {
        let valid: Vec<Assignment> = given.into_iter().filter(|one| objection(*one).is_none()).collect();
        for assignment in &valid {
            let local = matches!(assignment.scope, Scope::Workspace(_));
            prop_assert!(!local || assignment.role.permissions().iter().all(|permission| !permission.is_global_only()));
        }
    }
}

#[test]
fn who_has_nothing_sees_nothing() {
    let nobody = Grants::default();
    assert!(answers(&nobody).iter().all(|answer| *answer == Answer::Hidden));
    assert!(PERMISSIONS.iter().all(|permission| !nobody.has_anywhere(*permission)));
    assert!(answers(&Grants::of([], true)).iter().all(|answer| *answer == Answer::Allowed));
}

#[test]
fn roles_mean_in_a_workspace_what_people_expect() {
    use Answer::{Allowed, Hidden, Refused};
    let here = WorkspaceId(7);
    // Reading, making, changing one's own, changing others'.
    let cases = [
        (Role::Viewer, Kind::Experiment, [Allowed, Refused, Refused, Refused]),
        (Role::Editor, Kind::Experiment, [Allowed, Allowed, Allowed, Refused]),
        (Role::WorkspaceAdmin, Kind::Experiment, [Allowed, Allowed, Allowed, Allowed]),
        (Role::Viewer, Kind::Task, [Allowed, Refused, Refused, Refused]),
        (Role::EditorRestricted, Kind::Task, [Allowed, Refused, Refused, Refused]),
        (Role::EditorRestricted, Kind::Experiment, [Allowed, Allowed, Allowed, Refused]),
        (Role::EditorProjectRestricted, Kind::Project, [Allowed, Refused, Refused, Refused]),
        (Role::ModelRegistryViewer, Kind::Model, [Allowed, Hidden, Refused, Refused]),
        (Role::ModelRegistryViewer, Kind::Experiment, [Hidden, Hidden, Hidden, Hidden]),
        (Role::WorkspaceAdmin, Kind::Workspace, [Allowed, Refused, Allowed, Allowed]),
        (Role::Editor, Kind::Workspace, [Allowed, Refused, Refused, Refused]),
    ];
    for (role, kind, expected) in cases {
        let grants = Grants::of([Assignment { role, scope: Scope::Workspace(here) }], false);
        assert_eq!(ACTIONS.map(|action| grants.decide(action, kind, here)), expected, "{role:?} {kind:?}");
    }
}

#[test]
fn the_table_is_determineds() {
    let names: Vec<String> = ROLES.iter().map(|role| format!("{} {}", role.number(), role.name())).collect();
    let expected = "1 ClusterAdmin, 2 WorkspaceAdmin, 3 WorkspaceCreator, 4 Viewer, 5 Editor, 6 ModelRegistryViewer, \
                    7 EditorRestricted, 8 GenAIUser, 9 EditorProjectRestricted, 10 TokenCreator";
    assert_eq!(names.join(", "), expected);
    let local: Vec<&str> = ROLES.iter().filter(|role| role.fits_a_workspace()).map(|role| role.name()).collect();
    assert_eq!(
        local.join(", "),
        "WorkspaceAdmin, Viewer, Editor, ModelRegistryViewer, EditorRestricted, EditorProjectRestricted"
    );
    for role in ROLES {
        assert_eq!(Role::of_number(role.number()), Some(*role));
        let has = |permission| role.permissions().contains(&permission);
        assert_eq!(has(Permission::ViewExperimentArtifacts), has(Permission::ViewExperimentMetadata), "{role:?}");
        let numbers: Vec<i64> = role.permissions().iter().map(|permission| permission.number()).collect();
        assert!(numbers.is_sorted() && numbers.windows(2).all(|pair| pair[0] != pair[1]), "{role:?}");
    }
    assert_eq!(Role::of_number(0), None);
    assert_eq!(PERMISSIONS.len(), Role::ClusterAdmin.permissions().len());
}
