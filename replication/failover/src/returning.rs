//! What a deposed region leaves behind: the tail, a labelled range of messages that the new active region never got.
//!
//! Role: a forced switch makes another region active while this one can't be asked. When it comes back it learns the greater
//! epoch, takes no publishes any more, and sets aside per topic what its link to the new active region had not delivered.
//! Nothing of it is sent by itself: an operator lists it, replays it (each message is published anew in the active region,
//! labelled with where it stood) or drops it.
//!
//! Stored as JSON: `{"v":1,"tail":{"topic":"persistent://t/n/a","epoch":"2-0000000a","active":"east","after":"3:4",
//! "to":"3:9","entries":5,"cutMs":1,"replayedTo":null,"dropped":false}}`.
//!
//! Invariants: R1 a tail holds only entries first stored here; R2 it is set aside before any link of the namespace sends
//! again ([`crate::NamespaceState::tail_pending`]); R3 what is in it is kept from trimming by a cursor of its own until it is
//! dropped or replayed to its end; R4 setting it aside twice changes nothing.
//! Failure: [`FailoverError::Unreadable`].
//! Must never know: logs, cursors.

use crate::FailoverError;
use crate::record::Epoch;
use meridian_types::{EntryId, LedgerId, Position, TopicName};
use serde::{Deserialize, Serialize};

/// Property on a replayed message: the epoch that cut it off.
pub const EPOCH_PROPERTY: &str = "meridian.tail.epoch";
/// Property on a replayed message: the region that it was first stored in.
pub const REGION_PROPERTY: &str = "meridian.tail.region";
/// Property on a replayed message: where it stood there, `LEDGER:ENTRY`.
pub const POSITION_PROPERTY: &str = "meridian.tail.position";

/// A tail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// The topic (partition).
    pub topic: TopicName,
    /// The epoch that cut it off.
    pub epoch: Epoch,
    /// The region that never got it.
    pub active: String,
    /// Everything up to here had been delivered.
    pub after: Position,
    /// Its last entry.
    pub to: Position,
    /// Entries in it.
    pub entries: u64,
    /// When it was set aside, ms since 1970.
    pub cut_ms: u64,
    /// Replayed up to here.
    pub replayed_to: Option<Position>,
    /// An operator gave it up.
    pub dropped: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    topic: String,
    epoch: Epoch,
    active: String,
    after: String,
    to: String,
    entries: u64,
    cut_ms: u64,
    replayed_to: Option<String>,
    dropped: bool,
}

#[derive(Serialize, Deserialize)]
struct Record {
    v: u32,
    tail: Fields,
}

const VERSION: u32 = 1;

/// Name of the cursor that keeps a tail (R3).
pub fn cursor_name(epoch: Epoch) -> String {
    format!("meridian.tail.{epoch}")
}

impl Tail {
    /// As it is stored and shown.
    pub fn encode(&self) -> Vec<u8> {
        let tail = Fields {
            topic: self.topic.to_string(),
            epoch: self.epoch,
            active: self.active.clone(),
            after: text(self.after),
            to: text(self.to),
            entries: self.entries,
            cut_ms: self.cut_ms,
            replayed_to: self.replayed_to.map(text),
            dropped: self.dropped,
        };
        serde_json::to_vec(&Record { v: VERSION, tail }).unwrap_or_default()
    }

    /// From what was stored.
    ///
    /// # Errors
    /// [`FailoverError::Unreadable`].
    pub fn decode(bytes: &[u8]) -> Result<Self, FailoverError> {
        let record: Record =
            serde_json::from_slice(bytes).map_err(|error| FailoverError::Unreadable(error.to_string()))?;
        if record.v != VERSION {
            return Err(FailoverError::Unreadable(format!("version {}, this program knows {VERSION}", record.v)));
        }
        let tail = record.tail;
        let topic = TopicName::parse(&tail.topic).map_err(|error| FailoverError::Unreadable(error.to_string()))?;
        Ok(Self {
            topic,
            epoch: tail.epoch,
            active: tail.active,
            after: position(&tail.after)?,
            to: position(&tail.to)?,
            entries: tail.entries,
            cut_ms: tail.cut_ms,
            replayed_to: tail.replayed_to.as_deref().map(position).transpose()?,
            dropped: tail.dropped,
        })
    }

    /// Whether all of it was replayed or dropped.
    pub fn is_over(&self) -> bool {
        self.dropped || self.replayed_to.is_some_and(|replayed| replayed >= self.to)
    }
}

fn text(position: Position) -> String {
    format!("{}:{}", position.ledger_id.0, position.entry_id.0)
}

fn position(text: &str) -> Result<Position, FailoverError> {
    let parsed = text.split_once(':').and_then(|(ledger, entry)| Some((ledger.parse().ok()?, entry.parse().ok()?)));
    let (ledger, entry) =
        parsed.ok_or_else(|| FailoverError::Unreadable(format!("position '{text}': expected LEDGER:ENTRY")))?;
    Ok(Position { ledger_id: LedgerId(ledger), entry_id: EntryId(entry) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_types::RegionId;
    use proptest::prelude::*;

    fn at(ledger: i64, entry: i64) -> Position {
        Position { ledger_id: LedgerId(ledger), entry_id: EntryId(entry) }
    }

    fn tail() -> Tail {
        Tail {
            topic: TopicName::parse("persistent://t/n/a").unwrap(),
            epoch: Epoch { counter: 2, region: RegionId(10) },
            active: "east".into(),
            after: at(3, -1),
            to: at(3, 9),
            entries: 10,
            cut_ms: 1,
            replayed_to: None,
            dropped: false,
        }
    }

    #[test]
    fn golden_bytes() {
        let written = String::from_utf8(tail().encode()).unwrap();
        let golden = r#"{"v":1,"tail":{"topic":"persistent://t/n/a","epoch":"2-0000000a","active":"east","after":"3:-1","to":"3:9","entries":10,"cutMs":1,"replayedTo":null,"dropped":false}}"#;
        assert_eq!(written, golden);
        assert_eq!(cursor_name(tail().epoch), "meridian.tail.2-0000000a");
    }

    #[test]
    fn bad_ones_are_refused() {
        let sound = String::from_utf8(tail().encode()).unwrap();
        for bad in [sound.replace("\"v\":1", "\"v\":2"), sound.replace("3:9", "3-9"), sound.replace("t/n/a", "")] {
            assert!(matches!(Tail::decode(bad.as_bytes()), Err(FailoverError::Unreadable(_))), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn both_ways(ledger in 0i64..1 << 40, first in -1i64..1000, entries in 1u64..1000, replayed in proptest::option::of(0i64..2000)) {
            let mut tail = Tail { after: at(ledger, first), to: at(ledger, first + entries as i64), entries, ..tail() };
            tail.replayed_to = replayed.map(|entry| at(ledger, entry));
            prop_assert_eq!(tail.is_over(), replayed.is_some_and(|entry| entry >= first + entries as i64));
            prop_assert_eq!(Tail::decode(&tail.encode()).unwrap(), tail);
        }
    }
}
