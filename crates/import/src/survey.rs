//! The names and ids of a source: enough to decide what is taken over.

use crate::error::Result;
use crate::source::Source;
use crate::tables;

/// A project of the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Project {
    pub id: i64,
    pub workspace: Option<i64>,
    pub name: String,
    pub key: Option<String>,
}

/// An experiment of the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Experiment {
    pub id: i64,
    /// As Determined spells it, such as `COMPLETED`.
    pub state: String,
    pub project: i64,
    pub owner: i64,
}

/// A group of the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Group {
    pub id: i64,
    pub name: String,
    /// Whose own group it is: every user has one, which holds the user's roles.
    pub owner: Option<i64>,
}

/// What there is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Survey {
    pub users: Vec<(i64, String)>,
    pub groups: Vec<Group>,
    pub workspaces: Vec<(i64, String)>,
    pub projects: Vec<Project>,
    pub experiments: Vec<Experiment>,
    /// With the experiment of each.
    pub trials: Vec<(i64, i64)>,
    pub models: Vec<(i64, String)>,
    /// With the model of each.
    pub model_versions: Vec<(i64, i64)>,
    pub templates: Vec<String>,
}

/// Looks at everything that has a name or an id.
pub fn survey(source: &mut dyn Source) -> Result<Survey> {
    let mut found = Survey::default();
    source.read(&tables::USERS, None, &mut |row, _| {
        found.users.push((row.integer("id")?, row.text("username")?));
        Ok(())
    })?;
    source.read(&tables::GROUPS, None, &mut |row, _| {
        let (id, name, owner) = (row.integer("id")?, row.text("group_name")?, row.optional_integer("user_id")?);
        found.groups.push(Group { id, name, owner });
        Ok(())
    })?;
    source.read(&tables::WORKSPACES, None, &mut |row, _| {
        found.workspaces.push((row.integer("id")?, row.text("name")?));
        Ok(())
    })?;
    source.read(&tables::PROJECTS, None, &mut |row, _| {
        let (id, name) = (row.integer("id")?, row.text("name")?);
        let (workspace, key) = (row.optional_integer("workspace_id")?, row.optional_text("key")?);
        found.projects.push(Project { id, workspace, name, key });
        Ok(())
    })?;
    source.read(&tables::EXPERIMENT_STATES, None, &mut |row, _| {
        found.experiments.push(Experiment {
            id: row.integer("id")?,
            state: row.text("state")?,
            project: row.integer("project_id")?,
            owner: row.integer("owner_id")?,
        });
        Ok(())
    })?;
    source.read(&tables::TRIAL_IDS, None, &mut |row, _| {
        found.trials.push((row.integer("id")?, row.integer("experiment_id")?));
        Ok(())
    })?;
    source.read(&tables::MODELS, None, &mut |row, _| {
        found.models.push((row.integer("id")?, row.text("name")?));
        Ok(())
    })?;
    source.read(&tables::MODEL_VERSIONS, None, &mut |row, _| {
        found.model_versions.push((row.integer("id")?, row.integer("model_id")?));
        Ok(())
    })?;
    source.read(&tables::TEMPLATES, None, &mut |row, _| {
        found.templates.push(row.text("name")?);
        Ok(())
    })?;
    found.sort();
    Ok(found)
}

impl Survey {
    /// Rows come in any order; decisions must not depend on it.
    fn sort(&mut self) {
        self.users.sort();
        self.groups.sort_by_key(|group| group.id);
        self.workspaces.sort();
        self.projects.sort_by_key(|project| project.id);
        self.experiments.sort_by_key(|experiment| experiment.id);
        self.trials.sort();
        self.models.sort();
        self.model_versions.sort();
        self.templates.sort();
    }
}
