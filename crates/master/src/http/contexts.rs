//! How much code the master keeps for a user: that of experiments, and of commands that are not over.

use instep_api::error::Code;

use super::call::Call;
use super::failure::Failure;

/// Refuses code of so many bytes, packed, if its sender would have more than the limit with it. Two requests at once may
/// each be let in: the limit keeps the disk from filling, it is not exact.
pub(super) async fn check(call: &Call, bytes: usize) -> Result<(), Failure> {
    let Some(limit) = call.application.user_context_limit.filter(|_| bytes > 0) else { return Ok(()) };
    let kept = call.application.database.context_bytes(call.user()?.id).await?;
    match objection(kept, bytes as u64, limit) {
        Some(why) => Err(Failure::new(Code::FailedPrecondition, why)),
        None => Ok(()),
    }
}

fn objection(kept: u64, more: u64, limit: u64) -> Option<String> {
    let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
    (kept.saturating_add(more) > limit).then(|| {
        format!(
            "your experiments and commands keep {} MiB of code, and with these {} MiB it would be more than the limit of {} \
             MiB\nhint: delete experiments that you do not need (`instep experiment delete`), send less (.detignore), or ask \
             the administrator for another --user-context-limit of the master",
            mebibytes(kept),
            mebibytes(more),
            mebibytes(limit)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_up_to_the_limit_is_taken() {
        assert_eq!(objection(3 << 20, 1 << 20, 4 << 20), None);
        let why = objection(3 << 20, (1 << 20) + 1, 4 << 20).unwrap();
        assert!(why.starts_with("your experiments and commands keep 3 MiB of code, and with these 2 MiB"), "{why}");
        assert!(why.contains("limit of 4 MiB\nhint: "), "{why}");
        assert!(objection(u64::MAX, 1, 4 << 20).is_some());
    }
}
