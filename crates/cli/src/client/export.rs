//! Everything that was reported, as CSV or JSON lines.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use instep_client::{Client, Query};

use super::dialog::say;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// One row per value
    Csv,
    /// One JSON object per report
    Jsonl,
}

#[derive(Debug, Args)]
pub(super) struct ExportArguments {
    /// Output format
    #[arg(long, default_value = "csv")]
    format: Format,
    /// Export only this group, such as training or validation
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Write to this file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Copies the metrics of `what`, such as `trials/7`.
pub(super) fn save(client: &Client, what: &str, arguments: &ExportArguments) -> anyhow::Result<()> {
    let extension = match arguments.format {
        Format::Csv => "csv",
        Format::Jsonl => "jsonl",
    };
    let query = Query::new().with_some("group", arguments.group.as_ref());
    let mut metrics = client.download(&format!("/{what}/metrics.{extension}{query}"), "*/*")?;
    match &arguments.output {
        None => match io::copy(&mut metrics, &mut io::stdout().lock()) {
            // A reader that has gone away is no error.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            copied => copied.map(drop).context("cannot print the metrics"),
        },
        Some(path) => {
            let shown = path.display();
            let mut file = File::create(path).with_context(|| format!("cannot write {shown}"))?;
            let bytes = io::copy(&mut metrics, &mut file).with_context(|| format!("cannot write {shown}"))?;
            file.flush()?;
            say(&format!("wrote {shown} ({})", super::shown::size(bytes as i64)));
            Ok(())
        }
    }
}
