//! How many nodes a job has: `--nnodes`.

use super::error::{PlanError, error};
use super::request::Request;

/// The least and the largest number of nodes.
pub(super) fn node_range(request: &Request) -> Result<(usize, usize), PlanError> {
    let (min_nodes, max_nodes) = parse_nodes(request.nnodes())?;
    if request.standalone && min_nodes > 1 {
        return Err(error(
            format!("--standalone runs on one node, but --nnodes is {}", request.nnodes()),
            "leave out --standalone and give --rdzv-backend c10d with --rdzv-endpoint HOST:PORT of the first node",
        ));
    }
    Ok((min_nodes, if request.standalone { 1 } else { max_nodes }))
}

fn parse_nodes(text: &str) -> Result<(usize, usize), PlanError> {
    let hint = "give a number (--nnodes 2) or a range (--nnodes 1:4)";
    let number = |part: &str| part.trim().parse::<usize>();
    let (min, max) = match text.split_once(':') {
        None => (number(text), number(text)),
        Some((min, max)) => (number(min), number(max)),
    };
    let (Ok(min), Ok(max)) = (min, max) else {
        return Err(error(format!("--nnodes \"{text}\" is not a number of nodes"), hint));
    };
    if min == 0 {
        return Err(error(format!("--nnodes {text}: a job needs at least one node"), hint));
    }
    if min > max {
        return Err(error(
            format!("--nnodes {text}: the minimum is larger than the maximum"),
            format!("did you mean --nnodes {max}:{min}?"),
        ));
    }
    Ok((min, max))
}
