//! From the queue into the pipeline: what goes next, and what holds it back.
//!
//! Invariants: M1, M4, M6 of [`super`]; U1 time to live is asked at the moment of sending, not of reading.
//! Must never know: as [`super`].

use super::classify::{Sendable, Skip, Verdict, is_expired};
use super::flight::{Progress, Slot};
use super::reader::Ready;
use super::schemas::Known;
use super::words::{Effect, Notice, Outgoing, Peer};
use super::{Machine, Out};
use bytes::Bytes;
use meridian_wire::replicate::{Stamp, stamp};

/// Slots per entry that may wait: runs of entries that stay here do not grow the pipeline without bound.
const SLOTS_PER_WAITING: usize = 8;
/// What the stamp adds to an entry at most, as a rule.
const STAMP_BYTES: u64 = 256;

/// What to do with the entry in front.
enum Next {
    Send(Sendable, Option<Bytes>),
    Skip(Skip),
    Hold,
}

impl Machine {
    /// Moves what may go.
    pub(super) fn pump(&mut self, peer: Peer, out: &mut Out) {
        self.throttled_until_ms = self.throttled_until_ms.filter(|until_ms| *until_ms > self.now.ms);
        let max_slots = self.config.bounds.max_waiting_entries as usize * SLOTS_PER_WAITING;
        while self.flight.entries() < max_slots && self.ending.is_none() {
            match self.next(peer, out) {
                Some(Next::Skip(why)) => self.skip(why, out),
                Some(Next::Send(send, version)) => self.send(send, version, peer, out),
                Some(Next::Hold) | None => break,
            }
        }
        self.let_through(out);
    }

    fn next(&mut self, peer: Peer, out: &mut Out) -> Option<Next> {
        let front = self.reader.front()?;
        let send = match &front.verdict {
            Verdict::Skip(why) => return Some(Next::Skip(why.clone())),
            Verdict::Send(send) => send.clone(),
        };
        let (position, messages, bytes) = (front.position, front.messages, front.payload.len() as u64);
        let expired = is_expired(front.broker_time_ms, send.deliver_at_ms, self.limits.ttl_ms, self.now.ms);
        if expired && !send.marker {
            return Some(Next::Skip(Skip::Expired));
        }
        let waiting = self.flight.waiting_entries();
        let full = waiting > 0 && self.flight.waiting_bytes() + bytes > self.config.bounds.max_waiting_bytes;
        if waiting >= self.window || full {
            return Some(Next::Hold);
        }
        if !send.marker && self.proof.is_hole(position, peer) {
            // Whatever is under way first gets its answer; then everything goes on under a name without a past.
            self.announce(Notice::Unproven { position }, out);
            self.end(true);
            return Some(Next::Hold);
        }
        if bytes + STAMP_BYTES > peer.max_entry_bytes {
            self.refused = Some(format!("{position} has {bytes} bytes, the remote takes {}", peer.max_entry_bytes));
            self.end(false);
            return Some(Next::Hold);
        }
        let version = match send.schema_version.as_ref().map(|version| (version, self.schemas.ask(version, self.now))) {
            None => None,
            Some((version, Known::Yes(remote))) => remote.filter(|remote| remote != version),
            Some((_, Known::Wait)) => return Some(Next::Hold),
            Some((version, Known::Bring)) => {
                out.effects.push(Effect::BringSchema { session: self.session, version: version.clone() });
                return Some(Next::Hold);
            }
        };
        if !self.within_limits(messages, bytes) {
            return Some(Next::Hold);
        }
        Some(Next::Send(send, version))
    }

    /// Takes from the limits of the link and from those it shares, or notes when to ask again.
    fn within_limits(&mut self, messages: u32, bytes: u64) -> bool {
        let mut wait_ms = self.throttle.wait_ms(self.now.ms);
        if wait_ms == 0
            && let Some(shared) = &self.config.shared
        {
            wait_ms = shared.take(self.now.ms, messages, bytes).err().unwrap_or(0);
        }
        if wait_ms > 0 {
            self.throttled_until_ms = Some(self.now.ms + wait_ms);
            return false;
        }
        self.throttle.take(messages, bytes);
        true
    }

    fn take_front(&mut self) -> Option<Ready> {
        self.schemas.passed();
        self.reader.pop()
    }

    fn skip(&mut self, why: Skip, out: &mut Out) {
        let Some(ready) = self.take_front() else { return };
        match why {
            Skip::Foreign => self.counters.skipped_foreign += 1,
            Skip::NotTargeted => self.counters.skipped_not_targeted += 1,
            Skip::LocalMarker | Skip::RemoteMarker(_) => self.counters.skipped_markers += 1,
            Skip::Expired => self.counters.messages_expired += u64::from(ready.messages),
            Skip::Undecodable(error) => self.announce(Notice::Undecodable { position: ready.position, error }, out),
        }
        self.flight.push(slot(ready, Progress::Skipped, 0, false, 0));
        self.let_through(out);
    }

    fn send(&mut self, send: Sendable, version: Option<Bytes>, peer: Peer, out: &mut Out) {
        let Some(ready) = self.take_front() else { return };
        let mark =
            Stamp { from: &self.config.local, position: Some(ready.position), schema_version: version.as_deref() };
        let payload = match stamp(&ready.payload, &mark, &mut self.buffer) {
            Ok(payload) => payload,
            Err(error) => {
                let position = ready.position;
                self.announce(Notice::Undecodable { position, error: error.to_string() }, out);
                self.flight.push(slot(ready, Progress::Skipped, 0, false, 0));
                return;
            }
        };
        self.buffer.extend_from_slice(&payload);
        let entry = self.buffer.split().freeze();
        // A peer without positions judges duplicates by the number of the SEND; for others it only names the send.
        let (sequence_id, highest_sequence_id) =
            if peer.positions { (self.next_sequence, None) } else { (send.sequence_id, send.highest_sequence_id) };
        self.next_sequence += 1;
        let outgoing = Outgoing {
            position: ready.position,
            sequence_id,
            highest_sequence_id,
            messages: ready.messages.max(1),
            marker: send.marker,
            chunk: send.chunk,
            source_position: peer.meridian.then_some(ready.position),
            entry,
        };
        if self.flight.waiting_entries() == 0 {
            self.progress_ms = self.now.ms;
        }
        let bytes = outgoing.entry.len() as u64;
        self.counters.entries_sent += 1;
        self.counters.messages_sent += u64::from(ready.messages);
        self.counters.bytes_sent += bytes;
        self.counters.transactional += u64::from(send.transactional);
        self.proof.sent(ready.position);
        self.flight.push(slot(ready, Progress::Waiting, sequence_id, send.marker, bytes));
        out.sends.push(outgoing);
    }
}

fn slot(ready: Ready, progress: Progress, sequence_id: u64, marker: bool, bytes: u64) -> Slot {
    Slot {
        position: ready.position,
        progress,
        sequence_id,
        marker,
        bytes,
        messages: ready.messages,
        first_index: ready.first_index,
        broker_time_ms: ready.broker_time_ms,
        hold: ready.hold,
    }
}
