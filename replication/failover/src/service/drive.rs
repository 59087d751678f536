//! Drives a planned switch: the machine of [`crate::switch`] with a clock and calls.
//!
//! Invariants: S2; W1 to W4 are the machine's.
//! Failure: a switch whose process ends behind the hand-over is finished by telling the target at the next start.
//! Must never know: how topics drain.

use super::{FailoverCall, FailoverReply, FailoverService, now_ms};
use crate::FailoverError;
use crate::record::{ActiveRecord, NamespaceState, Phase};
use crate::switch::{Account, Effect, Event, Switch};
use meridian_types::NamespaceName;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// How long a region is asked again that has not heard yet what a switch is about; less if a switch takes less.
const READY_MS: u64 = 5_000;
/// Pause before that.
const READY_PAUSE: Duration = Duration::from_millis(50);

impl FailoverService {
    /// Hands a namespace over to another region: nothing is lost, nothing is seen twice, publishes are held meanwhile. Made
    /// anywhere, carried out where the namespace is active.
    ///
    /// # Errors
    /// Every [`FailoverError`]; nothing was switched then, but for [`FailoverError::Unreachable`], which may have come after
    /// the hand-over: ask again.
    pub async fn switch(self: &Arc<Self>, namespace: &NamespaceName, to: &str) -> Result<Account, FailoverError> {
        self.check_region(namespace, to)?;
        let state = self.known_state(namespace).await?;
        if state.record.active == to {
            return Err(FailoverError::AlreadyActive(to.to_owned()));
        }
        if state.record.active != self.own {
            return self.switch_elsewhere(namespace, to, &state.record.active).await;
        }
        self.reach(namespace, to, &state.record).await?;
        self.claim(namespace)?;
        let region = to.to_owned();
        // A task of its own: whoever asked may go away.
        let (service, namespace, to) = (self.clone(), namespace.clone(), to.to_owned());
        let driven = tokio::spawn(async move {
            let outcome = service.drive(&namespace, &to).await;
            service.release(&namespace);
            outcome
        });
        let limit = Duration::from_millis(self.settings.drain_ms.saturating_mul(2));
        match tokio::time::timeout(limit, driven).await {
            Ok(driven) => driven.unwrap_or_else(|error| Err(FailoverError::Host(error.to_string()))),
            // Only telling has no end of its own (W2).
            Err(_) => {
                let reason = "the namespace was handed over, and the region is told of it until it answers".to_owned();
                Err(FailoverError::Unreachable { region, reason })
            }
        }
    }

    /// Asks a region that may not have heard yet what the question is about, until it has.
    async fn ask_ready(&self, region: &str, call: FailoverCall) -> Result<FailoverReply, FailoverError> {
        let limit_ms = self.settings.drain_ms.min(READY_MS);
        let begun = Instant::now();
        loop {
            let reason = match self.peers.call(region, call.clone()).await {
                Ok(FailoverReply::NotYet(reason)) => reason,
                Ok(reply) => return Ok(reply),
                Err(reason) => return Err(FailoverError::Unreachable { region: region.to_owned(), reason }),
            };
            let waited_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            if waited_ms >= limit_ms {
                return Err(FailoverError::NotReady { region: region.to_owned(), reason, waited_ms });
            }
            sleep(READY_PAUSE).await;
        }
    }

    /// Nothing is held, let alone handed over, for a target that does not answer.
    async fn reach(&self, namespace: &NamespaceName, to: &str, record: &ActiveRecord) -> Result<(), FailoverError> {
        let call = FailoverCall::Learn { namespace: namespace.to_string(), record: record.clone() };
        let reason = match self.ask_ready(to, call).await? {
            FailoverReply::Record(Some(known)) if known.epoch == record.epoch => return Ok(()),
            FailoverReply::Record(Some(known)) => format!("it is at epoch {}, not {}", known.epoch, record.epoch),
            FailoverReply::Refused(why) => why,
            _ => "its answer is no record".to_owned(),
        };
        Err(FailoverError::Unreachable { region: to.to_owned(), reason })
    }

    async fn switch_elsewhere(
        &self,
        namespace: &NamespaceName,
        to: &str,
        active: &str,
    ) -> Result<Account, FailoverError> {
        let call = FailoverCall::Switch { namespace: namespace.to_string(), to: to.to_owned() };
        match self.ask_ready(active, call).await? {
            FailoverReply::Switched(account) => {
                self.learn(namespace, &account.record, false).await?;
                Ok(account)
            }
            FailoverReply::Refused(why) => Err(FailoverError::Host(format!("region {active}: {why}"))),
            _ => Err(FailoverError::Unreadable("the answer is no account".to_owned())),
        }
    }

    fn claim(&self, namespace: &NamespaceName) -> Result<(), FailoverError> {
        let mut known = self.known.write();
        let Some(one) = known.get_mut(namespace) else {
            return Err(FailoverError::NotManaged(namespace.to_string()));
        };
        if one.switching {
            let (to, begun_ms) = match &one.state.phase {
                Phase::Draining { to, begun_ms, .. } => (to.clone(), *begun_ms),
                Phase::Steady => ("another region".to_owned(), 0),
            };
            return Err(FailoverError::UnderWay { to, begun_ms });
        }
        one.switching = true;
        Ok(())
    }

    fn release(&self, namespace: &NamespaceName) {
        if let Some(one) = self.known.write().get_mut(namespace) {
            one.switching = false;
        }
    }

    async fn drive(&self, namespace: &NamespaceName, to: &str) -> Result<Account, FailoverError> {
        let current = self.active_here(namespace).await?.record;
        let (mut switch, effects) = Switch::begin(&current, to, now_ms(), self.settings.drain_ms);
        let mut effects: VecDeque<Effect> = effects.into();
        loop {
            let Some(effect) = effects.pop_front() else {
                let due_ms = switch.due_ms().unwrap_or_else(|| now_ms().saturating_add(1000));
                sleep(Duration::from_millis(due_ms.saturating_sub(now_ms()))).await;
                effects.extend(switch.handle(Event::Tick, now_ms()));
                continue;
            };
            let event = match effect {
                Effect::End(outcome) => return outcome,
                Effect::Freeze => self.hold(namespace, to, &current).await,
                Effect::Poll => match self.host.left(namespace, to).await {
                    Ok((entries, acks)) => Event::Left { entries, acks },
                    Err(error) => {
                        tracing::warn!(%namespace, %error, "what is left to drain is not known");
                        Event::Left { entries: u64::MAX, acks: u64::MAX }
                    }
                },
                Effect::Store(record) => self.hand_over(namespace, &record).await,
                Effect::Tell(record) => self.tell_target(namespace, to, &record).await,
                Effect::Thaw => {
                    let begun_ms = self.set_phase(namespace, Phase::Steady).unwrap_or_default();
                    self.host.thaw(namespace, begun_ms).await;
                    Event::Thawed
                }
                Effect::Move => {
                    self.host.move_clients(namespace, to).await;
                    self.tell_all(namespace).await;
                    Event::Moved
                }
            };
            effects.extend(switch.handle(event, now_ms()));
        }
    }

    async fn hold(&self, namespace: &NamespaceName, to: &str, current: &ActiveRecord) -> Event {
        let begun_ms = now_ms();
        let deadline_ms = begun_ms.saturating_add(self.settings.drain_ms);
        self.set_phase(namespace, Phase::Draining { to: to.to_owned(), begun_ms, deadline_ms });
        tracing::info!(%namespace, epoch = %current.epoch, to, "publishes are held for a planned switch");
        let limit = Duration::from_millis(self.settings.drain_ms);
        match tokio::time::timeout(limit, self.host.freeze(namespace)).await {
            Ok(Ok(())) => Event::Frozen,
            Ok(Err(error)) => Event::Refused(error),
            Err(_) => Event::Refused(FailoverError::Host("what was in flight was not stored in time".to_owned())),
        }
    }

    /// The phase is of this process alone: one that ends while it holds publishes has handed nothing over. Answers when
    /// the hold before it began.
    fn set_phase(&self, namespace: &NamespaceName, phase: Phase) -> Option<u64> {
        let mut known = self.known.write();
        let before = std::mem::replace(&mut known.get_mut(namespace)?.state.phase, phase);
        match before {
            Phase::Draining { begun_ms, .. } => Some(begun_ms),
            Phase::Steady => None,
        }
    }

    /// Another broker of the region drives a switch, and publishes are held here too; whether they were not before.
    ///
    /// # Errors
    /// [`FailoverError::NotManaged`], [`FailoverError::UnderWay`] if this process drives one itself, or what the store says
    /// if nothing is known of the namespace here.
    pub async fn hold_too(
        &self,
        namespace: &NamespaceName,
        to: &str,
        begun_ms: u64,
        deadline_ms: u64,
    ) -> Result<bool, FailoverError> {
        self.known_state(namespace).await?;
        let mut known = self.known.write();
        let Some(one) = known.get_mut(namespace) else {
            return Err(FailoverError::NotManaged(namespace.to_string()));
        };
        match &one.state.phase {
            Phase::Draining { to, begun_ms, .. } if one.switching => {
                Err(FailoverError::UnderWay { to: to.clone(), begun_ms: *begun_ms })
            }
            Phase::Draining { begun_ms: known_ms, .. } if *known_ms == begun_ms => Ok(false),
            _ => {
                one.state.phase = Phase::Draining { to: to.to_owned(), begun_ms, deadline_ms };
                Ok(true)
            }
        }
    }

    /// The switch that another broker began then holds no publishes any more, unless it ended with a hand-over; whether
    /// they were held.
    ///
    /// # Errors
    /// What the store says; they are held on then.
    pub async fn free(&self, namespace: &NamespaceName, begun_ms: u64) -> Result<bool, FailoverError> {
        let is_held =
            |state: &NamespaceState| matches!(state.phase, Phase::Draining { begun_ms: at, .. } if at == begun_ms);
        if !self.state(namespace).as_ref().is_some_and(is_held) {
            return Ok(false);
        }
        // A hand-over may be stored of which this process has not heard yet.
        self.catch_up(namespace).await?;
        let mut known = self.known.write();
        let Some(one) = known.get_mut(namespace).filter(|one| !one.switching && is_held(&one.state)) else {
            return Ok(false);
        };
        one.state.phase = Phase::Steady;
        Ok(true)
    }

    async fn hand_over(&self, namespace: &NamespaceName, record: &ActiveRecord) -> Event {
        let state = NamespaceState { confirmed: true, ..NamespaceState::new(record.clone()) };
        let _turn = self.changes.lock().await;
        match self.save(namespace, &state).await {
            Ok(()) => {
                self.remember(namespace, state);
                Event::Stored
            }
            Err(error) => Event::NotStored(error),
        }
    }

    async fn tell_target(&self, namespace: &NamespaceName, to: &str, record: &ActiveRecord) -> Event {
        let call = FailoverCall::Learn { namespace: namespace.to_string(), record: record.clone() };
        match self.peers.call(to, call).await {
            Ok(FailoverReply::Record(Some(known))) if known.epoch >= record.epoch => Event::Told,
            other => {
                tracing::warn!(%namespace, to, ?other, "the new active region was not told yet, trying again");
                Event::NotTold
            }
        }
    }
}
