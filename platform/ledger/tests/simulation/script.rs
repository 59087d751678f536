//! Written scenarios, and what becomes of messages that are lost.

use crate::world::{Message, Verdict, World};
use meridian_bookie_api::BookieError;
use meridian_ledger::LedgerError;
use meridian_ledger::record::Stored;
use meridian_metadata::MetadataError;
use meridian_types::BookieId;

impl World {
    /// One step of a written scenario: `append`, `recover`, `down b1`, `up b1`, `time 150`, the name of a message to be
    /// delivered (`add b0`, `fenced b0`, `store`, …), `lose` and such a name, or `maybe` and the name of a message that
    /// should not be there.
    pub fn act(&mut self, line: &str) -> Verdict {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "append" => self.append(1),
            "recover" => self.recover(),
            "down" | "up" => self.bookie(&BookieId::new(rest)).up = word == "up",
            "time" => self.advance(rest.parse().map_err(|_| format!("no time: {line}"))?),
            "lose" => {
                let at = self.named(rest)?;
                self.lose(at)?;
            }
            "maybe" => {
                if let Ok(at) = self.named(rest) {
                    self.take(at)?;
                }
            }
            _ => {
                let at = self.named(line)?;
                self.take(at)?;
            }
        }
        self.pump()
    }

    fn named(&self, name: &str) -> Result<usize, String> {
        let names: Vec<_> = self.network.iter().map(|m| self.name(m)).collect();
        names.iter().position(|n| n == name).ok_or_else(|| format!("no message {name} among {names:?}"))
    }

    fn name(&self, message: &Message) -> String {
        let member = |slot: &usize| &self.stored.0.last_ensemble().bookies[*slot];
        match message {
            Message::Add { to, .. } => format!("add {to}"),
            Message::Added { bookie, .. } => format!("added {bookie}"),
            Message::Fence { to, .. } => format!("fence {to}"),
            Message::Fenced { slot, .. } => format!("fenced {}", member(slot)),
            Message::Read { to, .. } => format!("read {to}"),
            Message::Answered { slot, .. } => format!("answered {}", member(slot)),
            Message::Store { .. } => "store".to_owned(),
            Message::Stored { .. } => "stored".to_owned(),
            Message::Load { .. } => "load".to_owned(),
            Message::Loaded { .. } => "loaded".to_owned(),
            Message::Lac { to, .. } => format!("lac {to}"),
        }
    }

    /// A message is lost. What has a deadline in the shells ends with it; its request may be on its way still.
    pub(super) fn lose(&mut self, which: usize) -> Verdict {
        if self.network.is_empty() {
            return Ok(());
        }
        let at = which % self.network.len();
        let message = self.network.remove(at);
        let late = BookieError::Timeout(9);
        let unavailable = || MetadataError::Unavailable("lost".to_owned());
        match message.clone() {
            Message::Add { .. } | Message::Added { .. } | Message::Lac { .. } => {}
            Message::Fence { from: to, round, slot, .. } => {
                self.network.push(Message::Fenced { to, round, slot, result: Err(late) });
            }
            Message::Fenced { to, round, slot, .. } => {
                self.network.push(Message::Fenced { to, round, slot, result: Err(late) });
            }
            Message::Read { from: to, round, slot, .. } | Message::Answered { to, round, slot, .. } => {
                self.network.push(Message::Answered { to, round, slot, result: Err(late) });
            }
            Message::Load { from: to } | Message::Loaded { to, .. } => {
                let result = Box::new(Err(LedgerError::Metadata(unavailable())));
                self.network.push(Message::Loaded { to, result });
            }
            Message::Store { from: Some(to), record, version } => {
                // The call gives up; the write itself arrives later, or never.
                if which.is_multiple_of(2) {
                    self.network.push(Message::Store { from: None, record, version });
                }
                self.network.push(Message::Stored { to, outcome: Stored::Unknown(unavailable()) });
            }
            Message::Store { from: None, .. } => {}
            Message::Stored { to, .. } => {
                self.network.push(Message::Stored { to, outcome: Stored::Unknown(unavailable()) });
            }
        }
        Ok(())
    }
}
