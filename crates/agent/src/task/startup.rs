//! How the inner process of a task begins: it receives its order, makes the task's view of the machine with the rights of the
//! agent, and gives them up for those of the task's user.

use std::error::Error as _;
use std::fs::{self, File};
use std::io;
use std::iter::successors;

use instep_api::link::{Ending, Exit, RunAs};
use instep_api::states::LogLevel;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, access, getegid, geteuid, getppid};

use super::environment::Variables;
use super::mounts::Rules;
use super::names::Names;
use super::output::Output;
use super::privileges::Account;
use super::relay::Orders;
use super::supervisor::{self, DELIVERY};
use super::view::{self, View, ViewError, Wanted};
use super::{master, preparation, privileges, ssh, storage};
use crate::cgroup::task_group::TaskGroup;
use crate::folder::{OpenedTaskFolder, ShareFolder, StateFolder, TaskFolder};
use crate::order::TaskOrder;

/// Ends with this code where no mount namespace can be had, before anything was done.
pub const NEEDS_PLAIN_VIEW: u8 = 75;

/// What became of a supervisor.
#[derive(Debug)]
pub enum Outcome {
    /// The share has ended.
    Ended(Ending),
    /// No mount namespace can be had: it must be started again, for a plain view.
    NeedsPlainView,
    /// The guardian is gone, and nothing was begun.
    Abandoned,
}

/// Runs a share that the guardian has claimed; `pipe` is where the guardian sends the order.
pub fn run(folder: &ShareFolder, pipe: File, plain: bool, guardian: i32) -> io::Result<Outcome> {
    let (mut order, orders) = Orders::receive(pipe)?;
    let _looking_after = folder.look_after()?;
    if let Some(Err(error)) = order.cgroup.as_ref().map(TaskGroup::join) {
        return Ok(Outcome::Ended(Exit::Failed { why: format!("cannot limit the task: {error}") }.into()));
    }
    // No program that the task starts gets more rights than the task has.
    prctl::set_no_new_privs()?;
    // What is known of users is asked before the task has a say in what is seen at /etc.
    let user = privileges::other_user(&order);
    let account = user.as_ref().map(Account::find).transpose()?;
    let names = lacking_names(&order, user.as_ref())?;
    let mut inherited: Variables = std::env::vars_os().collect();
    inherited.extend(account.iter().flat_map(Account::variables));
    let task = folder.task();
    // Opened before something is mounted that could hide it.
    let own = File::open(task.path())?;
    let limited = account.as_ref().filter(|account| !account.is_root());
    let built = build_view(folder, &own, &order, &inherited, limited, plain);
    if let Ok((_, Some(opened))) = &built {
        names.show(opened)?;
        if order.start.ssh_keys.is_some() {
            // Few trials use it: one that does says what is missing, the others must not fail because of it.
            let _ = ssh::show(opened, geteuid().is_root() && limited.is_none());
        }
    }
    let view = built.map(|(view, _)| view);
    if matches!(view, Err(ViewError::NoNamespace(_))) {
        return Ok(Outcome::NeedsPlainView);
    }
    if let Some(account) = &account {
        account.give(&own)?;
        account.become_it()?;
    }
    // Else other tasks of the same user could read the token in our memory, and the pipes.
    prctl::set_dumpable(false)?;
    prctl::set_child_subreaper(true)?;
    prctl::set_pdeathsig(Signal::SIGTERM)?;
    if getppid().as_raw() != guardian {
        return Ok(Outcome::Abandoned);
    }
    match view.and_then(|view| reachable(&view).map(|()| view)) {
        Ok(view) => {
            preparation::use_certificates(&view, &mut order, &mut inherited);
            let ended = supervisor::supervise(orders, order, view, inherited);
            Ok(Outcome::Ended(ended.unwrap_or_else(|error| cannot_supervise(&error).into())))
        }
        Err(error) => Ok(Outcome::Ended(fail_early(&task, &order, error.to_string()))),
    }
}

/// The end of a share that nobody can look after: it will be no better at once, so it is not called lost.
fn cannot_supervise(error: &io::Error) -> Exit {
    let causes = successors(error.source(), |cause| (*cause).source());
    let causes: String = causes.map(|cause| format!(": {cause}")).collect();
    Exit::Failed { why: format!("cannot supervise the task: {error}{causes}") }
}

/// What the machine does not know of the task's user, and programs in the task ask for.
fn lacking_names(order: &TaskOrder, user: Option<&RunAs>) -> io::Result<Names> {
    let logs_in = order.start.ssh_keys.is_some();
    match user {
        Some(user) => Names::lacking(user, logs_in),
        // Ours: nothing of it was missing so far.
        None if logs_in => Names::lacking(&RunAs::unnamed(geteuid().as_raw(), getegid().as_raw()), logs_in),
        None => Ok(Names::default()),
    }
}

/// Makes what the task sees. Its folder, `own`, stays closed to the task's user for as long as something is done there with
/// the agent's rights. With a mount namespace, the folder comes as it was opened there before the task's mounts.
fn build_view(
    share: &ShareFolder,
    own: &File,
    order: &TaskOrder,
    inherited: &Variables,
    account: Option<&Account>,
    plain: bool,
) -> Result<(View, Option<OpenedTaskFolder>), ViewError> {
    let folder = &share.task();
    let failed = |error: io::Error| {
        ViewError::Impossible(format!("cannot prepare the task's folder {}: {error}", folder.path().display()))
    };
    // Without links, as mounted places are known, and before one of them could hide it.
    let state = StateFolder::of_share(share).map(|state| fs::canonicalize(state.path())).transpose().map_err(failed)?;
    let needed = preparation::needed_paths(folder, order, inherited, account);
    let rules = Rules { account, allowed: &order.machine.allowed_mounts, state: state.as_deref() };
    let storage = storage::mount_of(order);
    let wanted = Wanted {
        needed: &needed,
        mounts: &order.start.mounts,
        storage: storage.as_ref(),
        shared_memory_bytes: order.start.shared_memory_bytes,
        rules,
    };
    fill(folder, order, inherited, account).map_err(failed)?;
    let view = match account {
        _ if !plain => return view::isolated(folder, &wanted).map(|(view, opened)| (view, Some(opened))),
        Some(account) => {
            account.give(own).map_err(failed)?;
            account.acting(|| view::plain(folder, &wanted)).map_err(failed)?
        }
        None => view::plain(folder, &wanted),
    };
    Ok((view?, None))
}

/// Makes what is in a task's folder, for the task's user.
fn fill(folder: &TaskFolder, order: &TaskOrder, inherited: &Variables, account: Option<&Account>) -> io::Result<()> {
    for name in ["run", "tmp"] {
        // A first try may have left something.
        let _ = fs::remove_dir_all(folder.join(name));
    }
    preparation::folders(folder)?;
    preparation::programs(folder, order)?;
    preparation::certificates(folder, order, inherited)?;
    // Before anything is mounted below it: only what is the share's own changes hands.
    account.map_or(Ok(()), |account| account.give_content(folder.path()))
}

/// Whether the task's user gets to its own folder, without a mount namespace by the path of the agent's state.
fn reachable(view: &View) -> Result<(), ViewError> {
    access(&view.run, AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK).map_err(|errno| {
        let what = format!("user {} cannot use the task's folder {}: {errno}", geteuid(), view.run.display());
        let hint = "start the agent with a --state-folder that all users can reach, such as one in /var/lib";
        ViewError::Impossible(format!("{what}\nhint: {hint}"))
    })
}

/// Ends a share that has no view, with a line in its log. What cannot be said there is said to the agent all the same.
fn fail_early(folder: &TaskFolder, order: &TaskOrder, why: String) -> Ending {
    let (pipes, spool) = (folder.join("run/train/logs"), folder.join("run/instep/spool"));
    let output = master::connect(order).map_err(io::Error::other);
    if let Ok(output) = output.and_then(|client| Output::start(order, &pipes, &spool, client)) {
        output.say(LogLevel::Error, &why);
        output.close(DELIVERY);
    }
    Exit::Failed { why }.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::task::testing::order;

    #[test]
    fn a_task_s_folder_is_closed_until_everything_in_it_is_the_user_s() {
        // Only root can give files away.
        let uid = if geteuid().is_root() { 41_001 } else { geteuid().as_raw() };
        let account = Account::find(&RunAs::unnamed(uid, getegid().as_raw())).unwrap();
        let place = tempfile::tempdir().unwrap();
        let folder = TaskFolder::at(place.path());
        fill(&folder, &order(), &Variables::new(), Some(&account)).unwrap();
        let owner = |name: &str| fs::symlink_metadata(folder.join(name)).unwrap().uid();
        assert_eq!(fs::metadata(folder.path()).unwrap().uid(), geteuid().as_raw());
        for name in ["run", "tmp", "run/info", "run/train/logs", "run/programs/instep"] {
            assert_eq!(owner(name), uid, "{name}");
        }
        account.give(&File::open(folder.path()).unwrap()).unwrap();
        assert_eq!(fs::metadata(folder.path()).unwrap().uid(), uid);
    }
}
