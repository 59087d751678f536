//! The record of a namespace's active region, and what a region may do under it.
//!
//! Stored and sent as JSON: `{"v":1,"record":{"epoch":"7-0000000a","active":"west","forced":false,"previous":"east",
//! "sinceMs":1},"phase":"steady","tailPending":false}`; during a planned switch `phase` is `{"draining":{"to":"east","begunMs":1,
//! "deadlineMs":2}}`, and it never leaves its region. An epoch is its counter, `-`, and the region's id in 8 hex digits.
//!
//! Invariants: F1 an epoch names the region that is active in it; F2 [`NamespaceState::learn`] never lowers an epoch.
//! Failure: [`FailoverError::Unreadable`] for bytes of another version.
//! Must never know: stores, links, clocks.

use crate::FailoverError;
use meridian_types::RegionId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The number of a reign: grows with each switch. The region that is active in it is part of it, so that two regions that
/// are forced at the same time, unseen by each other, are in different epochs (F1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Epoch {
    /// How many switches there were.
    pub counter: u64,
    /// The region that is active in it.
    pub region: RegionId,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:08x}", self.counter, self.region.0)
    }
}

impl FromStr for Epoch {
    type Err = FailoverError;

    fn from_str(text: &str) -> Result<Self, FailoverError> {
        let unreadable = || FailoverError::Unreadable(format!("epoch '{text}': expected COUNTER-REGIONID"));
        let (counter, region) = text.split_once('-').ok_or_else(unreadable)?;
        let region = u32::from_str_radix(region, 16).map_err(|_| unreadable())?;
        Ok(Self { counter: counter.parse().map_err(|_| unreadable())?, region: RegionId(region) })
    }
}

impl TryFrom<String> for Epoch {
    type Error = FailoverError;

    fn try_from(text: String) -> Result<Self, FailoverError> {
        text.parse()
    }
}

impl From<Epoch> for String {
    fn from(epoch: Epoch) -> Self {
        epoch.to_string()
    }
}

/// Who is active, as all regions of the namespace come to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActiveRecord {
    /// Of this reign.
    pub epoch: Epoch,
    /// Name of the active region.
    pub active: String,
    /// The reign began by force: the previous region did not hand over.
    pub forced: bool,
    /// Who was active before; `None` = the namespace had no active region.
    pub previous: Option<String>,
    /// When it began, ms since 1970, by the clock of who began it.
    pub since_ms: u64,
}

impl ActiveRecord {
    /// The first record of a namespace.
    pub fn first(active: &str, now_ms: u64) -> Self {
        let epoch = Epoch { counter: 1, region: RegionId::of(active) };
        Self { epoch, active: active.to_owned(), forced: false, previous: None, since_ms: now_ms }
    }

    /// The reign that follows.
    pub fn next(&self, active: &str, forced: bool, now_ms: u64) -> Self {
        let epoch = Epoch { counter: self.epoch.counter + 1, region: RegionId::of(active) };
        Self { epoch, active: active.to_owned(), forced, previous: Some(self.active.clone()), since_ms: now_ms }
    }

    /// F1: whether the epoch is the active region's.
    pub fn is_sound(&self) -> bool {
        self.epoch.region == RegionId::of(&self.active) && self.epoch.counter > 0
    }
}

/// What the region itself does about it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// Nothing.
    #[default]
    Steady,
    /// A planned switch is under way: publishes are held.
    #[serde(rename_all = "camelCase")]
    Draining {
        /// Who will be active.
        to: String,
        /// When it began, ms since 1970.
        begun_ms: u64,
        /// When it is given up.
        deadline_ms: u64,
    },
}

/// A region's view of one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceState {
    /// The newest record known here.
    pub record: ActiveRecord,
    /// What goes on here.
    pub phase: Phase,
    /// Since this process knows the record, another region has said that it knows none that is newer, or nobody was there
    /// to ask in time. An active region takes no publishes before.
    pub confirmed: bool,
    /// This region was deposed and has not set aside yet what the new one never got: its links wait for that.
    pub tail_pending: bool,
}

/// What an ordinary producer or consumer gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishRule {
    /// It is let in.
    Accept,
    /// It has to come again: the reason.
    Hold(String),
    /// It has to go to another region.
    Moved {
        /// The active region.
        to: String,
    },
}

/// What a link from another region gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkRule {
    /// Its messages are stored.
    Accept,
    /// They are refused: the source does not know yet that another region is active.
    Stale {
        /// The epoch here.
        current: Epoch,
    },
    /// They are stored, and the source knows more than is known here: ask it.
    Ask,
}

/// What learning a record changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Learned {
    /// Nothing: it is known here.
    Known,
    /// It is older than what is known here: tell whoever sent it.
    Older,
    /// It is in force now.
    Newer {
        /// This region was active before and is not any more, without having handed over: it has to fence itself and to
        /// set its tail aside (F4).
        deposed: bool,
    },
}

#[derive(Serialize)]
struct Written<'a> {
    v: u32,
    record: &'a ActiveRecord,
    phase: &'a Phase,
    #[serde(rename = "tailPending")]
    tail_pending: bool,
}

#[derive(Deserialize)]
struct Head {
    v: u32,
}

#[derive(Deserialize)]
struct Read {
    record: ActiveRecord,
    #[serde(default)]
    phase: Phase,
    #[serde(default, rename = "tailPending")]
    tail_pending: bool,
}

/// Version of the stored form.
pub const VERSION: u32 = 1;

impl NamespaceState {
    /// A state that has just been read or written.
    pub fn new(record: ActiveRecord) -> Self {
        Self { record, phase: Phase::Steady, confirmed: false, tail_pending: false }
    }

    /// As it is stored.
    pub fn encode(&self) -> Vec<u8> {
        let written = Written { v: VERSION, record: &self.record, phase: &self.phase, tail_pending: self.tail_pending };
        serde_json::to_vec(&written).unwrap_or_default()
    }

    /// From what was stored; a new process has to have it confirmed again.
    ///
    /// # Errors
    /// [`FailoverError::Unreadable`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FailoverError> {
        let unreadable = |what: String| FailoverError::Unreadable(what);
        let head: Head = serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))?;
        if head.v != VERSION {
            return Err(unreadable(format!("version {}, this program knows {VERSION}", head.v)));
        }
        let read: Read = serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))?;
        if !read.record.is_sound() {
            return Err(unreadable(format!("epoch {} is not one of region {}", read.record.epoch, read.record.active)));
        }
        let Read { record, phase, tail_pending } = read;
        Ok(Self { record, phase, confirmed: false, tail_pending })
    }

    /// What an ordinary producer or consumer gets in region `own`.
    pub fn publish_rule(&self, own: &str) -> PublishRule {
        if self.record.active != own {
            return PublishRule::Moved { to: self.record.active.clone() };
        }
        if let Phase::Draining { to, .. } = &self.phase {
            return PublishRule::Hold(format!("a switch to region {to} is under way"));
        }
        if !self.confirmed {
            return PublishRule::Hold("no other region has confirmed yet that this one is active".to_owned());
        }
        PublishRule::Accept
    }

    /// What a link gets whose source is at `epoch` (`None` = it knows of no active region).
    pub fn link_rule(&self, epoch: Option<Epoch>) -> LinkRule {
        match epoch {
            Some(epoch) if epoch == self.record.epoch => LinkRule::Accept,
            Some(epoch) if epoch > self.record.epoch => LinkRule::Ask,
            _ => LinkRule::Stale { current: self.record.epoch },
        }
    }

    /// Takes a record that region `own` was told of (F2).
    pub fn learn(&mut self, own: &str, told: &ActiveRecord) -> Learned {
        if told.epoch == self.record.epoch {
            self.confirmed = true;
            return Learned::Known;
        }
        if told.epoch < self.record.epoch {
            return Learned::Older;
        }
        let deposed = self.record.active == own && told.active != own;
        let tail_pending = self.tail_pending || deposed;
        *self = Self { record: told.clone(), phase: Phase::Steady, confirmed: true, tail_pending };
        Learned::Newer { deposed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state(active: &str) -> NamespaceState {
        NamespaceState::new(ActiveRecord::first(active, 5))
    }

    #[test]
    fn golden_bytes() {
        let mut state = state("west");
        let steady = r#"{"v":1,"record":{"epoch":"1-0ba7bf86","active":"west","forced":false,"previous":null,"sinceMs":5},"phase":"steady","tailPending":false}"#;
        let written = String::from_utf8(state.encode()).unwrap();
        let id = format!("{:08x}", RegionId::of("west").0);
        assert_eq!(written, steady.replace("0ba7bf86", &id));
        state.phase = Phase::Draining { to: "east".into(), begun_ms: 6, deadline_ms: 7 };
        let written = String::from_utf8(state.encode()).unwrap();
        let phase = r#""phase":{"draining":{"to":"east","begunMs":6,"deadlineMs":7}},"tailPending":false}"#;
        assert!(written.ends_with(phase), "{written}");
        assert_eq!(NamespaceState::decode(written.as_bytes()).unwrap(), state);
    }

    #[test]
    fn damaged_records_are_refused() {
        let sound = String::from_utf8(state("west").encode()).unwrap();
        for bad in [
            String::new(),
            "{}".to_owned(),
            sound.replace(r#""v":1"#, r#""v":2"#),
            sound.replace("\"west\"", "\"east\""),
            sound.replace("\"1-", "\"x-"),
            sound.replace("\"1-", "\"0-"),
        ] {
            assert!(matches!(NamespaceState::decode(bad.as_bytes()), Err(FailoverError::Unreadable(_))), "{bad}");
        }
    }

    #[test]
    fn who_may_publish() {
        let mut west = state("west");
        assert!(matches!(west.publish_rule("west"), PublishRule::Hold(_)), "not confirmed");
        assert_eq!(west.learn("west", &west.record.clone()), Learned::Known);
        assert_eq!(west.publish_rule("west"), PublishRule::Accept);
        assert_eq!(west.publish_rule("east"), PublishRule::Moved { to: "west".into() });
        west.phase = Phase::Draining { to: "east".into(), begun_ms: 0, deadline_ms: 9 };
        assert!(matches!(west.publish_rule("west"), PublishRule::Hold(_)));
    }

    #[test]
    fn a_deposed_region_fences_itself() {
        let mut west = state("west");
        let forced = west.record.next("east", true, 9);
        assert_eq!(west.learn("west", &forced), Learned::Newer { deposed: true });
        assert_eq!(west.publish_rule("west"), PublishRule::Moved { to: "east".into() });
        assert_eq!(west.learn("west", &ActiveRecord::first("west", 1)), Learned::Older);
    }

    #[test]
    fn two_forced_switches_at_once_are_two_epochs() {
        let before = ActiveRecord::first("west", 1);
        let (east, north) = (before.next("east", true, 2), before.next("north", true, 2));
        assert_ne!(east.epoch, north.epoch);
        let (mut one, mut other) = (NamespaceState::new(east.clone()), NamespaceState::new(north.clone()));
        one.learn("east", &north);
        other.learn("north", &east);
        assert_eq!(one.record, other.record);
    }

    #[test]
    fn links_of_an_older_epoch_are_refused() {
        let mut west = state("west");
        let old = west.record.epoch;
        west.learn("west", &west.record.next("east", true, 2));
        let new = west.record.epoch;
        assert_eq!(west.link_rule(Some(old)), LinkRule::Stale { current: new });
        assert_eq!(west.link_rule(None), LinkRule::Stale { current: new });
        assert_eq!(west.link_rule(Some(new)), LinkRule::Accept);
        assert_eq!(west.link_rule(Some(Epoch { counter: new.counter + 1, ..new })), LinkRule::Ask);
    }

    proptest! {
        #[test]
        fn regions_agree_whatever_the_order(switches in proptest::collection::vec((0usize..3, any::<bool>()), 1..8), seed in any::<u64>()) {
            let names = ["west", "east", "north"];
            let mut records = vec![ActiveRecord::first("west", 0)];
            for (at, (to, forced)) in switches.iter().enumerate() {
                // Each switch builds on some record that was known to whoever made it.
                let base = &records[(seed as usize).wrapping_add(at * 7) % records.len()];
                records.push(base.next(names[*to], *forced, at as u64));
            }
            let greatest = records.iter().map(|record| record.epoch).max().unwrap();
            for (own, name) in names.iter().enumerate() {
                let mut state = NamespaceState::new(records[0].clone());
                for step in 0..records.len() * 2 {
                    let told = &records[(step * (own + 3) + own) % records.len()];
                    let before = state.record.epoch;
                    state.learn(name, told);
                    prop_assert!(state.record.epoch >= before);
                }
                for told in &records {
                    state.learn(name, told);
                }
                prop_assert_eq!(state.record.epoch, greatest);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = NamespaceState::decode(&bytes);
        }
    }
}
