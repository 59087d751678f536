//! A start that waits for the metadata store.
//!
//! Invariants: T1 only a store that does not answer is waited for: what it says against the start ends it at once; T2
//! while it waits there is one line per [`LINE_EVERY`], and the web ports say the same; T3 it ends at the limit.
//! Failure: past the limit, the setting that is the limit and the last reason.

use crate::cli::Failure;
use crate::front::Front;
use meridian_metadata::MetadataError;
use meridian_settings::{Key, Settings};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two lines.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// See the head of this file.
pub struct Patience {
    front: Arc<Front>,
    url: String,
    limit: Duration,
    begun: Instant,
    next_line: Instant,
}

impl Patience {
    /// Of a process that starts now.
    pub fn new(settings: &Settings, front: &Arc<Front>) -> Self {
        let begun = Instant::now();
        Self {
            front: front.clone(),
            url: settings.text(Key::MetadataStoreUrl).to_owned(),
            limit: Duration::from_secs(settings.count(Key::MetadataStoreStartTimeoutSeconds)),
            begun,
            next_line: begun,
        }
    }

    /// Tries until the store says something (T1).
    ///
    /// # Errors
    /// What it says against it, or that it said nothing until the limit.
    pub async fn until<T, F>(&mut self, attempt: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, MetadataError>>,
    {
        let mut waited = false;
        let mut reason = "it has not answered yet".to_owned();
        loop {
            let mut trying = std::pin::pin!(attempt());
            let outcome = loop {
                // The first line at the first failure, or when the first attempt takes long.
                let line_at = if waited { self.next_line } else { self.next_line + LINE_EVERY };
                tokio::select! {
                    outcome = &mut trying => break outcome,
                    () = tokio::time::sleep_until(line_at.min(self.ends_at())) => {
                        waited = true;
                        self.wait_on(&reason)?;
                    }
                }
            };
            match outcome {
                Err(error @ (MetadataError::Unavailable(_) | MetadataError::UnknownOutcome(_))) => {
                    reason = error.to_string();
                }
                outcome => {
                    if waited {
                        let waited_ms = self.begun.elapsed().as_millis() as u64;
                        tracing::info!(waited_ms, "the metadata store answers: the start goes on");
                        self.front.waits_for("it is starting");
                    }
                    return Ok(outcome?);
                }
            }
            waited = true;
            self.wait_on(&reason)?;
            tokio::time::sleep(PAUSE.min(self.ends_at().saturating_duration_since(Instant::now()))).await;
        }
    }

    fn ends_at(&self) -> Instant {
        self.begun + self.limit
    }

    /// Says what is waited for, unless it was said a moment ago (T2, T3).
    fn wait_on(&mut self, reason: &str) -> Result<(), Failure> {
        let (url, limit_s, now) = (&self.url, self.limit.as_secs(), Instant::now());
        if now >= self.ends_at() {
            return Err(format!(
                "metadataStoreUrl={url}: the metadata store did not answer within {limit_s} s \
                 (metadataStoreStartTimeoutSeconds): {reason}"
            )
            .into());
        }
        self.front.waits_for(format!("it waits for the metadata store at {url}: {reason}"));
        if now >= self.next_line {
            self.next_line = now + LINE_EVERY;
            let waited_s = self.begun.elapsed().as_secs();
            tracing::warn!(url, waited_s, limit_s, reason, "the start waits for the metadata store");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn patience(limit_s: u64) -> (Patience, Arc<Front>) {
        let front = Front::new(prometheus::Registry::new());
        let mut settings = Settings::default();
        let pair = format!("metadataStoreStartTimeoutSeconds={limit_s}");
        settings.set_pair("test", &pair).expect("it is a setting");
        (Patience::new(&settings, &front), front)
    }

    #[tokio::test]
    async fn silence_is_waited_for_and_anything_else_is_not() {
        let (mut patience, _) = patience(60);
        let tries = AtomicU64::new(0);
        let attempt = || async {
            match tries.fetch_add(1, Ordering::Relaxed) {
                0 => Err(MetadataError::Unavailable("refused".into())),
                1 => Ok(7),
                _ => Err(MetadataError::Corrupt("foreign".into())),
            }
        };
        assert_eq!(patience.until(attempt).await.expect("it answered"), 7);
        let refused = patience.until(attempt).await.expect_err("it is foreign").to_string();
        assert!(refused.contains("foreign") && tries.load(Ordering::Relaxed) == 3, "{refused}");
    }

    #[tokio::test]
    async fn the_wait_ends_at_its_limit_although_an_attempt_hangs() {
        let (mut patience, _front) = patience(1);
        let hung = || std::future::pending::<Result<(), MetadataError>>();
        let late = patience.until(hung).await.expect_err("it never answered").to_string();
        assert!(late.contains("within 1 s (metadataStoreStartTimeoutSeconds)"), "{late}");
    }
}
