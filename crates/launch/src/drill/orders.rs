//! Files in the folder of the ranks' flight recorders by which a drill and sessions know of each other: `drill-RANK` says
//! where that rank is to end, `replayed-RANK` how many steps it has done twice.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use super::{DrillSettings, Place};

/// Tells sessions that there are orders (`orders`), or that they are to do every step twice (`replay`), or both.
const VARIABLE: &str = "INSTEP_DRILL";

/// What sessions are told at their start, if there is anything to tell.
pub(crate) fn variable(settings: &DrillSettings) -> Option<(&'static str, OsString)> {
    let parts = [settings.at.map(|_| "orders"), settings.replay.then_some("replay")];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join(",");
    (!text.is_empty()).then(|| (VARIABLE, text.into()))
}

/// Tells a rank where to end. The order is there whole or not at all.
pub(crate) fn leave(folder: &Path, rank: usize, place: Place) -> io::Result<()> {
    let new = folder.join(format!("drill-{rank}.new"));
    fs::write(&new, place.name())?;
    fs::rename(new, folder.join(format!("drill-{rank}")))
}

/// How many steps every rank of this node has done twice; 0 if one has done none.
pub(crate) fn replayed(folder: &Path, ranks: impl Iterator<Item = usize>) -> u64 {
    let of_rank = |rank: usize| {
        let text = fs::read_to_string(folder.join(format!("replayed-{rank}"))).ok()?;
        text.trim().parse::<u64>().ok()
    };
    ranks.map(|rank| of_rank(rank).unwrap_or(0)).min().unwrap_or(0)
}
