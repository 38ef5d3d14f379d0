//! Decides what is taken over, and under which id. Pure.
//!
//! An id is kept where it is free here. One that is taken becomes the next number behind all ids of both sides. Users,
//! groups, workspaces, projects and models that have the name of one that is here are taken for the same thing: theirs
//! stays as it is, and what belongs to it is added to it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use instep_database::import::Known;

use crate::survey::Survey;

/// What becomes of a thing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is added under this id.
    New(i64),
    /// It replaces one under this id that nobody has ever used.
    Replaces(i64),
    /// It is this one, which stays as it is.
    There(i64),
    /// It is not taken over, and why.
    Refused(String),
}

impl Fate {
    /// Its id here, if it is here in the end.
    pub fn id(&self) -> Option<i64> {
        match self {
            Fate::New(id) | Fate::Replaces(id) | Fate::There(id) => Some(*id),
            Fate::Refused(_) => None,
        }
    }

    fn is_written(&self) -> bool {
        matches!(self, Fate::New(_) | Fate::Replaces(_))
    }
}

/// What becomes of the things of a kind, by their ids in the source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Fates(pub BTreeMap<i64, Fate>);

impl Fates {
    /// What becomes of one.
    pub fn of(&self, id: i64) -> Option<&Fate> {
        self.0.get(&id)
    }

    /// Its id here, if it is here in the end.
    pub fn id(&self, id: i64) -> Option<i64> {
        self.of(id).and_then(Fate::id)
    }

    /// Its id here if it is added now.
    pub fn new_id(&self, id: i64) -> Option<i64> {
        match self.of(id) {
            Some(Fate::New(id)) => Some(*id),
            _ => None,
        }
    }

    /// Those that get another id than they had.
    pub fn renumbered(&self) -> impl Iterator<Item = (i64, i64)> {
        self.0.iter().filter_map(|(source, fate)| match fate {
            Fate::New(id) if id != source => Some((*source, *id)),
            _ => None,
        })
    }
}

/// What becomes of everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Plan {
    pub users: Fates,
    pub groups: Fates,
    pub workspaces: Fates,
    pub projects: Fates,
    pub experiments: Fates,
    pub trials: Fates,
    pub models: Fates,
    pub model_versions: Fates,
    /// Names that are free.
    pub templates: BTreeSet<String>,
    /// Keys of new projects.
    pub project_keys: BTreeMap<i64, String>,
    /// Texts that only one experiment may have and that one here has.
    pub external_ids: BTreeSet<String>,
    /// Whose own group a group is, by their ids in the source.
    pub own_groups: BTreeMap<i64, i64>,
}

/// How the kinds are called where ids are noted.
pub const KINDS: [&str; 8] = ["user", "group", "workspace", "project", "experiment", "trial", "model", "model version"];

impl Plan {
    /// The kinds and what becomes of their things, in the order of [`KINDS`].
    pub fn kinds(&self) -> [(&'static str, &Fates); 8] {
        let fates = [
            &self.users,
            &self.groups,
            &self.workspaces,
            &self.projects,
            &self.experiments,
            &self.trials,
            &self.models,
            &self.model_versions,
        ];
        std::array::from_fn(|index| (KINDS[index], fates[index]))
    }

    /// Whether anything is to be written at all.
    pub fn is_anything_new(&self) -> bool {
        !self.templates.is_empty() || self.kinds().iter().any(|(_, fates)| fates.0.values().any(Fate::is_written))
    }

    /// Names the plan: two that differ have different names.
    pub fn fingerprint(&self, cluster: &str) -> String {
        let mut hasher = DefaultHasher::new();
        (self, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        format!("{cluster} {:016x}", hasher.finish())
    }
}

/// Gives ids: those of the source where they are free, else new ones behind all others.
struct Numbering {
    taken: BTreeSet<i64>,
    next: i64,
}

impl Numbering {
    fn new(taken: BTreeSet<i64>, source: impl Iterator<Item = i64>) -> Numbering {
        let last = taken.iter().copied().chain(source).max().unwrap_or(0);
        Numbering { taken, next: last + 1 }
    }

    fn give(&mut self, wanted: i64) -> i64 {
        let id = if wanted > 0 && !self.taken.contains(&wanted) { wanted } else { self.next };
        self.next = self.next.max(id + 1);
        self.taken.insert(id);
        id
    }
}

/// Decides about everything.
pub fn plan(survey: &Survey, known: &Known, unfinished: bool) -> Plan {
    let mut plan = Plan::default();
    let imported = |kind: usize, id: i64| known.imported.get(&(KINDS[kind].to_owned(), id.to_string())).copied();
    let gone = |what: &str| Fate::Refused(format!("{what} was taken over before and deleted here since"));

    let taken: BTreeSet<i64> = known.users.values().map(|user| user.id).collect();
    let mut numbering = Numbering::new(taken.clone(), survey.users.iter().map(|user| user.0));
    for (id, name) in &survey.users {
        let fate = match (imported(0, *id), known.users.get(name)) {
            (Some(here), _) if taken.contains(&here) => Fate::There(here),
            (_, Some(user)) if user.untouched => Fate::Replaces(user.id),
            (_, Some(user)) => Fate::There(user.id),
            (Some(_), None) => gone("the user"),
            (None, None) => Fate::New(numbering.give(*id)),
        };
        plan.users.0.insert(*id, fate);
    }

    let by_name = |kind: usize, things: &[(i64, String)], names: &BTreeMap<String, i64>, what: &str| {
        let taken: BTreeSet<i64> = names.values().copied().collect();
        let mut numbering = Numbering::new(taken.clone(), things.iter().map(|thing| thing.0));
        let fate = |(id, name): &(i64, String)| {
            let fate = match (imported(kind, *id), names.get(name)) {
                (Some(here), _) if taken.contains(&here) => Fate::There(here),
                (_, Some(here)) => Fate::There(*here),
                (Some(_), None) => gone(what),
                (None, None) => Fate::New(numbering.give(*id)),
            };
            (*id, fate)
        };
        Fates(things.iter().map(fate).collect())
    };
    let groups: Vec<(i64, String)> = survey
        .groups
        .iter()
        .filter(|group| group.owner.is_none())
        .map(|group| (group.id, group.name.clone()))
        .collect();
    plan.groups = by_name(1, &groups, &known.groups, "the group");
    plan.own_groups = survey.groups.iter().filter_map(|group| Some((group.id, group.owner?))).collect();
    plan.workspaces = by_name(2, &survey.workspaces, &known.workspaces, "the workspace");
    plan_projects(&mut plan, survey, known);
    plan.models = by_name(6, &survey.models, &known.models, "the model");

    let mut numbering =
        Numbering::new(known.experiments.clone(), survey.experiments.iter().map(|experiment| experiment.id));
    for experiment in &survey.experiments {
        let fate = match imported(4, experiment.id) {
            Some(here) if known.experiments.contains(&here) => Fate::There(here),
            Some(_) => gone("the experiment"),
            None => match refusal(&experiment.state, unfinished) {
                Some(why) => Fate::Refused(why),
                None if plan.projects.id(experiment.project).is_none() => {
                    Fate::Refused("its project is not here".to_owned())
                }
                None => Fate::New(numbering.give(experiment.id)),
            },
        };
        plan.experiments.0.insert(experiment.id, fate);
    }

    let below = |kind: usize, things: &[(i64, i64)], owners: &Fates, taken: &BTreeSet<i64>, what: &str| {
        let mut numbering = Numbering::new(taken.clone(), things.iter().map(|thing| thing.0));
        let fate = |(id, owner): &(i64, i64)| {
            let fate = match (imported(kind, *id), owners.of(*owner)) {
                (Some(here), _) => Fate::There(here),
                (None, Some(Fate::Refused(why))) => Fate::Refused(why.clone()),
                (None, None) => Fate::Refused(format!("its {what} is missing")),
                // An experiment is taken over with everything below it or not at all.
                (None, Some(Fate::There(_))) if what == "experiment" => {
                    Fate::Refused("its experiment was taken over before".to_owned())
                }
                (None, Some(_)) => Fate::New(numbering.give(*id)),
            };
            (*id, fate)
        };
        Fates(things.iter().map(fate).collect())
    };
    plan.trials = below(5, &survey.trials, &plan.experiments, &known.trials, "experiment");
    plan.model_versions = below(7, &survey.model_versions, &plan.models, &known.model_versions, "model");
    plan.external_ids.clone_from(&known.external_ids);
    plan.templates = survey.templates.iter().filter(|name| !known.templates.contains(*name)).cloned().collect();
    plan
}

fn plan_projects(plan: &mut Plan, survey: &Survey, known: &Known) {
    let taken: BTreeSet<i64> = known.projects.values().copied().collect();
    let mut numbering = Numbering::new(taken.clone(), survey.projects.iter().map(|project| project.id));
    let mut keys = known.project_keys.clone();
    for project in &survey.projects {
        let here = known.imported.get(&(KINDS[3].to_owned(), project.id.to_string()));
        let workspace = project.workspace.and_then(|id| plan.workspaces.id(id));
        let same_name = workspace.and_then(|workspace| known.projects.get(&(workspace, project.name.clone())));
        let fate = match (here, workspace, same_name) {
            (Some(here), _, _) if taken.contains(here) => Fate::There(*here),
            (_, _, Some(here)) => Fate::There(*here),
            (Some(_), _, None) => Fate::Refused("the project was taken over before and deleted here since".to_owned()),
            (None, None, _) => Fate::Refused("its workspace is not here".to_owned()),
            (None, Some(_), None) => Fate::New(numbering.give(project.id)),
        };
        if matches!(fate, Fate::New(_)) {
            let wanted = project.key.clone().unwrap_or_else(|| format!("P{}", project.id));
            let mut numbered = (1..).map(|number| format!("{wanted}{number}"));
            let mut key = wanted.clone();
            while !keys.insert(key.clone()) {
                key = numbered.next().unwrap_or_default();
            }
            plan.project_keys.insert(project.id, key);
        }
        plan.projects.0.insert(project.id, fate);
    }
}

/// Why an experiment in this state is not taken over, if it is not.
fn refusal(state: &str, unfinished: bool) -> Option<String> {
    match state {
        "COMPLETED" | "CANCELED" | "ERROR" => None,
        "DELETING" | "DELETE_FAILED" => Some("it was being deleted".to_owned()),
        _ if unfinished => None,
        _ => Some(format!(
            "it has not ended ({state}): end it in Determined and import again, or add --unfinished to take it over as canceled"
        )),
    }
}

#[cfg(test)]
mod tests {
    use instep_database::import::KnownUser;

    use super::*;
    use crate::survey::{Experiment, Group, Project};

    fn survey() -> Survey {
        let experiment = |id, state: &str| Experiment { id, state: state.to_owned(), project: 4, owner: 7 };
        let project = |id, workspace, name: &str, key: &str| Project {
            id,
            workspace: Some(workspace),
            name: name.to_owned(),
            key: Some(key.to_owned()),
        };
        Survey {
            users: vec![(1, "admin".into()), (7, "ann".into())],
            groups: vec![
                Group { id: 1, name: "1DeterminedPersonalGroup".into(), owner: Some(1) },
                Group { id: 2, name: "vision".into(), owner: None },
            ],
            workspaces: vec![(1, "Uncategorized".into()), (3, "lab".into())],
            projects: vec![project(1, 1, "Uncategorized", "UNC90"), project(4, 3, "mnist", "MNI")],
            experiments: vec![experiment(10, "COMPLETED"), experiment(11, "PAUSED"), experiment(12, "DELETING")],
            trials: vec![(20, 10), (21, 11), (22, 99)],
            models: vec![(5, "best".into())],
            model_versions: vec![(6, 5)],
            templates: vec!["t".into()],
        }
    }

    fn fresh() -> Known {
        let mut known = Known::default();
        known.users.insert("admin".into(), KnownUser { id: 1, untouched: true });
        known.workspaces.insert("Uncategorized".into(), 1);
        known.projects.insert((1, "Uncategorized".into()), 1);
        known.project_keys.insert("UNC".into());
        known
    }

    #[test]
    fn ids_are_kept_where_they_are_free() {
        let plan = plan(&survey(), &fresh(), false);
        assert_eq!(plan.users.of(1), Some(&Fate::Replaces(1)));
        assert_eq!(plan.users.of(7), Some(&Fate::New(7)));
        assert_eq!((plan.workspaces.id(1), plan.workspaces.id(3)), (Some(1), Some(3)));
        assert_eq!(plan.workspaces.of(1), Some(&Fate::There(1)));
        assert_eq!(plan.experiments.of(10), Some(&Fate::New(10)));
        assert_eq!(plan.trials.of(20), Some(&Fate::New(20)));
        assert_eq!(plan.own_groups, BTreeMap::from([(1, 1)]));
        assert!(plan.kinds().iter().all(|(_, fates)| fates.renumbered().next().is_none()));
    }

    #[test]
    fn what_has_not_ended_stays_behind_unless_it_is_asked_for() {
        let refused = |fate: Option<&Fate>| matches!(fate, Some(Fate::Refused(_)));
        let without = plan(&survey(), &fresh(), false);
        assert!(
            refused(without.experiments.of(11)) && refused(without.trials.of(21)) && refused(without.trials.of(22))
        );
        let with = plan(&survey(), &fresh(), true);
        assert_eq!((with.experiments.id(11), with.trials.id(21)), (Some(11), Some(21)));
        assert!(refused(with.experiments.of(12)));
        assert_ne!(with.fingerprint("x"), without.fingerprint("x"));
    }

    #[test]
    fn ids_and_keys_that_are_taken_become_others_behind_all() {
        let mut known = fresh();
        known.users.insert("ann".into(), KnownUser { id: 4, untouched: false });
        known.users.insert("bob".into(), KnownUser { id: 7, untouched: false });
        known.workspaces.insert("other".into(), 3);
        known.projects.insert((3, "x".into()), 4);
        known.project_keys.insert("MNI".into());
        known.experiments.extend([10, 500]);
        let plan = plan(&survey(), &known, true);
        assert_eq!(plan.users.of(7), Some(&Fate::There(4)));
        assert_eq!(plan.workspaces.of(3), Some(&Fate::New(4)));
        assert_eq!(plan.projects.of(4), Some(&Fate::New(5)));
        assert_eq!(plan.project_keys[&4], "MNI1");
        assert_eq!((plan.experiments.id(10), plan.experiments.id(11)), (Some(501), Some(11)));
        assert_eq!(plan.experiments.renumbered().collect::<Vec<_>>(), [(10, 501)]);
    }

    #[test]
    fn what_was_taken_over_before_is_not_taken_over_again() {
        let mut known = fresh();
        let first = plan(&survey(), &known, false);
        known.users.insert("admin".into(), KnownUser { id: 1, untouched: false });
        known.users.insert("ann".into(), KnownUser { id: 7, untouched: false });
        known.groups.insert("vision".into(), 2);
        known.workspaces.insert("lab".into(), 3);
        known.projects.insert((3, "mnist".into()), 4);
        known.models.insert("best".into(), 5);
        known.templates.insert("t".into());
        known.experiments.insert(10);
        known.trials.insert(20);
        for (kind, fates) in first.kinds() {
            for (id, fate) in &fates.0 {
                if let Some(here) = fate.id() {
                    known.imported.insert((kind.to_owned(), id.to_string()), here);
                }
            }
        }
        assert!(first.is_anything_new());
        assert!(!plan(&survey(), &known, false).is_anything_new());
        // Renamed here since: still the same.
        known.workspaces.remove("lab");
        known.workspaces.insert("laboratory".into(), 3);
        assert!(!plan(&survey(), &known, false).is_anything_new());
        // Deleted here since: it does not come back.
        known.experiments.remove(&10);
        let again = plan(&survey(), &known, false);
        assert!(!again.is_anything_new());
        assert!(matches!(again.experiments.of(10), Some(Fate::Refused(_))));
    }
}
