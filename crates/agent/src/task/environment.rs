//! The variables of a task: those it inherits from the agent, the master's, this machine's, the user's, each over those before.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use instep_api::link::DeviceKind;
use serde_json::json;

use super::view::View;
use crate::inheritance::is_kept_back;
use crate::order::TaskOrder;

/// Names and values.
pub type Variables = BTreeMap<OsString, OsString>;

/// Marks every process of a share, so that they can be found whatever becomes of their parents.
pub const MARK: &str = "INSTEP_SHARE";

/// Says where the secrets of a task are that are files.
pub const SECRETS_FOLDER: &str = "INSTEP_SECRETS_DIR";

/// Builds them. `inherited` is what the agent passed on of its environment; `Err` says what is wrong with the order.
pub fn variables(order: &TaskOrder, view: &View, inherited: Variables) -> Result<Variables, String> {
    let inherited: Variables = inherited.into_iter().filter(|(name, _)| !is_kept_back(name)).collect();
    let mut all = inherited.clone();
    let own_path = all.get(OsStr::new("PATH")).cloned();
    for (name, value) in &order.start.environment {
        set(&mut all, name, value);
    }
    for (name, value) in of_machine(order, view) {
        set(&mut all, name, value);
    }
    let inside = all.get(OsStr::new("VIRTUAL_ENV")).is_some_and(|folder| order.machine.python.starts_with(folder));
    if !inside {
        all.remove(OsStr::new("VIRTUAL_ENV"));
    }
    set(&mut all, "PATH", search_path(order, view, own_path.as_deref()));
    if let Some(shim) = &view.shim {
        let before = all.get(OsStr::new("PYTHONPATH")).filter(|path| !path.is_empty()).cloned();
        set(&mut all, "PYTHONPATH", joined([Some(shim.clone().into_os_string()), before]));
    }
    // Programs keep things at home: a user whom the machine does not know, or gives no folder, has the task's own.
    if !all.get(OsStr::new("HOME")).is_some_and(|home| home != "/" && Path::new(home).is_dir()) {
        set(&mut all, "HOME", view.run.join("workdir"));
    }
    for entry in &order.start.user_environment {
        match entry.split_once('=') {
            Some((name, value)) if !name.is_empty() => set(&mut all, name, value),
            Some(_) => return Err(format!("`{entry}` in environment_variables has no name")),
            // A name alone takes the agent's own value, if tasks inherit it.
            None => all
                .extend(inherited.get_key_value(OsStr::new(entry)).map(|(name, value)| (name.clone(), value.clone()))),
        }
    }
    let secrets = &order.start.secrets;
    if let Some(problem) = &secrets.problem {
        return Err(problem.clone());
    }
    for (name, value) in &secrets.variables {
        set(&mut all, name, value);
    }
    if !secrets.files.is_empty() {
        set(&mut all, SECRETS_FOLDER, view.run.join("secrets"));
    }
    Ok(all)
}

fn set(all: &mut Variables, name: impl Into<OsString>, value: impl Into<OsString>) {
    all.insert(name.into(), value.into());
}

/// What depends on the machine.
fn of_machine(order: &TaskOrder, view: &View) -> Vec<(&'static str, OsString)> {
    let (start, machine) = (&order.start, &order.machine);
    let slots: Vec<u32> = machine.devices.iter().map(|device| device.id).collect();
    let cuda = machine.devices.iter().filter(|device| device.kind == DeviceKind::Cuda);
    let visible: Vec<&str> = cuda.map(|device| device.uuid.as_str()).collect();
    let (host, port) = host_and_port(&machine.master);
    let mut all: Vec<(&'static str, OsString)> = vec![
        ("DET_MASTER", machine.master.clone().into()),
        ("DET_MASTER_HOST", host.clone().into()),
        ("DET_MASTER_ADDR", host.into()),
        ("DET_MASTER_PORT", port.into()),
        ("DET_MASTER_ID", machine.master_id.clone().into()),
        ("DET_CLUSTER_ID", machine.cluster_id.clone().into()),
        ("DET_AGENT_ID", machine.agent.clone().into()),
        ("DET_SLOT_IDS", json!(slots).to_string().into()),
        ("DET_CONTAINER_ID", start.container.clone().into()),
        ("DET_RESOURCES_ID", start.share.resources.clone().into()),
        ("DET_RESOURCES_TYPE", "docker-container".into()),
        ("DET_TASK_ID", start.task.clone().into()),
        ("DET_ALLOCATION_ID", start.share.allocation.clone().into()),
        ("DET_SESSION_TOKEN", start.token.clone().into()),
        ("DET_USE_TLS", if machine.master.starts_with("https://") { "true" } else { "false" }.into()),
        ("DET_RUN_DIR", view.run.clone().into()),
        ("DET_WORKDIR", view.run.join("workdir").into()),
        // Else a token that somebody keeps in the home folder would win over the task's own.
        ("DET_DEBUG_CONFIG_PATH", view.run.join("config").into()),
        ("PYTHON_EXEC", machine.python.clone().into()),
        // Graphics processors that were not given are not seen, also by a task without any.
        ("CUDA_VISIBLE_DEVICES", visible.join(",").into()),
        ("TMPDIR", view.tmp.clone().into()),
        (MARK, start.share.resources.clone().into()),
    ];
    if !machine.masters.is_empty() {
        // What Determined's own client does not understand, ours does: a task outlives the host of its master.
        all.push(("INSTEP_MASTER", machine.masters.clone().into()));
    }
    all.extend(machine.certificates.as_ref().map(|path| ("DET_MASTER_CERT_FILE", path.clone().into())));
    all
}

/// `scheme://host:port/prefix` in parts.
fn host_and_port(master: &str) -> (String, String) {
    let authority = master.split_once("://").map_or(master, |(_, rest)| rest).split('/').next().unwrap_or_default();
    match authority.rsplit_once(':') {
        Some((host, port)) => (host.trim_matches(['[', ']']).to_owned(), port.to_owned()),
        None => (authority.to_owned(), String::new()),
    }
}

/// The interpreter's folder, then `python3` and `instep` should they not be in it, then what the agent has.
fn search_path(order: &TaskOrder, view: &View, own: Option<&OsStr>) -> OsString {
    let python = order.machine.python.parent().map(|folder| folder.as_os_str().to_owned());
    let own = own.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    joined([python, Some(view.programs.clone().into_os_string()), Some(own.to_owned())])
}

fn joined(parts: impl IntoIterator<Item = Option<OsString>>) -> OsString {
    let parts: Vec<OsString> = parts.into_iter().flatten().collect();
    parts.join(OsStr::new(":"))
}

/// Looks a program up as the task would.
pub fn find_program(name: &str, all: &Variables, folder: &Path) -> Option<std::path::PathBuf> {
    let runs = |path: &Path| path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok();
    if name.contains('/') {
        return Some(folder.join(name)).filter(|path| runs(path));
    }
    let path = all.get(OsStr::new("PATH"))?;
    std::env::split_paths(path).map(|entry| folder.join(entry).join(name)).find(|path| runs(path))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{order, view};
    use super::*;

    fn built(order: &TaskOrder, inherited: &[(&str, &str)]) -> BTreeMap<String, String> {
        let inherited = inherited.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let all = variables(order, &view(), inherited).unwrap();
        all.into_iter().map(|(n, v)| (n.into_string().unwrap(), v.into_string().unwrap())).collect()
    }

    #[test]
    fn later_variables_win_and_secrets_of_the_agent_stay_behind() {
        let mut order = order();
        order.start.environment.insert("DET_TRIAL_ID".into(), "9".into());
        order.start.environment.insert("A".into(), "master".into());
        order.start.user_environment =
            ["A=user", "B=1=2", "A=last", "NEVER_SET", "INSTEP_AGENT_TOKEN", "PATH"].map(str::to_owned).to_vec();
        let all = built(
            &order,
            &[("A", "agent"), ("INSTEP_AGENT_TOKEN", "s"), ("DET_USER", "x"), ("KEPT", "1"), ("PATH", "/bin")],
        );
        assert_eq!(all["A"], "last");
        assert_eq!(all["B"], "1=2");
        assert_eq!(all["KEPT"], "1");
        assert!(!all.contains_key("INSTEP_AGENT_TOKEN") && !all.contains_key("DET_USER"));
        assert!(!all.contains_key("NEVER_SET"));
        assert_eq!(all["DET_TRIAL_ID"], "9");
        assert_eq!(all["DET_SLOT_IDS"], "[0,1]");
        assert_eq!(all["CUDA_VISIBLE_DEVICES"], "GPU-a,GPU-b");
        assert_eq!(all["PATH"], "/bin", "a name alone takes the agent's own");
        order.start.user_environment.pop();
        let all = built(&order, &[("PATH", "/bin")]);
        assert_eq!(all["PATH"], "/opt/python/bin:/share/programs:/bin");
        assert_eq!((&*all["DET_MASTER_HOST"], &*all["DET_MASTER_PORT"]), ("10.0.0.1", "8080"));
        assert_eq!(all["DET_RUN_DIR"], "/run/determined");
        order.start.user_environment = vec!["=1".into()];
        assert!(variables(&order, &view(), Variables::new()).unwrap_err().contains("has no name"));
    }

    #[test]
    fn a_user_without_a_home_is_at_home_in_the_working_directory() {
        for (home, expected) in
            [("/usr", "/usr"), ("/", "/run/determined/workdir"), ("/nonexistent", "/run/determined/workdir")]
        {
            assert_eq!(built(&order(), &[("HOME", home)])["HOME"], expected);
        }
        assert_eq!(built(&order(), &[])["HOME"], "/run/determined/workdir");
    }

    #[test]
    fn a_virtual_environment_is_kept_only_with_its_python() {
        let order = order();
        assert_eq!(built(&order, &[("VIRTUAL_ENV", "/opt/python")])["VIRTUAL_ENV"], "/opt/python");
        assert!(!built(&order, &[("VIRTUAL_ENV", "/other")]).contains_key("VIRTUAL_ENV"));
    }
}
