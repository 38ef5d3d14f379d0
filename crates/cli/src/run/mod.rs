//! `instep run`: options in, exit code out.

mod commands;
mod drill;
mod dry_run;
mod goodput;
mod options;
mod srun;
mod summary;

use std::process::ExitCode;

use clap_complete::Shell;
use instep_launch::{Plan, PlanError, plan, supervisor};

use self::summary::Summaries;
use crate::console::TerminalConsole;
use crate::report::{self, Hinted};

pub(crate) use commands::{Launcher, Start};
use options::{LaunchArguments, RunArguments};

/// Prints a script with which a shell completes the program's command lines.
pub(crate) type PrintCompletion = fn(Shell);

/// `instep run`.
pub(crate) fn run(arguments: RunArguments, print_completion: PrintCompletion) -> anyhow::Result<ExitCode> {
    start(arguments, false, print_completion)
}

/// `instep launch`, the legacy launcher: scripts get `--local-rank` unless `--use-env` is given.
pub(crate) fn launch(arguments: LaunchArguments, print_completion: PrintCompletion) -> anyhow::Result<ExitCode> {
    let pass_local_rank = !arguments.use_env;
    start(arguments.run, pass_local_rank, print_completion)
}

fn start(
    arguments: RunArguments,
    pass_local_rank: bool,
    print_completion: PrintCompletion,
) -> anyhow::Result<ExitCode> {
    if let Some(shell) = arguments.print_completion {
        print_completion(shell);
        return Ok(ExitCode::SUCCESS);
    }
    carry_out(arguments, pass_local_rank).inspect_err(|error| {
        // A parent that gave us an error file wants to know; the console hears of it in any case.
        let _ = summary::own_error(&report::chain(error.as_ref()));
    })
}

fn carry_out(arguments: RunArguments, pass_local_rank: bool) -> anyhow::Result<ExitCode> {
    let own = arguments.own();
    let hinted = |PlanError { message, hint }| Hinted::new(message, hint);
    let request = arguments.into_request(pass_local_rank).map_err(hinted)?;
    let variable = |name: &str| std::env::var(name).ok();
    if let Some(start) = plan::scheduler::start_through_srun(&request, variable).map_err(hinted)? {
        return srun::become_srun(&start, own.dry_run);
    }
    let mut plan = plan::resolve(request, |name| std::env::var_os(name)).map_err(hinted)?;
    if let Some(format) = own.dry_run {
        // It may be there by the time, or on the machine that it is meant for.
        plan.warnings.extend(missing_script(&plan).map(|(what, _)| what));
        dry_run::show(&plan, format)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some((what, hint)) = missing_script(&plan) {
        return Err(Hinted::new(what, hint).into());
    }
    drill::prepare(own.drill_json.as_deref())?;
    let summaries = Summaries::new(own.summary_json)?;
    let mut console = TerminalConsole::new(!own.no_status);
    for warning in &plan.warnings {
        console.warn(warning);
    }
    let ended = supervisor::run(&plan, &mut console);
    console.end_status();
    let outcome = match ended {
        Ok(outcome) => outcome,
        Err(error) => {
            let (reason, hint) = (report::chain(&error), error.hint());
            summaries.write(&summary::of_reason(&plan, &reason), &mut console)?;
            return Err(Hinted::new(reason, hint).into());
        }
    };
    drill::show(&outcome, own.drill_json.as_deref())?;
    goodput::show(&outcome);
    if plan.terms.step_recovery && goodput::shows_no_session(&outcome) {
        console.warn("no rank made an instep.elastic.Session, so --recover step could not have replaced a lost rank");
    }
    if !outcome.success {
        report::failure(&plan, &outcome);
        summary::pass_on_error_file(&outcome);
    }
    summaries.write(&summary::of_outcome(&plan, &outcome), &mut console)?;
    Ok(exit_code(&outcome, own.propagate_exit_code))
}

fn exit_code(outcome: &instep_launch::Outcome, propagate: bool) -> ExitCode {
    if outcome.success {
        // A drill that killed nobody and did no step twice has shown nothing.
        let idle = outcome.drill.as_ref().is_some_and(|report| !report.has_shown_anything());
        return if idle { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    // A rank that left with 0 or had to be stopped has no exit code of its own: that of the first to fail counts.
    let failed = |failure: &&instep_launch::failure::Failure| !failure.exit.success() && !failure.stopped;
    let own = outcome.root_cause().filter(failed).or_else(|| outcome.first_failure()).filter(|_| propagate);
    ExitCode::from(own.map(|failure| failure.exit.as_process_exit_code()).filter(|code| *code != 0).unwrap_or(1))
}

/// One clear message instead of one per worker, and what to do. Where other nodes wait for this one, the workers say it
/// themselves.
fn missing_script(plan: &Plan) -> Option<(String, String)> {
    let script = plan.script.as_ref().filter(|script| plan.terms.max_nodes == 1 && !script.exists())?;
    let folder = std::env::current_dir().map(|path| path.display().to_string()).unwrap_or_default();
    let what = match script.as_os_str().is_empty() {
        true => "the name of the script is empty".to_owned(),
        false => format!("the script {} does not exist", script.display()),
    };
    Some((what, format!("paths are relative to {folder}; -m runs a module, --no-python another program")))
}
