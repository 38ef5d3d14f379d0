//! `--dry-run`: what would be started, for people or programs.

use std::ffi::OsString;

use instep_launch::plan::scheduler::{Scheduler, SlurmStart};
use instep_launch::plan::{Plan, RendezvousMode, SpareKind};
use serde_json::{Value, json};

use super::options::DryRunFormat;
use crate::console;

pub(super) fn show(plan: &Plan, format: DryRunFormat) -> anyhow::Result<()> {
    let text = match format {
        DryRunFormat::Json => format!("{:#}\n", as_json(plan)),
        DryRunFormat::Text => as_text(plan),
    };
    console::print(text.as_bytes());
    Ok(())
}

/// What becomes of this process in the batch script of a Slurm job. What the launchers do is known when they are there.
pub(super) fn show_start(start: &SlurmStart, words: &[OsString], format: DryRunFormat) {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let text = match format {
        DryRunFormat::Json => {
            let shown = json!({
                "command": words,
                "scheduler": scheduler(&start.scheduler),
                "nodes": {"min": start.nodes, "max": start.nodes},
            });
            format!("{shown:#}\n")
        }
        DryRunFormat::Text => {
            let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
            let mut rows = vec![("command", quoted.join(" ")), ("nodes", format!("{}, each by srun", start.nodes))];
            rows.extend(scheduler_rows(&start.scheduler));
            table(rows)
        }
    };
    console::print(text.as_bytes());
}

fn scheduler(found: &Scheduler) -> Value {
    let findings = found.findings.iter();
    let findings = findings.map(|found| json!({"what": found.what, "value": found.value, "from": found.from}));
    json!({"name": found.name, "found": findings.collect::<Vec<_>>()})
}

fn scheduler_rows(found: &Scheduler) -> Vec<(&'static str, String)> {
    let findings = found.findings.iter();
    let findings = findings.map(|found| ("found", format!("{} {} ({})", found.what, found.value, found.from)));
    [("scheduler", found.name.clone())].into_iter().chain(findings).collect()
}

fn command(plan: &Plan) -> Vec<String> {
    plan.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn rendezvous(plan: &Plan) -> String {
    match &plan.rendezvous {
        RendezvousMode::Standalone => "this node alone, any free port on loopback".to_owned(),
        RendezvousMode::Static { host, port } if plan.node_rank == 0 => {
            format!("static: this node serves {host} port {port}")
        }
        RendezvousMode::Static { host, port } => format!("static: node 0 serves {host} port {port}"),
        RendezvousMode::C10d { host, port, .. } => format!("c10d: the node at {host} serves port {port}"),
    }
}

fn as_json(plan: &Plan) -> Value {
    json!({
        "command": command(plan),
        "interpreter": plan.interpreter.as_ref().map(|found| json!({
            "path": found.path.display().to_string(),
            "chosen_because": found.chosen_because,
        })),
        "scheduler": plan.scheduler.as_ref().map(scheduler),
        "rendezvous": rendezvous(plan),
        "run_id": plan.job.run_id,
        "nodes": {"min": plan.terms.min_nodes, "max": plan.terms.max_nodes, "this": plan.node_rank},
        "workers_per_node": plan.job.workers,
        "role": plan.job.role,
        "max_restarts": plan.terms.max_restarts,
        "recover": if plan.terms.step_recovery { "step" } else { "round" },
        "spares": spares(plan),
        "signals": plan.signals.iter().map(|signal| signal.as_str()).collect::<Vec<_>>(),
        "warnings": plan.warnings,
    })
}

fn as_text(plan: &Plan) -> String {
    let nodes = match (plan.terms.min_nodes, plan.terms.max_nodes) {
        (1, 1) => "1".to_owned(),
        (_, max) if plan.terms.fixed_ranks => format!("{max}, this is node {}", plan.node_rank),
        (min, max) if min == max => format!("{max}, numbered when they meet"),
        (min, max) => format!("{min} to {max}, numbered when they meet"),
    };
    let python = match &plan.interpreter {
        Some(found) if plan.runs_python => format!("{} ({})", found.path.display(), found.chosen_because),
        _ => "none: the program runs directly".to_owned(),
    };
    let restarts = match plan.terms.max_restarts {
        0 => "none".to_owned(),
        most => format!("up to {most}"),
    };
    let words: Vec<String> = command(plan).iter().map(|word| quote(word)).collect();
    let mut rows = vec![
        ("command", words.join(" ")),
        ("python", python),
        ("nodes", nodes),
        ("workers", format!("{} on this node", plan.job.workers)),
        ("rendezvous", rendezvous(plan)),
        ("job id", plan.job.run_id.clone()),
        ("restarts", restarts),
    ];
    let modules = plan.preload.join(", ");
    let recovery = match plan.spares {
        SpareKind::EachRank => None,
        _ if modules.is_empty() => Some("a lost rank is replaced by a cold start".to_owned()),
        SpareKind::Shared(1) => Some(format!("a lost rank is replaced; 1 spare interpreter imports {modules}")),
        SpareKind::Shared(many) => Some(format!("a lost rank is replaced; {many} spare interpreters import {modules}")),
        SpareKind::Hot => Some("a lost rank is replaced by its hot spare".to_owned()),
    };
    rows.extend(recovery.map(|recovery| ("recovery", recovery)));
    let token = plan.token.as_ref().map(|_| "only nodes that have the job's token join".to_owned());
    rows.extend(token.map(|token| ("token", token)));
    rows.extend(plan.scheduler.iter().flat_map(scheduler_rows));
    rows.extend(plan.warnings.iter().map(|warning| ("warning", warning.clone())));
    table(rows)
}

fn table(rows: Vec<(&str, String)>) -> String {
    let lines: Vec<String> = rows.into_iter().map(|(name, value)| format!("{name:<11} {value}\n")).collect();
    format!("{}nothing was started (--dry-run)\n", lines.concat())
}

/// The spares that replace lost ranks, as `--spares` names them.
fn spares(plan: &Plan) -> Value {
    match plan.spares {
        SpareKind::EachRank => Value::Null,
        SpareKind::Shared(count) => count.into(),
        SpareKind::Hot => "hot".into(),
    }
}

/// A word as a shell would need it.
fn quote(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
