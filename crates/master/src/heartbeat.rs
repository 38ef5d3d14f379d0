//! Gives up trials that run elsewhere and went silent.

use std::sync::Arc;
use std::time::Duration;

use instep_policy::heartbeat::overdue;

use crate::application::Application;
use crate::clock::now;

/// How often trials are looked at.
const PERIOD: Duration = Duration::from_secs(30);

/// Looks again and again, until it is dropped.
pub(crate) async fn watch(application: Arc<Application>) {
    loop {
        // A failure here is one of the database, which every request reports; the next look tries again.
        let _ = look(&application).await;
        tokio::time::sleep(PERIOD).await;
    }
}

async fn look(application: &Application) -> instep_database::Result<()> {
    for (trial, last_heard) in application.database.running_trials().await? {
        let silence = now().0.saturating_sub(last_heard.0);
        if overdue(Duration::from_micros(silence.try_into().unwrap_or(0))).is_some() {
            application.database.give_up_trial(trial, last_heard).await?;
            application.logs_arrived();
        }
    }
    Ok(())
}
