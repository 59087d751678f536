//! The sending side: the machine of each link over its log, its cursor and the network.

use crate::events::Event;
use crate::planted::Planted;
use crate::site::{Cursor, Link, NAMES, Region, id_of, incarnation_of};
use crate::world::{Conn, World};
use meridian_failover::FailoverError;
use meridian_managed_ledger::LogEntry;
use meridian_replicator::machine::words::{
    Effect, Event as LinkEvent, Notice, Now, OpenFailure, Outgoing, ReadEntry, StartPoint,
};
use meridian_replicator::machine::{Bounds, LinkConfig, Machine};
use meridian_replicator::{Counters, LinkLimits};
use meridian_types::Position;
use meridian_wire::payload;

/// Small ones, so that every bound is met.
const BOUNDS: Bounds = Bounds {
    max_waiting_entries: 16,
    max_waiting_bytes: 4000,
    read_entries: 10,
    read_bytes: 4000,
    stalled_after_ms: 400,
    restart_after_ms: 900,
    drain_ms: 200,
    min_backoff_ms: 5,
    max_backoff_ms: 150,
};
/// After so long an opening without an answer has failed.
const OPEN_MS: u64 = 500;
/// So long the source waits for the answer to a close.
const CLOSE_MS: u64 = 120;

impl World {
    /// Starts a link, or starts it anew with what its cursor says.
    pub(crate) fn start_link(&mut self, region: Region, remote: Region) {
        let now_ms = self.now_ms();
        let number = self.number();
        let limits = LinkLimits { ttl_ms: self.plan.ttl_ms, ..LinkLimits::default() };
        let (local, to) = (NAMES[region].into(), NAMES[remote].into());
        let config = LinkConfig { local, remote: to, bounds: BOUNDS, limits, shared: None };
        let site = &mut self.sites[region];
        let created = !site.disk.links.contains_key(&remote);
        let stored = site.disk.links.entry(remote).or_insert_with(|| Cursor::at(Position::EARLIEST)).clone();
        let Some(live) = site.live.as_mut() else { return };
        let cursor = live.links.remove(&remote).map_or(stored, |old| old.cursor);
        let first = cursor.first_open(&site.disk.log).unwrap_or_else(|| site.disk.last.next_in_ledger());
        let start = StartPoint {
            first,
            last_confirmed: site.disk.last,
            created,
            highest_acked: cursor.above.last().copied().filter(|acked| *acked > first),
            generation: 0,
        };
        let machine = Machine::new(config, now_ms);
        let link = Link { number, machine, cursor, tick_ms: 0, waits: None, has_read: false, expired: 0, removed: 0 };
        live.links.insert(remote, link);
        self.coverage.removed_unseen += self.oracle.on_link_start(region, remote);
        self.link_event(region, remote, number, LinkEvent::Started(start));
    }

    /// Feeds the machine and does what it wants.
    pub(crate) fn link_event(&mut self, region: Region, remote: Region, number: u64, event: LinkEvent) {
        let now = Now { ms: self.now_ms(), jitter_permille: self.rng.below(1000) as u16 };
        let Some(live) = self.live(region) else { return };
        let Some(link) = live.links.get_mut(&remote).filter(|link| link.number == number) else { return };
        link.has_read |= matches!(&event, LinkEvent::Read { entries, .. } if !entries.is_empty());
        let effects = link.machine.handle(now, event);
        let view = link.machine.view();
        let wake_ms = link.machine.wake_at_ms();
        let Counters { messages_expired, gap_messages, .. } = view.counters;
        let (expired, removed) = (messages_expired - link.expired, gap_messages - link.removed);
        (link.expired, link.removed) = (messages_expired, gap_messages);
        let tick = wake_ms.filter(|at_ms| *at_ms != link.tick_ms);
        link.tick_ms = wake_ms.unwrap_or(0);
        if let Some(at_ms) = tick {
            let after_ms = at_ms.saturating_sub(now.ms);
            self.queue.after(after_ms, Event::LinkTick { region, remote, number });
        }
        self.coverage.expired += expired;
        if self.planted != Planted::ExpiryUncounted {
            self.oracle.counted(region, remote, expired, 0);
        }
        self.oracle.counted(region, remote, 0, removed);
        if view.generation != 0 {
            self.oracle.violated(now.ms, format!("dedup: {} renames its link to {}", NAMES[region], NAMES[remote]));
        }
        for effect in effects {
            self.link_effect(region, remote, number, effect);
        }
    }

    pub(crate) fn link_tick(&mut self, region: Region, remote: Region, number: u64) {
        let now_ms = self.now_ms();
        let Some(link) = self.live(region).and_then(|live| live.links.get_mut(&remote)) else { return };
        if link.number == number && link.tick_ms != 0 && link.tick_ms <= now_ms {
            link.tick_ms = 0;
            self.link_event(region, remote, number, LinkEvent::Tick);
        }
    }

    fn link_effect(&mut self, region: Region, remote: Region, number: u64, effect: Effect) {
        match effect {
            Effect::Open { session, .. } => self.open_session(region, remote, number, session),
            Effect::Close { session } => self.close_session(region, remote, number, session),
            Effect::Read { epoch, from, max_entries, acked_up_to, .. } => {
                let event = self.read_log(region, remote, epoch, from, max_entries as usize, acked_up_to);
                let after_ms = self.rng.below(3);
                self.queue.after(after_ms, Event::Link { region, remote, number, event });
            }
            Effect::Await { epoch, from } => {
                if let Some(link) = self.live(region).and_then(|live| live.links.get_mut(&remote)) {
                    link.waits = Some((epoch, from));
                }
                self.wake_links(region);
            }
            Effect::Send { session, entries } => self.send(number, session, entries),
            Effect::Ack(positions) => self.link_acks(region, remote, &positions),
            Effect::BringSchema { .. } | Effect::Marker(_) => {}
            Effect::Announce(Notice::Gap { messages, before }) => {
                self.coverage.gaps += 1;
                self.note(|| format!("{} to {}: gap of {messages} before {before}", NAMES[region], NAMES[remote]));
            }
            Effect::Announce(notice) => {
                self.note(|| format!("{} to {}: {notice:?}", NAMES[region], NAMES[remote]));
            }
        }
    }

    /// The epoch that links out of a region name, as [`meridian_failover::FailoverService::link_epoch`] decides it.
    fn link_epoch(&self, region: Region) -> Result<Option<meridian_failover::Epoch>, FailoverError> {
        let state = self.sites[region].live.as_ref().and_then(|live| live.state.as_ref());
        match state {
            Some(state) if state.tail_pending => Err(FailoverError::Host("a tail is being set aside".to_owned())),
            Some(state) => Ok(Some(state.record.epoch)),
            None => Ok(None),
        }
    }

    fn open_session(&mut self, region: Region, remote: Region, link: u64, session: u64) {
        let fail = |failure, after_ms, world: &mut World| {
            world.coverage.opens_failed += 1;
            let event = LinkEvent::OpenFailed { session, failure };
            world.queue.after(after_ms, Event::Link { region, remote, number: link, event });
        };
        let epoch = match self.link_epoch(region) {
            Ok(epoch) => epoch,
            Err(error) => return fail(OpenFailure::Refused(error.to_string()), 1, self),
        };
        if self.parted(region, remote) || self.sites[remote].live.is_none() {
            let after_ms = self.rng.between(5, 200);
            return fail(OpenFailure::Unreachable("no answer".into()), after_ms, self);
        }
        let number = self.number();
        let after_ms = self.travel_ms();
        let out_ms = self.now_ms() + after_ms;
        let conn = Conn {
            from: region,
            to: remote,
            link,
            session,
            epoch,
            at_target: None,
            cut_ms: u64::MAX,
            closed: false,
            out_ms,
            back_ms: 0,
        };
        self.conns.insert(number, conn);
        self.queue.after(after_ms, Event::OpenArrives(number));
        // If nothing comes back. The machine ignores it otherwise.
        let failure = OpenFailure::Unreachable("no answer in time".into());
        let event = LinkEvent::OpenFailed { session, failure };
        self.queue.after(OPEN_MS, Event::Link { region, remote, number: link, event });
    }

    fn conn_of(&self, link: u64, session: u64) -> Option<u64> {
        let of = |conn: &Conn| conn.link == link && conn.session == session;
        self.conns.iter().rev().find(|(_, conn)| of(conn)).map(|(number, _)| *number)
    }

    fn close_session(&mut self, region: Region, remote: Region, link: u64, session: u64) {
        // In any case, as the shell does it.
        let event = Event::Link { region, remote, number: link, event: LinkEvent::Closed { session } };
        self.queue.after(CLOSE_MS + 2 * self.plan.delay_ms, event);
        let Some(number) = self.conn_of(link, session) else { return };
        let now_ms = self.now_ms();
        let travel_ms = self.travel_ms();
        let Some(conn) = self.conns.get_mut(&number) else { return };
        conn.out_ms = conn.out_ms.max(now_ms + travel_ms);
        let after_ms = conn.out_ms - now_ms;
        self.queue.after(after_ms, Event::CloseArrives(number));
    }

    fn send(&mut self, link: u64, session: u64, mut entries: Vec<Outgoing>) {
        if self.planted == Planted::SendsReordered && entries.len() > 1 && self.rng.hits(100) {
            entries.swap(0, 1);
        }
        let Some(number) = self.conn_of(link, session) else { return };
        self.coverage.link_sends += entries.len() as u64;
        for sent in entries {
            let travel_ms = self.travel_ms();
            let now_ms = self.now_ms();
            let Some(conn) = self.conns.get_mut(&number) else { return };
            conn.out_ms = conn.out_ms.max(now_ms + travel_ms);
            let after_ms = conn.out_ms - now_ms;
            self.queue.after(after_ms, Event::SendArrives(number, sent));
        }
    }

    /// An answer arrives at the source.
    pub(crate) fn answer_arrives(&mut self, number: u64, event: LinkEvent) {
        let now_ms = self.now_ms();
        let Some(conn) = self.conns.get(&number) else { return };
        if conn.cut_ms < now_ms && !matches!(event, LinkEvent::Lost { .. }) {
            return;
        }
        let (region, remote, link) = (conn.from, conn.to, conn.link);
        self.link_event(region, remote, link, event);
    }

    fn read_log(
        &mut self,
        region: Region,
        remote: Region,
        epoch: u64,
        from: Position,
        max: usize,
        acked_to: Position,
    ) -> LinkEvent {
        if !self.healed && self.rng.hits(self.plan.fail_read) {
            return LinkEvent::ReadFailed { epoch, error: "no bookie answers".into() };
        }
        let site = &self.sites[region];
        let Some(cursor) = site.live.as_ref().and_then(|live| live.links.get(&remote)).map(|link| &link.cursor) else {
            return LinkEvent::ReadFailed { epoch, error: "closed".into() };
        };
        let (loops, hidden) = (self.planted == Planted::LoopRuleOff, self.planted == Planted::GapsHidden);
        let first = site.disk.log.first_key_value().map_or(0, |(_, entry)| entry.index + 1 - u64::from(entry.messages));
        let read = |(at, entry): (&Position, &LogEntry)| {
            let mut entry = if loops { without_source(region, entry) } else { entry.clone() };
            if hidden {
                entry.index -= first;
            }
            ReadEntry { acked: *at <= acked_to && cursor.is_acked(*at), entry, hold: None }
        };
        LinkEvent::Read { epoch, entries: site.disk.log.range(from..).take(max).map(read).collect() }
    }

    /// Tells links that wait that there is more.
    pub(crate) fn wake_links(&mut self, region: Region) {
        let last = self.sites[region].disk.last;
        let Some(live) = self.live(region) else { return };
        let mut grown = Vec::new();
        for (remote, link) in &mut live.links {
            if let Some((epoch, _)) = link.waits.take_if(|(_, from)| *from <= last) {
                grown.push((*remote, link.number, epoch));
            }
        }
        for (remote, number, epoch) in grown {
            let after_ms = self.rng.below(2);
            let event = LinkEvent::Grown { epoch };
            self.queue.after(after_ms, Event::Link { region, remote, number, event });
        }
    }

    /// The link says that entries are through (M2).
    fn link_acks(&mut self, region: Region, remote: Region, positions: &[Position]) {
        let (now_ms, ttl_ms) = (self.now_ms(), self.plan.ttl_ms);
        for position in positions {
            let Some(entry) = self.sites[region].disk.log.get(position) else { continue };
            let (messages, foreign) = (entry.messages, entry.origin.0 != id_of(region));
            let expired = ttl_ms.is_some_and(|ttl_ms| now_ms >= entry.broker_time_ms + ttl_ms);
            if !foreign {
                self.oracle.on_link_ack(now_ms, (region, *position), remote, messages, expired);
            }
        }
        let site = &mut self.sites[region];
        let Some(link) = site.live.as_mut().and_then(|live| live.links.get_mut(&remote)) else { return };
        link.cursor.ack(positions.iter().map(|position| (*position, u64::MAX)), &site.disk.log);
    }

    /// Entries that a link has not brought over.
    pub(crate) fn link_backlog(&self, region: Region, remote: Region) -> u64 {
        let site = &self.sites[region];
        let link = site.live.as_ref().and_then(|live| live.links.get(&remote));
        link.map_or(u64::MAX, |link| link.cursor.open_entries(&site.disk.log).count() as u64)
    }

    /// Entries are taken from the log whatever the links have copied: such that consumers are done with and marks do not
    /// need. A real log does that only with what it has lost, or was told to skip.
    pub(crate) fn remove_old(&mut self, region: Region) {
        let share = self.rng.between(300, 1000);
        let site = &mut self.sites[region];
        let Some(live) = site.live.as_mut() else { return };
        let shared = live.subs.iter().map(|sub| sub.authored.mark.min(sub.cursor.mark));
        let durable = site.disk.subs.iter().map(|sub| sub.cursor.mark);
        let covered = [site.disk.covered.0, site.disk.covered.1];
        let Some(to) = shared.chain(durable).chain(covered).min() else { return };
        let removable: Vec<Position> = site.disk.log.range(..=to).map(|(at, _)| *at).collect();
        let keep = removable.len() - removable.len() * share as usize / 1000;
        let mut uncopied = Vec::new();
        for position in removable.iter().take(removable.len() - keep) {
            let Some(entry) = site.disk.log.remove(position) else { continue };
            if entry.origin.0 != id_of(region) || entry.origin.1 != incarnation_of(region) {
                continue;
            }
            let open = live.links.iter().filter(|(_, link)| !link.cursor.is_acked(*position));
            uncopied.extend(open.map(|(remote, link)| (*remote, *position, link.has_read)));
        }
        self.coverage.removed_uncopied += uncopied.len() as u64;
        self.note(|| format!("{} removes entries up to {to}, {} not copied", NAMES[region], uncopied.len()));
        for (remote, position, has_read) in uncopied {
            self.oracle.on_removed((region, position), remote, has_read);
            self.coverage.removed_unseen += u64::from(!has_read);
        }
    }

    /// The last entry before a position.
    pub(crate) fn before(&self, region: Region, position: Position) -> Position {
        self.sites[region].disk.log.range(..position).next_back().map_or(Position::EARLIEST, |(at, _)| *at)
    }
}

/// For the planted bug that makes loops.
fn without_source(region: Region, entry: &LogEntry) -> LogEntry {
    let origin = (id_of(region), incarnation_of(region), entry.position);
    let Ok((mut metadata, body)) = payload::decode(&entry.payload) else { return entry.clone() };
    metadata.replicated_from = None;
    metadata.properties.clear();
    let mut bytes = bytes::BytesMut::new();
    payload::encode(&metadata, &body, &mut bytes);
    LogEntry { origin, payload: bytes.freeze(), ..entry.clone() }
}
