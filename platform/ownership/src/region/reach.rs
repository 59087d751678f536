//! Whether the brokers that own bundles answer: who asks for a bundle whose owner has just died waits here for the next
//! owner, instead of being sent to a broker that is not there and coming back after a pause of its own choice.
//!
//! Invariants: H1 nobody waits for an owner beyond the time in which its lease must have ended; H2 a broker is asked once
//! per [`ASK_EVERY`] at most, by one question at a time; whoever asks in between is told the last answer; H3 silence
//! alone takes nothing from anybody: only the end of a lease does.
//! Failure: a broker that this one alone can't reach keeps its bundles; their clients wait once and are sent there then.

use super::RegionOwnership;
use crate::records::BrokerRecord;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Pause between two questions.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// An answer comes within that time or counts as silence.
const ANSWER_LIMIT: Duration = Duration::from_millis(250);
/// A lease has ended, and that is known, so long after its time to live.
const GRACE_MS: u64 = 1_000;
/// Brokers remembered at most.
const MAX_REMEMBERED: usize = 1_024;

/// What was heard of a broker.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Heard {
    incarnation: u64,
    asking: bool,
    /// When it was asked last, plus 1; 0 = never.
    asked_ms: u64,
    /// It has not answered since then.
    silent_since_ms: Option<u64>,
}

/// By broker.
pub(super) type AllHeard = HashMap<String, Heard>;

impl RegionOwnership {
    /// Until when to wait for another owner than this one (H1); `None` = it answers, as far as is known, or was waited for.
    pub(super) fn wait_until_ms(&self, broker: &Arc<BrokerRecord>) -> Option<u64> {
        let now_ms = self.now_ms();
        let mut all = self.heard.lock();
        if all.len() >= MAX_REMEMBERED {
            all.clear();
        }
        let heard = all.entry(broker.id.clone()).or_default();
        if heard.incarnation != broker.incarnation {
            *heard = Heard { incarnation: broker.incarnation, ..Heard::default() };
        }
        let due = heard.asked_ms == 0 || now_ms >= heard.asked_ms + ASK_EVERY.as_millis() as u64;
        if due && !heard.asking {
            heard.asking = true;
            tokio::spawn(ask(self.weak.clone(), broker.clone()));
        }
        let until_ms = heard.silent_since_ms? + self.longest_wait_ms();
        (now_ms < until_ms).then_some(until_ms)
    }

    fn longest_wait_ms(&self) -> u64 {
        (self.config.times.ttl_ms + GRACE_MS).min(self.config.locate_limit_ms / 2)
    }

    /// Notes an answer; whether to ask again although nobody came.
    fn note_answer(&self, broker: &BrokerRecord, answered: bool) -> bool {
        let now_ms = self.now_ms();
        let mut all = self.heard.lock();
        let Some(heard) = all.get_mut(&broker.id).filter(|heard| heard.incarnation == broker.incarnation) else {
            return false;
        };
        heard.asked_ms = now_ms + 1;
        let before = heard.silent_since_ms;
        heard.silent_since_ms = (!answered).then(|| before.unwrap_or(now_ms));
        let waits = heard.silent_since_ms.is_some_and(|since_ms| now_ms < since_ms + self.longest_wait_ms());
        heard.asking = waits;
        drop(all);
        if before.is_some() && answered {
            self.changed.send_modify(|count| *count += 1);
        }
        if before.is_none() && !answered {
            tracing::info!(
                broker = broker.id,
                "a broker does not answer; clients wait for what becomes of its bundles"
            );
        }
        waits
    }
}

/// Asks once, and goes on as long as somebody may wait for the answer.
async fn ask(region: std::sync::Weak<RegionOwnership>, broker: Arc<BrokerRecord>) {
    loop {
        let Some(here) = region.upgrade() else { return };
        let answered = match here.host() {
            Some(host) => timeout(ANSWER_LIMIT, host.reaches(broker.clone())).await.unwrap_or(false),
            None => true,
        };
        let lives = here.table.read().brokers().get(&broker.id).map(|there| there.record.incarnation);
        if !here.note_answer(&broker, answered) || lives != Some(broker.incarnation) {
            if let Some(heard) = here.heard.lock().get_mut(&broker.id) {
                heard.asking = false;
            }
            return;
        }
        drop(here);
        sleep(ASK_EVERY).await;
    }
}
