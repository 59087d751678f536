//! What goes wrong: crashes, partitions, cuts, failing logs, moves of clients, and the end of it all.

use crate::acks::LIMITS;
use crate::clients::Client;
use crate::events::Event;
use crate::plan::LOOK_MS;
use crate::planted::Planted;
use crate::site::{Cursor, Disk, Live, NAMES, Region, Sub, id_of, incarnation_of};
use crate::world::World;
use meridian_cursors::exact::{AckState, Epoch, SharedAcks, StoredAcks};
use meridian_failover::NamespaceState;
use meridian_topic::dedup::{Dedup, Sequence, Snapshot};
use meridian_topic::origins::{Origin, OriginMarks, OriginSnapshot, Source};
use meridian_topic::sim::{ProducerCore, limits};
use meridian_types::Position;
use meridian_wire::payload;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl World {
    /// A region's process starts with what is on its disk.
    pub(crate) fn start(&mut self, region: Region) {
        let now_ms = self.now_ms();
        let site = &mut self.sites[region];
        if site.live.is_some() {
            return;
        }
        site.life += 1;
        let life = site.life;
        let topic = load_topic(region, &mut site.disk, &self.plan, self.planted, now_ms);
        let state = site.disk.state.as_ref().and_then(|bytes| NamespaceState::decode(bytes).ok());
        let subs = (0..self.plan.subscriptions).map(|number| load_sub(region, &site.disk, number)).collect();
        let gate_epoch = state.as_ref().map(|state| state.record.epoch);
        let mut live = Live {
            topic,
            in_flight: VecDeque::new(),
            ledger: 0,
            next_entry: 0,
            store_ms: 0,
            links: BTreeMap::new(),
            subs,
            state,
            gate_epoch,
            state_since_ms: now_ms,
            switch: None,
            refusing_until_ms: 0,
            greeted: BTreeSet::new(),
        };
        live.roll(&mut site.disk);
        site.live = Some(live);
        self.note(|| format!("{} starts, life {life}", NAMES[region]));
        for number in 0..self.plan.subscriptions {
            for peer in self.others(region) {
                if let Some(live) = self.live(region) {
                    live.subs[number].acks.add_peer(id_of(peer), now_ms);
                }
            }
            self.reapply(region, number);
            if self.live(region).is_some_and(|live| !live.subs[number].applied) {
                self.queue.after(1, Event::Follow { region, life, sub: number });
            }
        }
        for remote in self.others(region) {
            self.start_link(region, remote);
            let after_ms = self.rng.between(1, 60);
            self.queue.after(after_ms, Event::ControlUp(region.min(remote), region.max(remote)));
        }
        self.queue.after(20, Event::Gather(region, life));
        self.queue.after(60, Event::Flush(region, life));
        if self.plan.reign {
            self.queue.after(50, Event::Beat(region, life));
            self.await_confirmation(region);
        }
    }

    /// A region's process dies. What it had handed to its log may be stored up to some point.
    pub(crate) fn crash(&mut self, region: Region, back_after_ms: u64) {
        let under_way = self.live(region).map_or(0, |live| live.in_flight.len());
        let stored = self.rng.below(under_way as u64 + 1);
        self.coverage.crashes += 1;
        self.coverage.crashes_in_appends += u64::from(under_way > 0);
        self.coverage.stored_in_crash += stored;
        self.note(|| format!("{} dies, {stored} of {under_way} appends are stored", NAMES[region]));
        self.stop(region, stored);
        self.queue.after(back_after_ms, Event::Restart(region));
    }

    fn stop(&mut self, region: Region, stored: u64) {
        for _ in 0..stored {
            let append = self.live(region).and_then(|live| live.in_flight.pop_front());
            if let Some(append) = append {
                self.make_durable(region, append);
            }
        }
        self.sites[region].live = None;
        self.oracle.on_crash(region);
        for number in 0..self.clients.len() {
            if self.clients[number].region == region && self.clients[number].attached != 0 {
                self.make_uncertain(number);
                self.detach_client(number, false);
            }
        }
        for peer in self.others(region) {
            self.control_down(region, peer);
            self.cut_sessions(region, peer, false);
        }
    }

    /// Sessions between two regions end, at once or silently.
    pub(crate) fn cut_sessions(&mut self, a: Region, b: Region, silent: bool) {
        let now_ms = self.now_ms();
        let between = |from: Region, to: Region| (from == a && to == b) || (from == b && to == a);
        let open = |conn: &crate::world::Conn| between(conn.from, conn.to) && conn.cut_ms == u64::MAX;
        let numbers: Vec<u64> = self.conns.iter().filter(|(_, conn)| open(conn)).map(|(number, _)| *number).collect();
        for number in numbers {
            let (source_ms, target_ms) = match silent {
                true => (self.rng.between(400, 1500), self.rng.between(300, 1500)),
                false => (self.travel_ms(), self.travel_ms()),
            };
            let Some(conn) = self.conns.get_mut(&number) else { continue };
            conn.cut_ms = now_ms;
            let (region, remote, link, session) = (conn.from, conn.to, conn.link, conn.session);
            let reason = "the connection was cut".to_owned();
            let event = meridian_replicator::machine::words::Event::Lost { session, reason };
            self.queue.after(source_ms + 1, Event::Link { region, remote, number: link, event });
            self.queue.after(target_ms + 1, Event::TargetLost(number));
        }
        *(if silent { &mut self.coverage.silent_cuts } else { &mut self.coverage.resets }) += 1;
    }

    fn part(&mut self, a: Region, b: Region, for_ms: u64) {
        let number = self.number();
        let silent = self.rng.hits(500);
        self.way(a, b).parted = Some(number);
        self.control_down(a, b);
        self.cut_sessions(a, b, silent);
        self.coverage.partitions += 1;
        self.note(|| format!("{} and {} are parted for {for_ms} ms", NAMES[a], NAMES[b]));
        self.queue.after(for_ms, Event::Heal(a, b, number));
    }

    pub(crate) fn heal(&mut self, a: Region, b: Region, number: u64) {
        let way = self.way(a, b);
        if way.parted == Some(number) {
            way.parted = None;
            self.queue.after(5, Event::ControlUp(a.min(b), a.max(b)));
        }
    }

    /// What is in memory goes to disk.
    pub(crate) fn flush(&mut self, region: Region) {
        let now_ms = self.now_ms();
        let life = self.sites[region].life;
        let after_ms = self.rng.between(40, 200);
        self.queue.after(after_ms, Event::Flush(region, life));
        let snapshot = self.rng.hits(400);
        let site = &mut self.sites[region];
        let Some(live) = site.live.as_mut() else { return };
        for (remote, link) in &live.links {
            site.disk.links.insert(*remote, link.cursor.clone());
        }
        for (sub, disk) in live.subs.iter_mut().zip(&mut site.disk.subs) {
            if sub.applied {
                disk.cursor = sub.cursor.clone();
            }
            if sub.dirty {
                disk.acks = Some(sub.stored());
                sub.dirty = false;
            }
        }
        self.oracle.on_flush(region);
        let covered = live.topic.confirmed_to();
        if let Some(origins) = live.topic.origins_mut().filter(|_| snapshot) {
            site.disk.origins = Some(origins.snapshot(covered, now_ms).encode());
            site.disk.covered.0 = covered;
        }
        if let Some(dedup) = live.topic.dedup_mut().filter(|_| snapshot) {
            site.disk.dedup = Some(dedup.snapshot(covered, now_ms).encode());
            site.disk.covered.1 = covered;
        }
        if !self.plan.dedup {
            site.disk.covered.1 = Position::LATEST;
        }
    }

    /// A look at chance.
    pub(crate) fn chaos(&mut self) {
        let now_ms = self.now_ms();
        if now_ms >= 1000 + self.plan.faults_until_ms {
            self.end_faults();
            return;
        }
        self.queue.after(LOOK_MS, Event::Chaos);
        let regions = self.plan.regions as u64;
        let any = self.rng.below(regions) as usize;
        let other = (any + 1 + self.rng.below(regions - 1) as usize) % self.plan.regions;
        let up = self.sites[any].live.is_some();
        if self.rng.hits(self.plan.crash) && up {
            let long = self.rng.hits(200);
            let back_after_ms = if long { self.rng.between(500, 1500) } else { self.rng.between(5, 150) };
            self.crash(any, back_after_ms);
            return;
        }
        if self.rng.hits(self.plan.partition) && !self.parted(any, other) {
            let long = self.rng.hits(200);
            let for_ms = if long { self.rng.between(500, 2000) } else { self.rng.between(20, 300) };
            self.part(any, other, for_ms);
        }
        if self.rng.hits(self.plan.cut) {
            let silent = self.rng.hits(300);
            self.cut_sessions(any, other, silent);
        }
        if !up {
            return;
        }
        self.chaos_in(any, other);
    }

    fn chaos_in(&mut self, region: Region, other: Region) {
        if self.rng.hits(self.plan.fail_append) {
            self.fail_appends(region);
        }
        if self.rng.hits(self.plan.fence) {
            self.reload(region);
        }
        if self.rng.hits(self.plan.retention) {
            self.remove_old(region);
        }
        let client = self.rng.below(self.clients.len() as u64) as usize;
        let moves = self.rng.hits(self.plan.client_move) && !self.plan.reign;
        if (self.rng.hits(self.plan.client_cut) || moves) && self.clients[client].attached != 0 {
            self.make_uncertain(client);
            self.detach_client(client, true);
            self.coverage.client_moves += u64::from(moves);
            if moves {
                self.clients[client].region = other;
            }
        }
        let reader = self.rng.below(self.readers.len() as u64) as usize;
        if self.rng.hits(self.plan.reader_move) && !self.plan.reign {
            self.move_reader(reader, region);
        }
        if self.rng.hits(self.plan.seek) {
            let log: Vec<Position> = self.sites[region].disk.log.keys().copied().collect();
            if !log.is_empty() {
                let to = log[self.rng.below(log.len() as u64) as usize];
                self.seek(region, reader, to);
            }
        }
        if self.rng.hits(self.plan.switch) {
            self.begin_switch(region, other);
        }
        if self.rng.hits(self.plan.force) {
            self.force(region);
        }
    }

    /// The log lost its ledger to somebody else: nothing more is stored, the topic is loaded anew.
    fn reload(&mut self, region: Region) {
        let under_way = self.live(region).map_or(0, |live| live.in_flight.len());
        let stored = self.rng.below(under_way as u64 + 1);
        self.coverage.reloads += 1;
        self.coverage.stored_in_crash += stored;
        self.note(|| format!("{} loads its topic anew", NAMES[region]));
        self.stop(region, stored);
        let after_ms = self.rng.between(1, 10);
        self.queue.after(after_ms, Event::Restart(region));
    }

    fn end_faults(&mut self) {
        self.healed = true;
        self.note(|| "nothing goes wrong any more".to_owned());
        for a in 0..self.plan.regions {
            self.queue.after(1, Event::Restart(a));
            for b in a + 1..self.plan.regions {
                self.way(a, b).parted = None;
                self.queue.after(5, Event::ControlUp(a, b));
            }
        }
    }
}

/// The marks as a topic rebuilds them: the snapshots, and every entry behind them.
fn load_topic(region: Region, disk: &mut Disk, plan: &crate::Plan, planted: Planted, now_ms: u64) -> ProducerCore {
    let snapshot = disk.origins.as_ref().and_then(|bytes| OriginSnapshot::decode(bytes).ok());
    let forgotten = planted == Planted::MarksForgotten;
    let mut origins = match snapshot.filter(|_| !forgotten) {
        Some(snapshot) => OriginMarks::restore(&snapshot, now_ms),
        None => OriginMarks::new(now_ms),
    };
    let global = plan.global && planted != Planted::GlobalOff;
    let snapshot = disk.dedup.as_ref().and_then(|bytes| Snapshot::decode(bytes).ok());
    let mut dedup = match snapshot.filter(|snapshot| snapshot.exact == global) {
        Some(snapshot) => Dedup::restore(&snapshot, 0, now_ms),
        None if global => Dedup::exact(0, now_ms),
        None => Dedup::new(0, now_ms),
    };
    for (position, entry) in &disk.log {
        let own = entry.origin.2 == *position && entry.origin.1 == incarnation_of(region);
        if !own && *position > disk.covered.0 && !forgotten {
            let (region, incarnation, position) = entry.origin;
            origins.replayed(&Origin { source: Source { region, incarnation }, position }, entry.broker_time_ms);
        }
        let counts = disk.dedup.is_none() || *position > disk.covered.1;
        if counts
            && (global || own)
            && let Ok(summary) = payload::summarize(&entry.payload)
        {
            dedup.replayed(summary.producer_name, &Sequence::of(&summary), entry.broker_time_ms);
        }
    }
    let dedup = plan.dedup.then_some(dedup);
    ProducerCore::new(limits(plan.dedup, global), origins, dedup, disk.last, now_ms)
}

fn load_sub(region: Region, disk: &Disk, number: usize) -> Sub {
    let saved = &disk.subs[number];
    let stored = saved.acks.as_ref().and_then(|bytes| StoredAcks::decode(bytes).ok());
    let stored = stored.unwrap_or_else(|| StoredAcks {
        // Made everywhere at once, before the first message.
        state: AckState::new(Epoch::creation(1, id_of(0))),
        applied: true,
        authored_to: Position::EARLIEST,
    });
    Sub {
        cursor: saved.cursor.clone(),
        acks: SharedAcks::new(id_of(region), stored.state, LIMITS),
        authored: Cursor::at(stored.authored_to),
        applied: stored.applied,
        dirty: false,
        looked_to: Position::EARLIEST,
        attached: 0,
        read_at: Position::EARLIEST,
        outstanding: BTreeMap::new(),
    }
}

impl Client {
    /// Everything is written and has its receipt.
    pub(crate) fn is_done(&self, messages: u64) -> bool {
        self.written >= messages && self.pending.is_empty()
    }
}
