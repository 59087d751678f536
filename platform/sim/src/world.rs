//! Everything there is, and which part of the code an event is for.

use crate::clients::{Client, Reader};
use crate::coverage::Coverage;
use crate::events::{Event, Queue};
use crate::oracle::Oracle;
use crate::plan::{LOOK_MS, Plan, Rng};
use crate::planted::Planted;
use crate::site::{Disk, Live, NAMES, Region, Site};
use meridian_failover::{ActiveRecord, Epoch, NamespaceState};
use meridian_topic::api::ProducerKey;
use std::collections::BTreeMap;

/// A session of a link between two regions.
pub(crate) struct Conn {
    pub(crate) from: Region,
    pub(crate) to: Region,
    /// Of the link at the source.
    pub(crate) link: u64,
    /// As the machine numbers it.
    pub(crate) session: u64,
    pub(crate) epoch: Option<Epoch>,
    /// The process at the target, and the producer there.
    pub(crate) at_target: Option<(u64, ProducerKey)>,
    /// Nothing that arrives later gets through.
    pub(crate) cut_ms: u64,
    pub(crate) closed: bool,
    pub(crate) out_ms: u64,
    pub(crate) back_ms: u64,
}

/// The way between two regions.
#[derive(Default, Clone)]
pub(crate) struct Way {
    /// Number of the partition that is in force.
    pub(crate) parted: Option<u64>,
    /// The region link.
    pub(crate) control_up: bool,
    pub(crate) control_session: u64,
    /// One for each direction: in order.
    pub(crate) control_ms: [u64; 2],
}

/// See the head of the file.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) planted: Planted,
    pub(crate) rng: Rng,
    pub(crate) queue: Queue,
    pub(crate) sites: Vec<Site>,
    pub(crate) conns: BTreeMap<u64, Conn>,
    pub(crate) ways: BTreeMap<(Region, Region), Way>,
    pub(crate) clients: Vec<Client>,
    pub(crate) readers: Vec<Reader>,
    pub(crate) oracle: Oracle,
    pub(crate) coverage: Coverage,
    pub(crate) trace: Option<Vec<String>>,
    /// Nothing goes wrong any more.
    pub(crate) healed: bool,
    pub(crate) done: bool,
    /// The last look found nothing open.
    pub(crate) settled_before: bool,
    numbers: u64,
}

impl World {
    pub(crate) fn new(plan: Plan, planted: Planted, trace: bool) -> Self {
        let regions = plan.regions;
        let sites = (0..regions).map(|_| Site { disk: Disk::new(plan.subscriptions), live: None, life: 0 }).collect();
        let mut world = Self {
            rng: Rng::new(plan.seed ^ 0x5eed),
            queue: Queue::at(1000),
            sites,
            conns: BTreeMap::new(),
            ways: BTreeMap::new(),
            clients: (0..plan.clients).map(|number| Client::new(number, number % regions)).collect(),
            readers: (0..plan.subscriptions).map(|number| Reader::new(number % regions)).collect(),
            oracle: Oracle::new(&plan),
            coverage: Coverage::default(),
            trace: trace.then(Vec::new),
            healed: false,
            done: false,
            settled_before: false,
            numbers: 0,
            planted,
            plan,
        };
        if world.plan.reign {
            let state = NamespaceState::new(ActiveRecord::first(NAMES[0], world.queue.now_ms));
            world.sites.iter_mut().for_each(|site| site.disk.state = Some(state.encode()));
        }
        for a in 0..regions {
            for b in a + 1..regions {
                world.ways.insert((a, b), Way::default());
            }
        }
        (0..regions).for_each(|region| world.start(region));
        (0..world.clients.len()).for_each(|client| world.queue.after(1, Event::ClientWork(client)));
        (0..world.readers.len()).for_each(|reader| world.queue.after(2, Event::ReaderWork(reader)));
        world.queue.after(LOOK_MS, Event::Chaos);
        world.queue.after(500, Event::Settled);
        world
    }

    /// A number that was not given before.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.queue.now_ms
    }

    pub(crate) fn live(&mut self, region: Region) -> Option<&mut Live> {
        self.sites[region].live.as_mut()
    }

    pub(crate) fn is_life(&self, region: Region, life: u64) -> bool {
        self.sites[region].life == life && self.sites[region].live.is_some()
    }

    pub(crate) fn others(&self, region: Region) -> impl Iterator<Item = Region> + use<> {
        (0..self.plan.regions).filter(move |other| *other != region)
    }

    pub(crate) fn way(&mut self, a: Region, b: Region) -> &mut Way {
        self.ways.entry((a.min(b), a.max(b))).or_default()
    }

    pub(crate) fn parted(&self, a: Region, b: Region) -> bool {
        self.ways.get(&(a.min(b), a.max(b))).is_some_and(|way| way.parted.is_some())
    }

    /// How long something takes from one region to another.
    pub(crate) fn travel_ms(&mut self) -> u64 {
        self.plan.delay_ms + self.rng.below(self.plan.jitter_ms + 1)
    }

    pub(crate) fn note(&mut self, text: impl FnOnce() -> String) {
        let now_ms = self.queue.now_ms;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now_ms:>7} {}", text()));
        }
    }

    /// Runs until everything is settled, or a checker has seen enough, or the time is over.
    pub(crate) fn run(&mut self) {
        while !self.done && self.oracle.violations.len() < 5 {
            let Some(event) = self.queue.pop() else { break };
            self.coverage.events += 1;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Chaos => self.chaos(),
            Event::Gather(region, life) if self.is_life(region, life) => self.gather(region),
            Event::Flush(region, life) if self.is_life(region, life) => self.flush(region),
            Event::Beat(region, life) if self.is_life(region, life) => self.beat(region),
            Event::Confirm(region, life) if self.is_life(region, life) => self.confirm_timeout(region),
            Event::Stored(region, life) if self.is_life(region, life) => self.stored(region),
            Event::Restart(region) => self.start(region),
            Event::Link { region, remote, number, event } => self.link_event(region, remote, number, event),
            Event::LinkTick { region, remote, number } => self.link_tick(region, remote, number),
            Event::OpenArrives(conn) => self.open_arrives(conn),
            Event::SendArrives(conn, sent) => self.send_arrives(conn, sent),
            Event::CloseArrives(conn) => self.close_arrives(conn),
            Event::AnswerArrives(conn, event) => self.answer_arrives(conn, event),
            Event::TargetLost(conn) => self.target_lost(conn),
            Event::ControlArrives { from, to, session, message } => self.control_arrives(from, to, session, message),
            Event::ControlUp(a, b) => self.control_up(a, b),
            Event::Heal(a, b, number) => self.heal(a, b, number),
            Event::ClientWork(client) => self.client_work(client),
            Event::ClientAnswer { client, attached, answer } => self.client_answer(client, attached, answer),
            Event::ReaderWork(reader) => self.reader_work(reader),
            Event::ReaderAcks { sub, region, attached, acks, cumulative } => {
                self.reader_acks(sub, region, attached, acks, cumulative);
            }
            Event::SeekDone { region, life, sub, to } if self.is_life(region, life) => self.seek_done(region, sub, to),
            Event::Follow { region, life, sub } if self.is_life(region, life) => self.follow(region, sub),
            Event::Switch { region, number, step } => self.switch_step(region, number, step),
            Event::Settled => self.look_if_settled(),
            // Of a process that is gone.
            Event::Gather(..)
            | Event::Flush(..)
            | Event::Beat(..)
            | Event::Confirm(..)
            | Event::Stored(..)
            | Event::SeekDone { .. }
            | Event::Follow { .. } => {}
        }
    }
}
