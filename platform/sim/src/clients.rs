//! Producers and consumers: they write, resend what has no receipt, and move between regions.

use crate::events::Event;
use crate::oracle::MessageId;
use crate::planted::Planted;
use crate::site::{NAMES, Region, named};
use crate::world::World;
use bytes::BytesMut;
use meridian_failover::PublishRule;
use meridian_topic::Publish;
use meridian_topic::api::ProducerKey;
use meridian_topic::sim::{Answer, Entry};
use meridian_types::Position;
use meridian_wire::payload;
use meridian_wire::proto::MessageMetadata;
use std::collections::VecDeque;

/// A batch without a receipt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) sequence: u64,
    messages: u32,
    attempts: u32,
}

/// A producer.
pub(crate) struct Client {
    number: usize,
    name: String,
    pub(crate) region: Region,
    /// The connection; 0 = none.
    pub(crate) attached: u64,
    pub(crate) key: Option<ProducerKey>,
    next_sequence: u64,
    pub(crate) written: u64,
    pub(crate) pending: VecDeque<Pending>,
    failures: u32,
    answers_ms: u64,
}

impl Client {
    pub(crate) fn new(number: usize, region: Region) -> Self {
        Self {
            number,
            name: format!("p{number}"),
            region,
            attached: 0,
            key: None,
            next_sequence: 0,
            written: 0,
            pending: VecDeque::new(),
            failures: 0,
            answers_ms: 0,
        }
    }

    fn publish(&self, batch: &Pending, now_ms: u64) -> Publish {
        let Pending { sequence, messages, attempts } = *batch;
        let highest = sequence + u64::from(messages) - 1;
        let metadata = MessageMetadata {
            producer_name: self.name.clone(),
            sequence_id: sequence,
            highest_sequence_id: Some(highest),
            num_messages_in_batch: Some(messages as i32),
            publish_time: now_ms,
            partition_key: Some(format!("k{}", self.number)),
            ..MessageMetadata::default()
        };
        let id = MessageId { client: self.number, sequence, attempt: attempts };
        let mut encoded = BytesMut::new();
        payload::encode(&metadata, &id.encode(), &mut encoded);
        Publish {
            sequence_id: sequence,
            highest_sequence_id: Some(highest),
            messages,
            marker: false,
            is_chunk: false,
            source: None,
            payload: encoded.freeze(),
        }
    }
}

/// A consumer, alone on its subscription.
pub(crate) struct Reader {
    pub(crate) region: Region,
    pub(crate) attached: u64,
}

impl Reader {
    pub(crate) fn new(region: Region) -> Self {
        Self { region, attached: 0 }
    }
}

impl World {
    pub(crate) fn rule(&self, region: Region) -> PublishRule {
        let state = self.sites[region].live.as_ref().and_then(|live| live.state.as_ref());
        match state {
            Some(state) if self.planted != Planted::EpochsIgnored => state.publish_rule(NAMES[region]),
            _ => PublishRule::Accept,
        }
    }

    pub(crate) fn client_work(&mut self, number: usize) {
        let after_ms = if self.healed { self.rng.between(5, 20) } else { self.rng.between(5, 60) };
        self.queue.after(after_ms, Event::ClientWork(number));
        let region = self.clients[number].region;
        if self.clients[number].attached == 0 {
            self.attach_client(number);
            return;
        }
        if !matches!(self.rule(region), PublishRule::Accept) {
            // Held: the sends wait at the client.
            return;
        }
        let mut run = Vec::new();
        for _ in 0..self.rng.between(1, 3) {
            let messages = self.rng.between(1, 3) as u32;
            let client = &mut self.clients[number];
            if client.written >= self.plan.messages || client.pending.len() >= 12 {
                break;
            }
            client.written += 1;
            let batch = Pending { sequence: client.next_sequence, messages, attempts: 0 };
            client.next_sequence += u64::from(messages);
            client.pending.push_back(batch);
            run.push(batch);
        }
        self.client_sends(number, &run);
    }

    fn client_sends(&mut self, number: usize, run: &[Pending]) {
        let now_ms = self.now_ms();
        let client = &self.clients[number];
        let (region, Some(key)) = (client.region, client.key) else { return };
        if run.is_empty() {
            return;
        }
        let publishes = run.iter().map(|batch| (client.publish(batch, now_ms), None)).collect();
        if let Some(state) = self.sites[region].live.as_ref().and_then(|live| live.state.as_ref()) {
            self.oracle.on_accept(now_ms, region, &state.record);
        }
        let Some(live) = self.live(region) else { return };
        let appends = live.topic.publish(key, publishes, now_ms);
        self.note(|| format!("{} gets {} of p{number}", NAMES[region], run.len()));
        self.append(region, appends);
        self.drain_answers(region);
    }

    fn attach_client(&mut self, number: usize) {
        let now_ms = self.now_ms();
        let region = self.clients[number].region;
        if self.sites[region].live.is_none() {
            self.clients[number].failures += 1;
            if self.clients[number].failures > 6 {
                self.clients[number].failures = 0;
                self.clients[number].region = (region + 1) % self.plan.regions;
                self.coverage.client_moves += 1;
            }
            return;
        }
        match self.rule(region) {
            PublishRule::Accept => {}
            PublishRule::Hold(_) => return,
            PublishRule::Moved { to } => {
                self.clients[number].region = named(&to);
                self.coverage.client_moves += 1;
                return;
            }
        }
        let attached = self.number();
        let name = self.clients[number].name.clone();
        let key = loop {
            let Some(live) = self.live(region) else { return };
            match live.topic.admit(attached, &name, None, now_ms) {
                Entry::In(key) => break key,
                // The connection before this one is gone.
                Entry::NameTaken(key, _) => live.topic.leave(key),
                Entry::Refused(_) => return,
            }
        };
        let client = &mut self.clients[number];
        (client.attached, client.key, client.failures) = (attached, Some(key), 0);
        client.pending.iter_mut().for_each(|batch| batch.attempts += 1);
        let run: Vec<Pending> = client.pending.iter().copied().collect();
        self.coverage.resends += run.len() as u64;
        self.drain_answers(region);
        self.client_sends(number, &run);
    }

    /// A topic answers a client's connection.
    pub(crate) fn answer_client(&mut self, region: Region, attached: u64, answer: Answer) {
        let now_ms = self.now_ms();
        let Some(number) = self.clients.iter().position(|client| client.attached == attached) else {
            return self.lost_answer(region, &answer);
        };
        if let Answer::Receipts(_, receipts) = &answer {
            for receipt in receipts {
                let duplicate = receipt.position == Position::EARLIEST;
                self.coverage.publishes_acked += 1;
                self.coverage.client_duplicates += u64::from(duplicate);
                let name = (number, receipt.sequence_id);
                self.oracle.on_receipt(now_ms, region, name, receipt.position, duplicate);
            }
        }
        let travel_ms = self.rng.below(4);
        let client = &mut self.clients[number];
        client.answers_ms = client.answers_ms.max(now_ms + travel_ms);
        let after_ms = client.answers_ms - now_ms;
        self.queue.after(after_ms, Event::ClientAnswer { client: number, attached, answer });
    }

    /// Nobody hears it; the entry counts as acknowledged all the same.
    fn lost_answer(&mut self, region: Region, answer: &Answer) {
        let now_ms = self.now_ms();
        if let Answer::Receipts(_, receipts) = answer {
            for receipt in receipts.iter().filter(|receipt| receipt.position != Position::EARLIEST) {
                self.oracle.on_unheard(now_ms, region, receipt.position);
            }
        }
    }

    pub(crate) fn client_answer(&mut self, number: usize, attached: u64, answer: Answer) {
        if self.clients[number].attached != attached {
            return;
        }
        match answer {
            Answer::Receipts(_, receipts) => {
                for receipt in receipts {
                    let client = &mut self.clients[number];
                    if client.pending.front().is_some_and(|batch| batch.sequence == receipt.sequence_id) {
                        client.pending.pop_front();
                    }
                }
            }
            Answer::SendError(..) => self.detach_client(number, true),
            Answer::Close(_) => self.detach_client(number, false),
        }
    }

    /// The connection is gone. `broken` = the region has to find that out.
    pub(crate) fn detach_client(&mut self, number: usize, broken: bool) {
        let client = &mut self.clients[number];
        let (region, key) = (client.region, client.key.take());
        client.attached = 0;
        if !broken {
            return;
        }
        if let (Some(key), Some(live)) = (key, self.live(region)) {
            live.topic.leave(key);
        }
        self.drain_answers(region);
    }

    /// What a client holds may be stored although it will hear nothing of it.
    pub(crate) fn make_uncertain(&mut self, number: usize) {
        for batch in &self.clients[number].pending {
            self.oracle.uncertain((number, batch.sequence));
        }
    }

    pub(crate) fn reader_work(&mut self, number: usize) {
        let after_ms = self.rng.between(10, 40);
        self.queue.after(after_ms, Event::ReaderWork(number));
        let region = self.readers[number].region;
        let attached = self.readers[number].attached;
        let here = self.sites[region].live.as_ref().map(|live| live.subs[number].attached);
        if attached != 0 && here == Some(attached) {
            return;
        }
        match self.rule(region) {
            PublishRule::Accept => {}
            PublishRule::Hold(_) => return,
            PublishRule::Moved { to } => {
                self.readers[number].region = named(&to);
                return;
            }
        }
        let attached = self.number();
        match self.live(region).map(|live| &mut live.subs[number]) {
            Some(sub) if sub.applied => {
                sub.fence();
                (sub.attached, sub.read_at) = (attached, Position::EARLIEST);
                self.readers[number].attached = attached;
                self.dispatch(region);
            }
            Some(_) => {}
            None => self.readers[number].region = (region + 1) % self.plan.regions,
        }
    }

    /// The consumer leaves its region for another one.
    pub(crate) fn move_reader(&mut self, number: usize, to: Region) {
        let reader = &mut self.readers[number];
        let from = reader.region;
        (reader.region, reader.attached) = (to, 0);
        self.coverage.reader_moves += 1;
        if let Some(live) = self.live(from) {
            live.subs[number].fence();
        }
    }
}
