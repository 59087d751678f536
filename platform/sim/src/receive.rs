//! The receiving side: a topic that takes sends of clients and links, and its log.
//!
//! Role: the shell of [`meridian_topic::sim::ProducerCore`]. Appends become durable one after the other, each after a while.

use crate::events::Event;
use crate::planted::Planted;
use crate::site::{InFlight, NAMES, Region, id_of, incarnation_of, region_of};
use crate::world::World;
use meridian_failover::LinkRule;
use meridian_managed_ledger::{AppendRequest, Appended, LogEntry};
use meridian_replicator::machine::words::{Event as LinkEvent, OpenFailure, Outgoing, Peer, Receipt, SendRefusal};
use meridian_topic::origins::LinkIdentity;
use meridian_topic::sim::{Answer, Entry};
use meridian_topic::{Publish, TopicError, TopicErrorKind};
use meridian_types::Position;
use meridian_wire::replicate::{INCARNATION_KEY, LINK_KEY, REGION_KEY, link_name};

const MAX_ENTRY_BYTES: u64 = 1 << 20;

fn refused() -> TopicError {
    TopicError::new(TopicErrorKind::NotAllowed, "refused for a moment")
}

impl World {
    /// An opening arrives at the target.
    pub(crate) fn open_arrives(&mut self, number: u64) {
        let now_ms = self.now_ms();
        let Some(conn) = self.conns.get(&number).filter(|conn| conn.cut_ms >= now_ms) else { return };
        let (from, to, session, epoch) = (conn.from, conn.to, conn.session, conn.epoch);
        let failure = match self.admit_link(number, from, to, epoch) {
            Ok(()) => {
                self.coverage.sessions += 1;
                let peer = Peer { meridian: true, positions: true, max_entry_bytes: MAX_ENTRY_BYTES };
                self.note(|| format!("{} link from {} open #{number}", NAMES[to], NAMES[from]));
                self.answer_link(number, LinkEvent::Opened { session, peer });
                return;
            }
            Err(failure) => failure,
        };
        self.coverage.opens_failed += 1;
        self.note(|| format!("{} link from {} not opened: {failure}", NAMES[to], NAMES[from]));
        self.answer_link(number, LinkEvent::OpenFailed { session, failure });
    }

    fn admit_link(
        &mut self,
        number: u64,
        from: Region,
        to: Region,
        epoch: Option<meridian_failover::Epoch>,
    ) -> Result<(), OpenFailure> {
        let now_ms = self.now_ms();
        let ignored = self.planted == Planted::EpochsIgnored;
        let life = self.sites[to].life;
        let live = self.live(to).ok_or_else(|| OpenFailure::Unreachable("the region is down".into()))?;
        let rule = live.state.as_ref().map_or(LinkRule::Accept, |state| state.link_rule(epoch));
        match rule {
            LinkRule::Stale { current } if !ignored => {
                self.coverage.stale_links += 1;
                return Err(OpenFailure::Refused(format!("stale epoch: {current} is in force here")));
            }
            LinkRule::Ask => self.tell(to, from, 0),
            _ => {}
        }
        let name = link_name(NAMES[from], NAMES[to]);
        let incarnation = incarnation_of(from).0.to_string();
        let metadata = [(REGION_KEY, NAMES[from]), (INCARNATION_KEY, &incarnation), (LINK_KEY, "1")];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        loop {
            let link = LinkIdentity::of(&name, &metadata, true);
            let Some(live) = self.live(to) else { break };
            match live.topic.admit(number, &name, link, now_ms) {
                Entry::In(key) => {
                    if let Some(conn) = self.conns.get_mut(&number) {
                        conn.at_target = Some((life, key));
                    }
                    break;
                }
                Entry::NameTaken(key, other) => {
                    // The broker asks the old connection whether it lives.
                    let dead = self.conns.get(&other).is_none_or(|conn| conn.cut_ms <= now_ms || conn.closed);
                    if !dead {
                        return Err(OpenFailure::Refused("a producer of that name is connected".into()));
                    }
                    if let Some(live) = self.live(to) {
                        live.topic.leave(key);
                    }
                }
                Entry::Refused(error) => return Err(OpenFailure::Refused(error.message)),
            }
        }
        self.drain_answers(to);
        Ok(())
    }

    /// A send arrives at the target.
    pub(crate) fn send_arrives(&mut self, number: u64, sent: Outgoing) {
        let now_ms = self.now_ms();
        let Some(conn) = self.conns.get(&number).filter(|conn| conn.cut_ms >= now_ms) else { return };
        let (from, to) = (conn.from, conn.to);
        let Some((_, key)) = conn.at_target.filter(|(life, _)| self.is_life(to, *life)) else { return };
        let (conn_epoch, session) = (conn.epoch, conn.session);
        let refuse = self.is_refusing(to);
        if self.planted == Planted::RefusalsUngated && refuse {
            let refusal = SendRefusal { sequence_id: sent.sequence_id, error: refused().message, undecided: false };
            self.coverage.link_refusals += 1;
            self.answer_link(number, LinkEvent::Refused { session, refusals: vec![refusal] });
            return;
        }
        let publish = Publish {
            sequence_id: sent.sequence_id,
            highest_sequence_id: sent.highest_sequence_id,
            messages: sent.messages,
            marker: sent.marker,
            is_chunk: sent.chunk,
            source: sent.source_position,
            payload: sent.entry,
        };
        let Some(live) = self.sites[to].live.as_mut() else { return };
        let state = live.state.as_ref().map(|state| state.record.epoch);
        let gate = if self.planted == Planted::EpochsIgnored { state } else { live.gate_epoch };
        let stale = conn_epoch < gate;
        let appends = live.topic.publish(key, vec![(publish, refuse.then(refused))], now_ms);
        if stale && !appends.is_empty() {
            let at = sent.position;
            self.oracle.violated(now_ms, format!("epochs: {} takes {at} of a stale epoch", NAMES[to]));
        }
        self.note(|| format!("{} gets {from}:{} on #{number}, appends {}", NAMES[to], sent.position, appends.len()));
        self.append(to, appends);
        self.drain_answers(to);
    }

    fn is_refusing(&mut self, region: Region) -> bool {
        let (now_ms, permille) = (self.now_ms(), self.plan.refuse);
        if self.healed {
            return false;
        }
        let hit = self.rng.hits(permille);
        let spell_ms = if hit && self.rng.hits(300) { self.rng.below(60) } else { 0 };
        let Some(live) = self.live(region) else { return false };
        if hit {
            live.refusing_until_ms = live.refusing_until_ms.max(now_ms + spell_ms);
        }
        hit || now_ms < live.refusing_until_ms
    }

    /// The source closes a session.
    pub(crate) fn close_arrives(&mut self, number: u64) {
        let now_ms = self.now_ms();
        let Some(conn) = self.conns.get(&number).filter(|conn| conn.cut_ms >= now_ms) else { return };
        let session = conn.session;
        self.target_lost(number);
        self.answer_link(number, LinkEvent::Closed { session });
    }

    /// The producer of a session goes.
    pub(crate) fn target_lost(&mut self, number: u64) {
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let (to, at_target) = (conn.to, conn.at_target.take());
        conn.closed = true;
        let Some((_, key)) = at_target.filter(|(life, _)| self.is_life(to, *life)) else { return };
        if let Some(live) = self.live(to) {
            live.topic.leave(key);
        }
        self.drain_answers(to);
    }

    /// An answer goes back to the source, behind all before it.
    pub(crate) fn answer_link(&mut self, number: u64, event: LinkEvent) {
        let travel_ms = self.travel_ms();
        let now_ms = self.now_ms();
        let Some(conn) = self.conns.get_mut(&number) else { return };
        conn.back_ms = conn.back_ms.max(now_ms + travel_ms);
        let after_ms = conn.back_ms - now_ms;
        self.queue.after(after_ms, Event::AnswerArrives(number, event));
    }

    /// Hands appends to the log.
    pub(crate) fn append(&mut self, region: Region, mut appends: Vec<AppendRequest>) {
        if self.planted == Planted::AppendsReordered && appends.len() > 1 && self.rng.hits(200) {
            appends.swap(0, 1);
        }
        let now_ms = self.now_ms();
        let early = self.planted == Planted::EarlyReceipts;
        for request in appends {
            let slow = self.rng.hits(100);
            let takes_ms = if slow { self.rng.between(5, 40) } else { self.rng.between(1, 6) };
            let life = self.sites[region].life;
            let site = &mut self.sites[region];
            let Some(live) = site.live.as_mut() else { return };
            let position = live.next_place(&mut site.disk);
            live.store_ms = live.store_ms.max(now_ms + takes_ms);
            let after_ms = live.store_ms - now_ms;
            if early {
                let appended = Appended { token: request.token, position, index: 0, messages: request.messages };
                live.topic.confirmed(&[appended], now_ms);
            }
            live.in_flight.push_back(InFlight { position, request, at_ms: now_ms, confirmed: early });
            self.queue.after(after_ms, Event::Stored(region, life));
        }
    }

    /// The first append under way is durable.
    pub(crate) fn stored(&mut self, region: Region) {
        let now_ms = self.now_ms();
        let Some(append) = self.live(region).and_then(|live| live.in_flight.pop_front()) else { return };
        let confirmed = append.confirmed;
        let appended = self.make_durable(region, append);
        let Some(live) = self.live(region) else { return };
        if !confirmed {
            live.topic.confirmed(&[appended], now_ms);
        }
        self.wake_links(region);
        self.drain_answers(region);
        self.dispatch(region);
    }

    /// Puts an entry on disk.
    pub(crate) fn make_durable(&mut self, region: Region, append: InFlight) -> Appended {
        let now_ms = self.now_ms();
        let InFlight { position, request, at_ms, .. } = append;
        let disk = &mut self.sites[region].disk;
        disk.next_index += u64::from(request.messages);
        let index = disk.next_index - 1;
        let origin = request.origin.unwrap_or((id_of(region), incarnation_of(region), position));
        let (token, messages) = (request.token, request.messages);
        let (broker_time_ms, payload) = (at_ms, request.payload);
        let entry = LogEntry { position, index, messages, marker: request.marker, broker_time_ms, origin, payload };
        self.oracle.on_stored(now_ms, region, &entry);
        self.coverage.entries_stored += 1;
        disk.log.insert(position, entry);
        disk.last = position;
        self.note(|| {
            let from = region_of(origin.0).map_or("?", |from| NAMES[from]);
            format!("{} stores {position}, of {from} {}", NAMES[region], origin.2)
        });
        Appended { token, position, index, messages }
    }

    /// What the topic says goes to whom it is for.
    pub(crate) fn drain_answers(&mut self, region: Region) {
        while let Some(answer) = self.live(region).and_then(|live| live.topic.next_answer()) {
            let (Answer::Receipts(to, _) | Answer::SendError(to, ..) | Answer::Close(to)) = &answer;
            let to = *to;
            match self.conns.contains_key(&to) {
                true => self.answer_session(region, to, answer),
                false => self.answer_client(region, to, answer),
            }
        }
    }

    fn answer_session(&mut self, region: Region, number: u64, answer: Answer) {
        let now_ms = self.now_ms();
        let Some(conn) = self.conns.get_mut(&number) else { return };
        let (from, session) = (conn.from, conn.session);
        match answer {
            Answer::Receipts(_, receipts) => {
                for receipt in &receipts {
                    let source = Position::new(receipt.sequence_id as i64, receipt.highest_sequence_id as i64);
                    let duplicate = receipt.position == Position::EARLIEST;
                    self.coverage.link_duplicates += u64::from(duplicate);
                    self.oracle.on_link_receipt(now_ms, region, (from, source), duplicate);
                }
                let receipts = receipts
                    .iter()
                    .map(|receipt| Receipt {
                        sequence_id: receipt.sequence_id,
                        highest_sequence_id: receipt.highest_sequence_id,
                        position: receipt.position,
                    })
                    .collect();
                self.answer_link(number, LinkEvent::Receipts { session, receipts });
            }
            Answer::SendError(_, sequence_id, error) => {
                self.coverage.link_refusals += 1;
                self.coverage.link_gated += u64::from(error.message.starts_with("The entry that"));
                let undecided = error.message.starts_with("Cannot determine");
                let refusal = SendRefusal { sequence_id, error: error.message, undecided };
                self.answer_link(number, LinkEvent::Refused { session, refusals: vec![refusal] });
            }
            Answer::Close(_) => {
                conn.at_target = None;
                conn.closed = true;
                self.answer_link(number, LinkEvent::Lost { session, reason: "closed there".into() });
            }
        }
    }

    /// Appends fail from one on; nothing of them is stored.
    pub(crate) fn fail_appends(&mut self, region: Region) {
        let len = self.live(region).map_or(0, |live| live.in_flight.len());
        if len == 0 {
            return;
        }
        // A log answers in the order of the appends.
        for _ in 0..self.rng.below(len as u64) {
            self.stored(region);
        }
        let site = &mut self.sites[region];
        let Some(live) = site.live.as_mut() else { return };
        let failed: Vec<u64> = live.in_flight.drain(..).map(|append| append.request.token).collect();
        live.roll(&mut site.disk);
        let error = TopicError::new(TopicErrorKind::Persistence, "the ledger was closed");
        live.topic.failed(&failed, &error);
        self.coverage.appends_failed += failed.len() as u64;
        self.note(|| format!("{} fails {} appends", NAMES[region], failed.len()));
        self.drain_answers(region);
    }
}
